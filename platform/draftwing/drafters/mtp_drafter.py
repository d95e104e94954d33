"""Multi-token prediction: the loop of feature drafters around modules that were trained with the target."""

from __future__ import annotations

from draftwing.drafters.base import ALONE, CheckpointReader, DrafterTraits, Mesh, TargetInfo
from draftwing.drafters.feature_drafter import FeatureDrafter
from draftwing.drafters.mtp import MtpOptions
from draftwing.drafters.mtp_head import MtpHead
from draftwing.drafters.mtp_modules import read_modules
from draftwing.errors import ConfigError


class MtpDrafter(FeatureDrafter):
    """Method `mtp`."""

    def __init__(self, options: MtpOptions) -> None:
        self._options = options
        self.traits = DrafterTraits(stop="incremental", trees=True, confidence=True)

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        if checkpoint is None or target.model is None:
            raise ConfigError("an MTP drafter runs beside its target and needs a checkpoint with its modules")
        raw = self._options.hidden == "raw"
        modules = read_modules(checkpoint, target, inside=self._options.path is None)
        if raw and len(modules) > 1:
            raise ConfigError(f"hidden is 'raw', but the checkpoint has {len(modules)} modules; expected 'normed'")
        if any(module.output is not modules[0].output for module in modules):
            raise ConfigError("the checkpoint's modules have different output layers; expected the target's or copies")
        self.ready(MtpHead(modules, target, raw=raw), target, dynamic=self._options.tree == "dynamic")
