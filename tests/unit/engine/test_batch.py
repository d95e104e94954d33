"""What each row of a ragged batch sees, by definition: what is committed, and its ancestors, within a window."""

from __future__ import annotations

import numpy as np
import pytest

from draftwing.core import IntArray
from draftwing.engine.batch import Group, SequenceRows, build, chain_parents, within

DRAW = np.random.default_rng(3)


def tree(nodes: int) -> IntArray:
    """Parents of a random tree of a root and some nodes."""
    return np.array([-1, *(DRAW.integers(0, i) for i in range(1, nodes + 1))], dtype=np.int64)


def sequences(shapes: list[tuple[int, int]], *, chains: bool = False) -> list[SequenceRows]:
    """One for each (committed rows, own rows), with cache slots of its own in random order."""
    slots = DRAW.permutation(sum(kv_len + count for kv_len, count in shapes))
    found = []
    for kv_len, count in shapes:
        own, slots = slots[: kv_len + count], slots[kv_len + count :]
        parents = chain_parents(count) if chains else tree(count - 1)
        found.append(SequenceRows(np.zeros(count, dtype=np.int64), parents, own, kv_len, 1))
    return found


def seen_slots(sequence: SequenceRows, row: int, window: int | None) -> set[int]:
    path: list[int] = []
    while row >= 0:
        path.insert(0, row)
        row = int(sequence.parents[row])
    history = [*sequence.slots[: sequence.kv_len], *sequence.slots[sequence.kv_len :][path]]
    return {int(slot) for slot in (history if window is None else history[-window:])}


def seen_in(group: Group, member: int, row: int) -> list[int]:
    slots: list[int] = group.slots[member][group.visible[member, row]].tolist()
    return slots


BATCHES = {
    "one root": sequences([(9, 1)]),
    "a prompt's start": sequences([(0, 6)], chains=True),
    "a long chunk": sequences([(5, 40), (3, 2)], chains=True),
    "trees": sequences([(20, 7), (3, 1), (0, 4), (50, 3), (11, 12)]),
    "roots": sequences([(30, 1), (2, 1), (17, 1)]),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("window", [None, 1, 2, 5, 12, 1000])
def test_rows_see_their_own_past(name: str, window: int | None) -> None:
    batch = BATCHES[name]
    starts = np.cumsum([0, *(len(s.tokens) for s in batch)])
    checked = 0
    for group in build(batch).groups:
        seen = group if window is None else within(group, window)
        for member, first in enumerate(group.rows[:, 0].tolist()):
            sequence = batch[starts.tolist().index(first)]
            for row in range(len(sequence.tokens)):
                assert group.rows[member, row] == first + row
                slots = seen_in(seen, member, row)
                assert len(slots) == len(set(slots))
                assert set(slots) == seen_slots(sequence, row, window)
                checked += 1
    assert checked == starts[-1]


def test_positions_follow_depth() -> None:
    batch = build([SequenceRows(np.zeros(4, dtype=np.int64), np.array([-1, 0, 0, 2]), np.arange(14), 10, 4)])
    assert batch.positions.tolist() == [10, 11, 11, 12]
    assert batch.write_slots.tolist() == [10, 11, 12, 13]


def test_a_window_leaves_older_slots_out() -> None:
    """A sequence of each context length reads its window and its own rows, not the longest context."""
    group = build(sequences([(900, 5), (40, 3), (2, 1)])).groups[0]
    assert group.slots.shape == (3, 905)
    assert within(group, 16).slots.shape == (3, 15 + 5)
    assert within(group, 2000).slots.shape == (3, 905)
