"""EAGLE of all versions: the loop of feature drafters around a head that a checkpoint describes."""

from __future__ import annotations

import logging

from draftwing.checkpoints.feature_layers import eagle_layers
from draftwing.drafters.base import ALONE, CheckpointReader, DrafterTraits, Mesh, TargetInfo
from draftwing.drafters.eagle import Eagle3Options, EagleOptions
from draftwing.drafters.eagle_config import read_eagle_config
from draftwing.drafters.eagle_head import EagleHead
from draftwing.drafters.feature_drafter import FeatureDrafter
from draftwing.errors import ConfigError
from draftwing.kernels.speedup import speed_up

log = logging.getLogger(__name__)


class EagleDrafter(FeatureDrafter):
    """Methods `eagle`, `eagle2`, `eagle3`."""

    def __init__(self, options: EagleOptions) -> None:
        self._options = options
        self.traits = DrafterTraits(stop="incremental", trees=True, confidence=True)

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        if checkpoint is None:
            raise ConfigError("an EAGLE drafter needs a checkpoint; name its folder or hub id as path")
        options = self._options
        config = read_eagle_config(checkpoint.config, options.rope_theta)
        layers: tuple[int, ...] = (target.layers,)  # after the final norm: what the target's own head reads
        if isinstance(options, Eagle3Options) and config.uses_aux:
            found = eagle_layers(checkpoint.config, target.layers, options.reading, options.layers)
            log.info("the drafter takes %s", found)
            raw_last = target.layers + 1  # as `FeatureTap` counts it
            layers = tuple(raw_last if i == target.layers else i for i in found.hidden_states)
        head = EagleHead(checkpoint, target, config, layers)
        speed_up(head, compile_kernel=target.compile)
        self.ready(head, target, dynamic=options.tree == "dynamic")
