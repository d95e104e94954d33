"""A whole small language model in a drafter's service: loading, the check of its vocabulary, its pages."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from torch import Tensor

from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.tokenizer import TextTokenizer, load_tokenizer
from draftwing.config_models import ModelConfig
from draftwing.core import IntArray
from draftwing.drafters.base import TargetInfo
from draftwing.engine.attention import KVShape
from draftwing.engine.batch import SequenceRows
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.runner import ModelRunner, kv_bytes_per_slot, probe_layers
from draftwing.errors import ConfigError
from draftwing.kernels.speedup import speed_up

SAMPLED_IDS = 256  # token texts compared between the two tokenizers


class SmallModel:
    """context: tokens it was made for. Pages are allocated when the cache is planned."""

    def __init__(self, loaded: LoadedTarget) -> None:
        self._loaded = loaded
        self._layers: list[KVShape] = probe_layers(loaded.model, loaded.device)
        self._runner: ModelRunner | None = None
        self._block_tokens = 1
        self.context = loaded.context_length
        self.kv_bytes_per_token = kv_bytes_per_slot(self._layers, loaded.dtype)

    def allocate(self, blocks: int, block_tokens: int) -> None:
        loaded = self._loaded
        self._block_tokens = block_tokens
        self._runner = ModelRunner(
            loaded.model,
            slots=blocks * block_tokens,
            layers=self._layers,
            device=loaded.device,
            dtype=loaded.dtype,
            vocab_size=loaded.vocab_size,
        )

    def slots(self, table: Seq[int]) -> IntArray:
        """All slots of a block table, in token order."""
        base = np.array(table, dtype=np.int64)[:, None] * self._block_tokens
        return (base + np.arange(self._block_tokens)).reshape(-1)

    def forward(self, sequences: Seq[SequenceRows]) -> Tensor:
        if self._runner is None:
            raise RuntimeError("the draft model has no pages yet; `reserve` comes before `propose`")
        return self._runner.forward(sequences)


def load_small_model(path: str, revision: str | None, dtype: str, target: TargetInfo) -> SmallModel:
    """ConfigError where the model can't be loaded or has another vocabulary than the target."""
    folder = resolve_model(ModelConfig.model_validate({"path": path, "revision": revision}))
    loaded = load_target(folder, dtype=dtype, device=target.device.partition(":")[0])
    _same_vocabulary(path, loaded, load_tokenizer(folder), target)
    speed_up(loaded.model, compile_kernel=target.compile)
    return SmallModel(loaded)


def _same_vocabulary(path: str, loaded: LoadedTarget, tokenizer: TextTokenizer | None, target: TargetInfo) -> None:
    """Same ids for the same text. Sizes may differ by padding alone, which only tokenizers can tell."""
    if tokenizer is None or target.tokenizer is None:
        if loaded.vocab_size != target.vocab_size:
            raise ConfigError(
                f"draft model {path} has {loaded.vocab_size} token ids and the target {target.vocab_size}; "
                "take a draft model of the target's family"
            )
        return
    if tokenizer.vocab_size != target.tokenizer.vocab_size:
        raise ConfigError(
            f"draft model {path} has a vocabulary of {tokenizer.vocab_size} and the target one of "
            f"{target.tokenizer.vocab_size}; take a draft model of the target's family"
        )
    step = max(tokenizer.vocab_size // SAMPLED_IDS, 1)
    for token in range(0, tokenizer.vocab_size, step):
        if (text := tokenizer.token_text(token)) != (other := target.tokenizer.token_text(token)):
            raise ConfigError(
                f"draft model {path} reads token {token} as {text!r} and the target as {other!r}; "
                "take a draft model with the target's vocabulary"
            )
