"""The price of time: tokens per millisecond that the engine makes, in the long run, at the present load and text.

A step is worth its tokens less this rate times its duration. With the policy's own long-run rate as the price, choosing
each step by that worth makes the most tokens per time in the long run (Dinkelbach, On Nonlinear Fractional
Programming, 1967). Load and text change faster than a rate is learned: so the price follows what the models promise of
the best single length for all, and what is learned, slowly, is how much more the choice of each step makes than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from draftwing.policy.cost import Floats

EACH, PER_DOUBLING, BUCKETS = 8, 2, 40  # batches up to 8 stand alone, larger ones share
KEEP = 0.98  # of a bucket's sums after one more step in it
DOUBT = 8.0  # tokens of each sequence that the promise weighs as


def bucket_of(batch: int) -> int:
    if batch <= EACH:
        return batch
    return min(EACH + 1 + int(PER_DOUBLING * np.log2(batch / EACH)), BUCKETS - 1)


@dataclass(slots=True)
class Rates:
    """Sums per bucket, both fading: tokens made, and promised in the same time."""

    _sums: Floats = field(default_factory=lambda: np.zeros((BUCKETS, 2)))

    def learn(self, batch: int, tokens: float, promised: float) -> None:
        row = self._sums[bucket_of(batch)]
        row *= KEEP
        row += (tokens, promised)

    def kept(self, batch: int) -> float:
        """Tokens made for each that was promised."""
        tokens, promised = self._sums[bucket_of(batch)] + DOUBT * batch
        return float(tokens / promised)
