"""Tree arithmetic: ancestry, what each row sees, and the walk, against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwing.engine.batch import SequenceRows, ancestry, build, chain_parents
from draftwing.engine.verify import accepted_rows

parents_of_a_tree = st.lists(st.integers(0, 100), max_size=12).map(
    lambda raw: [-1] + [pick % (i + 1) for i, pick in enumerate(raw)]
)


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and targets of one draft; siblings have distinct tokens."""
    parents = draw(parents_of_a_tree)
    tokens = [0] * len(parents)
    used: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if parent >= 0:
            tokens[node] = used.get(parent, 0)
            used[parent] = tokens[node] + 1
    targets = draw(st.lists(st.integers(0, 2), min_size=len(parents), max_size=len(parents)))
    return tokens, parents, targets


def walk(tokens: list[int], parents: list[int], targets: list[int]) -> list[int]:
    path = [0]
    while True:
        at = path[-1]
        follow = [n for n, p in enumerate(parents) if p == at and tokens[n] == targets[at]]
        if not follow:
            return path
        path.append(follow[0])


@given(st.lists(drafts(), min_size=1, max_size=4))
def test_the_walk_of_all_drafts_at_once_is_the_walk_of_each(
    all_drafts: list[tuple[list[int], list[int], list[int]]],
) -> None:
    tokens: list[int] = []
    parents: list[int] = []
    targets: list[int] = []
    expected: list[int] = []
    for own_tokens, own_parents, own_targets in all_drafts:
        start = len(tokens)
        expected += [start + row for row in walk(own_tokens, own_parents, own_targets)]
        tokens += own_tokens
        parents += [start + max(p, 0) for p in own_parents]
        targets += own_targets
    found = accepted_rows(np.array(tokens), np.array(parents), np.array(targets))
    assert found.tolist() == expected


@given(parents_of_a_tree)
def test_ancestry_matches_following_parents(parents: list[int]) -> None:
    depths, ancestors = ancestry(np.array(parents))
    for row in range(len(parents)):
        chain, at = [], row
        while at >= 0:
            chain.append(at)
            at = parents[at]
        assert depths[row] == len(chain) - 1
        assert np.flatnonzero(ancestors[row]).tolist() == sorted(chain)


@given(st.lists(st.tuples(parents_of_a_tree, st.integers(0, 9), st.booleans()), min_size=1, max_size=4))
def test_every_row_sees_its_context_its_ancestors_and_itself(raw: list[tuple[list[int], int, bool]]) -> None:
    sequences, free = [], 0
    for parents, kv_len, long in raw:
        own = chain_parents(40) if long else np.array(parents)
        slots = np.arange(free, free + kv_len + len(own))
        free += len(slots)
        sequences.append(SequenceRows(np.zeros(len(own), dtype=np.int64), own, slots, kv_len, len(own)))
    batch = build(sequences)
    seen: dict[int, tuple[set[int], int]] = {}
    for group in batch.groups:
        for g, r in zip(*np.nonzero(group.real), strict=True):
            row = int(group.rows[g, r])
            own_slots = group.slots[g][group.visible[g, r]]
            assert len(set(own_slots.tolist())) == len(own_slots), "padding must not be seen"
            seen[row] = set(own_slots.tolist()), int(group.query_pos[g, r])
    row = 0
    for sequence in sequences:
        for r in range(len(sequence.tokens)):
            path, at = [], r
            while at >= 0:
                path.append(at)
                at = int(sequence.parents[at])
            context = set(sequence.slots[: sequence.kv_len].tolist())
            assert seen[row] == (
                context | {int(sequence.slots[sequence.kv_len + p]) for p in path},
                sequence.kv_len + len(path) - 1,
            )
            assert batch.positions[row] == sequence.kv_len + len(path) - 1
            row += 1
