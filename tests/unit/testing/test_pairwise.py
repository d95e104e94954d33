from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from draftwing.testing.pairwise import Row, every_row, pairwise

FACTORS: dict[str, Sequence[Any]] = {
    "k": range(9),
    "width": (1, 2, 3),
    "batch": (1, 2, 5, 8),
    "greedy": (True, False),
    "chunk": (1, 3, 64),
}


def pairs(rows: Iterable[Row], factors: Mapping[str, Sequence[Any]]) -> set[tuple[str, Any, str, Any]]:
    return {(a, row[a], b, row[b]) for row in rows for a, b in combinations(factors, 2)}


def test_covers_every_pair_in_few_rows() -> None:
    rows = pairwise(FACTORS)
    wanted = {(a, x, b, y) for a, b in combinations(FACTORS, 2) for x, y in product(FACTORS[a], FACTORS[b])}
    assert pairs(rows, FACTORS) == wanted
    assert len(rows) <= 45  # at least 9 * 4 = 36; all combinations are 648


def test_leaving_out_a_row_leaves_out_a_pair() -> None:
    rows = pairwise(FACTORS)
    assert pairs(rows[1:], FACTORS) != pairs(rows, FACTORS)


def test_same_rows_every_time() -> None:
    assert pairwise(FACTORS) == pairwise(FACTORS)


def test_rows_that_make_no_sense_never_appear_and_the_rest_is_covered() -> None:
    def sensible(row: Row) -> bool:
        return not (row["k"] == 0 and row["width"] > 1)

    rows = pairwise(FACTORS, sensible)
    assert all(sensible(row) for row in rows)
    assert pairs(rows, FACTORS) == pairs(every_row(FACTORS, sensible), FACTORS)


def test_one_factor_and_none() -> None:
    assert pairwise({"k": (1, 2)}) == [{"k": 1}, {"k": 2}]
    with pytest.raises(ValueError, match="every factor needs a value"):
        pairwise({"k": ()})
