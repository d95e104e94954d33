"""The price of time: tokens per millisecond that the engine makes, in the long run, at each load.

A step is worth its tokens less this rate times its duration. With the policy's own long-run rate as the price, choosing
each step by that worth makes the most tokens per time in the long run (Dinkelbach, On Nonlinear Fractional
Programming, 1967). It is never taken below plain decoding's rate, or a policy that lost would draft all the more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from draftwing.policy.cost import Floats

EACH, PER_DOUBLING, BUCKETS = 8, 2, 40  # batches up to 8 stand alone, larger ones share
KEEP = 0.98  # of a bucket's sums after one more step in it
COLD = 8.0  # steps' weight below which a rate is not trusted alone


def bucket_of(batch: int) -> int:
    if batch <= EACH:
        return batch
    return min(EACH + 1 + int(PER_DOUBLING * np.log2(batch / EACH)), BUCKETS - 1)


@dataclass(slots=True)
class Rates:
    """Sums per bucket, each fading: steps, tokens, ms, and tokens and ms of plain decoding in the same steps."""

    _sums: Floats = field(default_factory=lambda: np.zeros((BUCKETS, 5)))

    def learn(self, batch: int, tokens: float, ms: float, plain_ms: float) -> None:
        row = self._sums[bucket_of(batch)]
        row *= KEEP
        row += (1.0, tokens, ms, batch, plain_ms)

    def price(self, batch: int, plain_ms: float) -> tuple[float, float]:
        """Tokens per ms, and the steps it stands on. plain_ms: of the step at hand, for a bucket that knows little."""
        steps, tokens, ms, plain, of_plain = self._sums[bucket_of(batch)].tolist()
        doubt = max(COLD - steps, 0.0)
        own = (tokens + doubt * batch) / (ms + doubt * plain_ms)
        return max(own, (plain + doubt * batch) / (of_plain + doubt * plain_ms)), steps
