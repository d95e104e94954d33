"""Chains whose tokens are each accepted with one probability: what a draft length brings, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from draftwing.policy.cost import CostModel


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens of one verify: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a)."""
    return float(k + 1) if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


@dataclass(frozen=True, slots=True)
class BestLength:
    """k with the highest rate; speedup: that rate over plain decoding's, 1 where drafting doesn't pay."""

    k: int
    speedup: float


def best_length(alpha: float, costs: CostModel, *, batch: int = 1, context: int = 0, most: int = 16) -> BestLength:
    """Over all k up to `most`, each sequence of the batch drafting as much."""
    rates = [
        expected_tokens(alpha, k) / float(costs.step_ms(batch, batch * (k + 1), context) + costs.draft_ms(batch, k))
        for k in range(most + 1)
    ]
    k = max(range(most + 1), key=lambda length: (rates[length], -length))
    return BestLength(k, rates[k] / rates[0])
