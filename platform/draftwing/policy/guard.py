"""Rule R2: speculation that is slower than plain decoding is found out, switched off, and tried again.

Every step is held against plain decoding at its own load: tokens made, and tokens that plain decoding would have made
in the same time. Their ratio is judged over a window of speculating steps. While it is off, one step in a while still
speculates, so that the ratio stays known and speculation can come back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

LEAST_STEPS, WINDOW = 200, 400
LOST = 0.97  # the ratio's upper 95 % bound below this trips
NORMAL_95 = 1.96
PROBE_EVERY = 64  # steps: more often than the rule's one in 256
BACK_AFTER = 8  # probes, whose ratio must reach 1


@dataclass(slots=True)
class Guard:
    """tripped: speculation is off. reason: why, in words for logs and metrics; "" while it is on."""

    tripped: bool = False
    reason: str = ""
    trips: int = 0
    _made: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _since: int = 0

    def allows(self) -> bool:
        """Whether this step may speculate."""
        return not self.tripped or self._since % PROBE_EVERY == PROBE_EVERY - 1

    def observe(self, *, speculated: bool, tokens: float, plain_tokens: float, predicted: float) -> None:
        """One step is over. predicted: the ratio that the cost and acceptance models expected of it."""
        self._since += 1
        if speculated and plain_tokens > 0:
            self._made.append((tokens, plain_tokens))
            if self.tripped:
                self._come_back()
            elif len(self._made) >= LEAST_STEPS:
                self._judge(predicted)

    def ratio(self) -> tuple[float, float]:
        """Realised over plain in the window, and half the width of its 95 % interval."""
        made = np.array(self._made, dtype=np.float64).reshape(-1, 2)
        if len(made) < 2:
            return 1.0, float("inf")
        ratio = made[:, 0].sum() / made[:, 1].sum()
        spread = np.std(made[:, 0] - ratio * made[:, 1], ddof=1) * np.sqrt(len(made))
        return float(ratio), float(NORMAL_95 * spread / made[:, 1].sum())

    def _judge(self, predicted: float) -> None:
        ratio, half = self.ratio()
        if ratio + half >= LOST:
            return
        self.tripped, self.trips, self._since = True, self.trips + 1, 0
        self.reason = (
            f"speculation made {ratio:.2f}x (+-{half:.2f}) the tokens of plain decoding in {len(self._made)} steps, "
            f"where the cost and acceptance models expected {predicted:.2f}x"
        )
        self._made.clear()

    def _come_back(self) -> None:
        if len(self._made) >= BACK_AFTER and sum(t - plain for t, plain in list(self._made)[-BACK_AFTER:]) >= 0:
            self.tripped, self.reason, self._since = False, "", 0
            self._made.clear()
