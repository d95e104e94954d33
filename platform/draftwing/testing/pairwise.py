"""Pairwise covering arrays: every pair of values of two factors meets in some row, in few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]
Pair = tuple[int, int, int, int]  # factor, value index, later factor, value index


def every_row(factors: Mapping[str, Sequence[Any]], sensible: Callable[[Row], bool] | None = None) -> Iterator[Row]:
    """All combinations, in the order of the factors."""
    for values in product(*factors.values()):
        row = dict(zip(factors, values, strict=True))
        if sensible is None or sensible(row):
            yield row


def pairwise(factors: Mapping[str, Sequence[Any]], sensible: Callable[[Row], bool] | None = None) -> list[Row]:
    """Rows that cover every pair of values at least once; the same rows for the same factors.

    sensible: whether a whole row makes sense; pairs that no sensible row contains are left out. Greedy: each row starts
    from an uncovered pair and takes, factor by factor, the value that covers most.
    """
    names, sizes = list(factors), [len(values) for values in factors.values()]
    if not names or 0 in sizes:
        raise ValueError(f"every factor needs a value; got {dict(factors)!r}")

    def named(chosen: Sequence[int]) -> Row:
        return {name: factors[name][i] for name, i in zip(names, chosen, strict=True)}

    if len(names) == 1:
        return list(every_row(factors, sensible))
    # A dict for its order: the first uncovered pair is the same one in every run.
    uncovered: dict[Pair, None] = {
        (a, i, b, j): None
        for a, b in combinations(range(len(names)), 2)
        for i in range(sizes[a])
        for j in range(sizes[b])
    }
    rows = []
    while uncovered:
        seed = next(iter(uncovered))
        chosen = _complete(seed, sizes, uncovered, lambda c: sensible is None or sensible(named(c)))
        if chosen is None:
            del uncovered[seed]
            continue
        rows.append(named(chosen))
        for a, b in combinations(range(len(names)), 2):
            uncovered.pop((a, chosen[a], b, chosen[b]), None)
    return rows


def _complete(
    seed: Pair, sizes: Sequence[int], uncovered: Mapping[Pair, None], allowed: Callable[[Sequence[int]], bool]
) -> list[int] | None:
    """The row around `seed` that covers most by greedy choice, backtracking where a choice makes no sense."""
    fixed = {seed[0]: seed[1], seed[2]: seed[3]}
    order = [f for f in range(len(sizes)) if f not in fixed]

    def gain(factor: int, value: int, chosen: Mapping[int, int]) -> int:
        pairs = ((o, v, factor, value) if o < factor else (factor, value, o, v) for o, v in chosen.items())
        return sum(pair in uncovered for pair in pairs)

    def extend(depth: int, chosen: dict[int, int]) -> list[int] | None:
        if depth == len(order):
            whole = [chosen[f] for f in range(len(sizes))]
            return whole if allowed(whole) else None
        factor = order[depth]
        for value in sorted(range(sizes[factor]), key=lambda v: -gain(factor, v, chosen)):
            row = extend(depth + 1, {**chosen, factor: value})
            if row is not None:
                return row
        return None

    return extend(0, fixed)
