"""`draftwing bench acceptance`: what a rate by position counts."""

from __future__ import annotations

from draftwing.commands.bench import _positions


def test_a_position_counts_where_the_draft_got_there_and_all_before_was_accepted() -> None:
    rows = _positions([(3, 3), (3, 1), (3, 0), (1, 1)])
    assert [(row["position"], row["reached"], row["accepted"]) for row in rows] == [(1, 4, 3), (2, 2, 1), (3, 1, 1)]
    assert [row["rate"] for row in rows] == [0.75, 0.5, 1.0]


def test_nothing_drafted_is_said() -> None:
    assert _positions([]) == [{"position": 0, "reached": 0, "accepted": 0, "rate": None}]
