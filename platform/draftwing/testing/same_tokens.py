"""R1 as an assertion: another way of decoding gave the tokens of plain decoding.

On golden and tiny targets that means exactly. On real models different shapes and kernels flip near-ties, so there a
difference is excused where plain decoding itself was undecided, and only rarely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NEAR_TIE = 1e-3
TIES_PER_10_000 = 3

Gap = Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a sequence first differs; None where one of the two had ended. gap: plain's, None if not asked for."""

    sequence: int
    position: int
    plain: int | None
    other: int | None
    gap: float | None

    def __str__(self) -> str:
        names = ["the end" if token is None else str(token) for token in (self.plain, self.other)]
        gap = "" if self.gap is None else f" (plain's gap {self.gap:.2g})"
        return f"sequence {self.sequence}, token {self.position}: {names[1]} where plain decoding has {names[0]}{gap}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared. tokens: output tokens found equal, plus one for each difference.

    near_ties: excused differences. faults: the others. allowed: near-ties this many tokens may have.
    """

    sequences: int
    tokens: int
    near_ties: tuple[Difference, ...]
    faults: tuple[Difference, ...]
    allowed: int

    @property
    def identical(self) -> bool:
        return not self.near_ties and not self.faults

    @property
    def passed(self) -> bool:
        return not self.faults and len(self.near_ties) <= self.allowed

    def __str__(self) -> str:
        text = f"{self.tokens} tokens of {self.sequences} sequences compared"
        if self.identical:
            return f"{text}: identical"
        text += f": {len(self.faults)} wrong, {len(self.near_ties)} near-ties (at most {self.allowed} allowed)"
        return "\n  ".join([text, *map(str, (self.faults + self.near_ties)[:10])])


def compare_tokens(
    plain: Sequence[Sequence[int]], other: Sequence[Sequence[int]], *, near_tie: Gap | None = None
) -> Comparison:
    """Compare output tokens, sequence by sequence, each up to its first difference.

    near_tie: None: every difference is a fault. Else (sequence, position) -> plain's gap there: how far its choice was
    from another (noise included, or to a cut, or between routed experts); asked only where tokens differ. Below 1e-3
    the difference is a near-tie, of which three are allowed in every 10,000 tokens begun. A sequence that ends early
    or late without a differing token is always a fault: an end is decided by tokens, not by logits.
    """
    if len(plain) != len(other):
        raise ValueError(f"plain has {len(plain)} sequences, other has {len(other)}")
    ties: list[Difference] = []
    faults: list[Difference] = []
    tokens = 0
    for index, (a, b) in enumerate(zip(plain, other, strict=True)):
        equal = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        tokens += equal
        if equal == len(a) == len(b):
            continue
        tokens += 1
        ended = equal in (len(a), len(b))
        gap = None if near_tie is None or ended else near_tie(index, equal)
        one = Difference(index, equal, a[equal] if equal < len(a) else None, b[equal] if equal < len(b) else None, gap)
        excused = gap is not None and math.isfinite(gap) and gap < NEAR_TIE
        (ties if excused else faults).append(one)
    allowed = 0 if near_tie is None else TIES_PER_10_000 * math.ceil(tokens / 10_000)
    return Comparison(len(plain), tokens, tuple(ties), tuple(faults), allowed)


def assert_same_tokens(
    plain: Sequence[Sequence[int]], other: Sequence[Sequence[int]], *, near_tie: Gap | None = None
) -> Comparison:
    """`compare_tokens`, and an AssertionError that lists the differences where the rule is broken."""
    comparison = compare_tokens(plain, other, near_tie=near_tie)
    if not comparison.passed:
        raise AssertionError(str(comparison))
    return comparison
