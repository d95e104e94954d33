"""How a block's rows become tokens: each alone (DFlash), or one after the other, given the token chosen before.

DFlash 2's selector scores the best tokens of a row by how well they follow the one before; DSpark's Markov head adds a
bias to all of a row's logits, and its confidence head predicts whether the token will be accepted.

Shapes: M nodes whose children are wanted, D their depth, V vocabulary, H hidden size, R rank.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from draftwing.drafters.block_config import BlockConfig
from draftwing.drafters.weights import Weights
from draftwing.errors import ConfigError


class Choice(Protocol):
    """Turns a row's logits into those of a node's children."""

    def __call__(self, logits: Tensor, hidden: Tensor, path: Tensor) -> Tensor:
        """logits [M, V] and hidden [M, D + 1, H] of the rows from the first to this one, path [M, D + 1]: the root's
        token to the node's own -> logits [M, V]."""


def alone(logits: Tensor, hidden: Tensor, path: Tensor) -> Tensor:
    return logits


class Selector(nn.Module):
    """DFlash 2: the best `top_k` of a row, by their logit and their fit to the token before; no others."""

    def __init__(self, weights: Weights, config: BlockConfig, vocab_size: int) -> None:
        super().__init__()
        name = "candidate_selector"
        self.before = weights.take(f"{name}.predecessor_codebook", vocab_size, None)
        rank = self.before.shape[1]
        self.after = weights.take(f"{name}.successor_codebook", vocab_size, rank)
        self.hidden_projection = weights.linear(f"{name}.hidden_projection", config.hidden_size, rank)
        self._top_k = config.selector_top_k
        if not 1 <= self._top_k <= vocab_size:
            raise ConfigError(f"the drafter's selector_top_k is {self._top_k}; expected 1 to {vocab_size}")

    def forward(self, logits: Tensor, hidden: Tensor, path: Tensor) -> Tensor:
        best = logits.topk(self._top_k, -1)
        wanted = self.before[path[:, -1]] * self.hidden_projection(hidden[:, -1])
        fit = (self.after[best.indices].float() @ wanted.float()[:, :, None])[:, :, 0]
        return torch.full_like(logits, -torch.inf).scatter(1, best.indices, best.values + fit.to(logits.dtype))


class Markov(nn.Module):
    """DSpark: a low-rank bias from the token before; `gated` by the row's hidden state, or `rnn` over all tokens."""

    def __init__(self, weights: Weights, config: BlockConfig, vocab_size: int, outputs: int) -> None:
        super().__init__()
        self.kind = config.markov_head_type
        self.before = weights.take("markov_head.markov_w1.weight", vocab_size, None)
        rank, size = self.before.shape[1], config.hidden_size
        self.after = weights.linear("markov_head.markov_w2", rank, outputs)
        if self.kind == "gated":
            self.gate_proj = weights.linear("markov_head.gate_proj", size + rank, rank, bias=None)
        if self.kind == "rnn":
            self.joint_proj = weights.linear("markov_head.joint_proj", size + 2 * rank, 3 * rank, bias=None)

    def forward(self, logits: Tensor, hidden: Tensor, path: Tensor) -> Tensor:
        return logits + self.after(self._latent(hidden, path))[:, : logits.shape[1]]  # type: ignore[no-any-return]

    def _latent(self, hidden: Tensor, path: Tensor) -> Tensor:
        before = self.before[path]
        if self.kind == "gated":
            gate = self.gate_proj(torch.cat([hidden[:, -1], before[:, -1]], -1)).sigmoid()
            return gate * before[:, -1]  # type: ignore[no-any-return]
        if self.kind == "vanilla":
            return before[:, -1]
        state = torch.zeros_like(before[:, 0])
        for row, token in zip(hidden.unbind(1), before.unbind(1), strict=True):
            keep, new, out = self.joint_proj(torch.cat([state, token, row], -1)).chunk(3, -1)
            state = torch.lerp(new.tanh(), state, keep.sigmoid())
        return out.tanh()  # type: ignore[no-any-return]


class Confidence(nn.Module):
    """DSpark: the probability that the first child of a node is accepted."""

    def __init__(self, weights: Weights, config: BlockConfig, markov: Markov | None) -> None:
        super().__init__()
        if config.confidence_head_with_markov and markov is None:
            raise ConfigError("the drafter's confidence_head_with_markov is true, but it has no Markov head")
        self._before = markov.before if config.confidence_head_with_markov and markov is not None else None
        inputs = config.hidden_size + (0 if self._before is None else self._before.shape[1])
        self.proj = weights.linear("confidence_head.proj", inputs, 1, bias=None)

    def forward(self, hidden: Tensor, path: Tensor) -> Tensor:
        """hidden [M, D + 1, H], path [M, D + 1] as for `Choice` -> logits [M]"""
        row = hidden[:, -1]
        if self._before is not None:
            row = torch.cat([row, self._before[path[:, -1]]], -1)
        return self.proj(row)[:, 0].float()  # type: ignore[no-any-return]
