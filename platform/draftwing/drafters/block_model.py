"""A published block drafter, whole: its network, the embedding and head it brings or shares, and its choice.

Shapes: G blocks, B rows of each, M nodes, D their depth, V target vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from draftwing.core import IntArray
from draftwing.drafters.base import AS_PUBLISHED, CheckpointReader, LayerOptions, TargetInfo
from draftwing.drafters.block_backbone import Backbone, BlockPlace, Pages
from draftwing.drafters.block_choice import Choice, Confidence, Markov, Selector, alone
from draftwing.drafters.block_config import read_config
from draftwing.drafters.children import in_target_ids
from draftwing.drafters.weights import Weights
from draftwing.errors import ConfigError

# Prefixes that other publishers of the same network use.
ALIASES = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "context_proj.": "fc.",
    "context_norm.": "hidden_norm.",
    "final_norm.": "norm.",
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}


class BlockModel:
    """ConfigError where the checkpoint isn't one of the method, or doesn't fit the target."""

    def __init__(
        self, method: str, target: TargetInfo, checkpoint: CheckpointReader, choice: LayerOptions = AS_PUBLISHED
    ) -> None:
        if target.model is None:
            raise ConfigError(f"method {method} needs the target's hidden states; it can't run beside another process")
        dtype: torch.dtype = getattr(torch, target.dtype)
        weights = Weights(checkpoint, torch.device(target.device), dtype, ALIASES)
        features = weights.take("fc.weight", None, None).shape[1]
        if features % target.hidden_size:
            raise ConfigError(
                f"the drafter's fc takes {features} numbers; expected a multiple of the target's hidden size "
                f"{target.hidden_size}"
            )
        self.config = config = read_config(
            checkpoint.config,
            method=method,
            features=features // target.hidden_size,
            layers=weights.count("layers"),
            target_layers=target.layers,
            reading=choice.reading,
            override=choice.layers,
        )
        self.backbone = Backbone(weights, config, target.hidden_size)
        shared: Any = target.model
        own = weights.embedding(target, config.hidden_size)
        self._embedding = shared.get_input_embeddings().weight.detach() if own is None else own
        if config.mask_token_id >= len(self._embedding):
            raise ConfigError(
                f"the drafter's mask_token_id is {config.mask_token_id}; expected 0 to {len(self._embedding) - 1}"
            )
        self._mask = self._embedding[config.mask_token_id]
        if "mask_embedding" in weights:
            self._mask = weights.take("mask_embedding", config.hidden_size)
        self._head, self._ids = weights.head(target, config.hidden_size)
        outputs = int(self._head.out_features)  # type: ignore[arg-type]
        self._choice: Choice = alone
        markov = None
        if method == "dflash2":
            self._choice = Selector(weights, config, outputs)
        elif "markov_head.markov_w1.weight" in weights:
            self._choice = markov = Markov(weights, config, len(self._embedding), outputs)
        self._confidence = Confidence(weights, config, markov) if "confidence_head.proj.weight" in weights else None
        self._vocab_size = target.vocab_size
        self.dtype = dtype
        checkpoint.skip(name for name in ("t2d",) if name in weights)  # the inverse of d2t

    @property
    def predicts_confidence(self) -> bool:
        return self._confidence is not None

    @property
    def alone(self) -> bool:
        """A row's children are the same after any path."""
        return self._choice is alone

    def hidden(self, anchors: IntArray, places: Seq[BlockPlace], pages: Pages) -> Tensor:
        """The hidden states of the rows that predict, after each anchor's token: [G, D, H]."""
        found: Tensor = self.backbone(self.embed(anchors), places, pages)
        return found[:, self.config.first_slot :]

    def embed(self, anchors: IntArray) -> Tensor:
        """Blocks that begin with these tokens and are masks from there on: [G, B, H]."""
        rows = self._mask.expand(len(anchors), self.config.block_size, -1).clone()
        rows[:, 0] = embedding(torch.from_numpy(anchors).to(rows.device), self._embedding)
        return rows * self.config.input_embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> [..., draft vocabulary], of each row alone; outputs that are no token are left out."""
        logits: Tensor = self._head(hidden) * self.config.output_multiplier
        if self._ids is None:
            logits = logits[..., : self._vocab_size]
        cap = self.config.final_logit_softcapping
        return torch.tanh(logits / cap) * cap if cap else logits

    def children(self, logits: Tensor, hidden: Tensor, path: Tensor) -> Tensor:
        """The logits of nodes' children over the target's vocabulary, [M, V]; arguments as for `Choice`."""
        chosen = self._choice(logits, hidden, path)
        return in_target_ids(chosen, self._ids, self._vocab_size)

    def confidence(self, hidden: Tensor, path: Tensor) -> Tensor | None:
        """The probability that each node's first child is accepted [M]; None where the drafter predicts none."""
        return None if self._confidence is None else self._confidence(hidden, path).sigmoid()
