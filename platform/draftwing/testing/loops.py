"""Text that loops: a small base model repeats itself, and lookup drafters look better on it than on real text."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 32
REPEATS = 3


def loop_start(tokens: Sequence[int]) -> int | None:
    """Where the tokens begin to repeat with one period to their very end, at least three times; None if they don't."""
    earliest: int | None = None
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // REPEATS) + 1):
        at = len(tokens) - 1
        while at >= period and tokens[at] == tokens[at - period]:
            at -= 1
        start = at - period + 1
        if len(tokens) - start >= REPEATS * period and (earliest is None or start < earliest):
            earliest = start
    return earliest


def loops(tokens: Sequence[int]) -> bool:
    """At least a third of the tokens are one repeating stretch at the end."""
    start = loop_start(tokens)
    return start is not None and len(tokens) - start >= len(tokens) / REPEATS
