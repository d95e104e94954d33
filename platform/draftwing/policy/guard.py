"""Rule R2: speculation that is slower than plain decoding is found out, switched off, and tried again.

Every step is held against plain decoding at its own load: tokens made, and tokens that plain decoding would have made
in the same time. Their ratio is judged over a window of speculating steps. While it is off, one step in a while still
speculates, so that the ratio stays known and speculation can come back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from draftwing.policy.cost import Floats

LEAST_STEPS, WINDOW = 200, 400
LOST = 0.97  # the ratio's upper 95 % bound below this trips
NORMAL_95 = 1.96
GAPS = (8, 64, 256)  # steps from one probe to the next: least, at first, most; a good one halves it, a bad one doubles
BACK_AFTER = 8  # probes, whose ratio must reach 1
ASTRAY = 1.1  # realised over expected, or its inverse, from which a model is named as the cause


@dataclass(frozen=True, slots=True)
class Speculated:
    """A step with drafts. plain_tokens: of plain decoding in the same time. expected_*: by the models beforehand."""

    tokens: float
    plain_tokens: float
    ms: float
    expected_tokens: float
    expected_ms: float


@dataclass(slots=True)
class Guard:
    """tripped: speculation is off. reason: why, in words for logs and metrics; "" while it is on."""

    tripped: bool = False
    reason: str = ""
    trips: int = 0
    _made: deque[Speculated] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _gap: int = GAPS[1]
    _since: int = 0  # steps since the trip, or the last probe

    def allows(self) -> bool:
        """Whether this step may speculate."""
        return not self.tripped or self._since >= self._gap

    def observe(self, step: Speculated | None) -> None:
        """One step is over; None: it did not speculate."""
        self._since += 1
        if step is not None and step.plain_tokens > 0:
            self._made.append(step)
            if self.tripped:
                self._gap = max(self._gap // 2, GAPS[0]) if step.tokens >= step.plain_tokens else self._gap * 2
                self._gap, self._since = min(self._gap, GAPS[2]), 0
                self._come_back()
            elif len(self._made) >= LEAST_STEPS:
                self._judge()

    def ratio(self) -> tuple[float, float]:
        """Realised over plain in the window, and half the width of its 95 % interval."""
        made, plain = self._column("tokens"), self._column("plain_tokens")
        if len(made) < 2:
            return 1.0, float("inf")
        ratio = made.sum() / plain.sum()
        spread = np.std(made - ratio * plain, ddof=1) * np.sqrt(len(made))
        return float(ratio), float(NORMAL_95 * spread / plain.sum())

    @property
    def window(self) -> list[Speculated]:
        """The speculating steps that it judges by, oldest first."""
        return list(self._made)

    def _column(self, name: str) -> Floats:
        return np.array([getattr(step, name) for step in self._made], dtype=np.float64)

    def _judge(self) -> None:
        ratio, half = self.ratio()
        if ratio + half >= LOST:
            return
        self.tripped, self.trips, self._since, self._gap = True, self.trips + 1, 0, GAPS[1]
        self.reason = (
            f"speculation made {ratio:.2f}x (+-{half:.2f}) the tokens of plain decoding in {len(self._made)} steps; "
            + self._cause()
        )
        self._made.clear()

    def _cause(self) -> str:
        """Which model was wrong."""
        time = self._column("ms").sum() / max(self._column("expected_ms").sum(), 1e-9)
        tokens = self._column("tokens").sum() / max(self._column("expected_tokens").sum(), 1e-9)
        causes = []
        if time > ASTRAY:
            causes.append(f"the cost model is wrong: steps took {time:.2f}x the time it expected")
        if tokens < 1 / ASTRAY:
            causes.append(f"the acceptance model is wrong: steps made {tokens:.2f}x the tokens it expected")
        return " and ".join(causes) or (
            f"steps made {tokens:.2f}x the tokens and took {time:.2f}x the time that the models expected, so what they "
            "take plain decoding to cost is wrong, or the machine is unsteady"
        )

    def _come_back(self) -> None:
        latest = list(self._made)[-BACK_AFTER:]
        if len(latest) == BACK_AFTER and sum(step.tokens - step.plain_tokens for step in latest) >= 0:
            self.tripped, self.reason = False, ""
            self._made.clear()
