"""A ragged batch: the rows of all sequences of one step, described by integers alone.

Integers alone, because a rank that shares the model must be able to rebuild the whole forward from one packed tensor.

Shapes: B sequences, N rows in the ragged batch, R rows of the longest sequence of a group, S slots of its longest
context.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows one sequence brings to a step: a prefill chunk (a chain), or the root and the nodes of its draft.

    tokens [n]: token of each row. parents [n]: row this row follows, -1 for the first; parents precede children.
    slots [kv_len + n]: cache slots of the committed rows, then of these rows. kv_len: committed rows in the cache.
    wanted: the last `wanted` rows return logits. key: the same for one sequence in every step, -1 where nobody says.
    """

    tokens: IntArray
    parents: IntArray
    slots: IntArray
    kv_len: int
    wanted: int
    key: int = -1

    def __post_init__(self) -> None:
        if len(self.slots) != self.kv_len + len(self.tokens) or len(self.parents) != len(self.tokens):
            raise ValueError(
                f"slots has {len(self.slots)} entries and parents {len(self.parents)}; "
                f"expected {self.kv_len + len(self.tokens)} and {len(self.tokens)}"
            )


def chain_parents(count: int) -> IntArray:
    """Parents of a chain: [-1, 0, 1, ...]."""
    return np.arange(-1, count - 1, dtype=np.int64)


def ancestry(parents: IntArray) -> tuple[IntArray, BoolArray]:
    """Depth of each row and who its ancestors are, for one or several padded trees at once.

    parents [..., R] (-1 at a root) -> depths [..., R], ancestors [..., R, R] with [..., i, j] true where row j is row i
    or an ancestor of it. One array operation per depth, none per node.
    """
    rows = parents.shape[-1]
    ancestors = np.broadcast_to(np.eye(rows, dtype=np.bool_), (*parents.shape, rows)).copy()
    depths = np.zeros(parents.shape, dtype=np.int64)
    current = parents
    while (alive := current >= 0).any():
        depths += alive
        where = np.nonzero(alive)
        ancestors[(*where, current[where])] = True
        current = np.where(alive, np.take_along_axis(parents, np.maximum(current, 0), axis=-1), -1)
    return depths, ancestors


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences attended together, padded to R rows and S slots.

    rows [G, R]: index of each row in the batch, padding repeats the sequence's first row. real [G, R]: not padding.
    slots [G, S]: cache slots, padding repeats the first. visible [G, R, S]. query_pos [G, R], key_pos [G, S].
    """

    rows: IntArray
    real: BoolArray
    slots: IntArray
    visible: BoolArray
    query_pos: IntArray
    key_pos: IntArray


def within(group: Group, window: int) -> Group:
    """The group as layers see it whose rows see `window` positions, themselves included: older slots are left out."""
    length = group.query_pos[:, :1] + group.real.sum(1)[:, None]  # row 0 has the earliest position, the slots before it
    first = np.maximum(group.query_pos[:, :1] + 1 - window, 0)
    index = first + np.arange(int((length - first).max()))
    inside = index < group.slots.shape[1]
    index = np.minimum(index, group.slots.shape[1] - 1)
    key_pos = np.take_along_axis(group.key_pos, index, axis=1)
    visible = np.take_along_axis(group.visible, np.broadcast_to(index[:, None], (*group.rows.shape, index.shape[1])), 2)
    visible &= inside[:, None] & (key_pos[:, None] > group.query_pos[:, :, None] - window)
    slots = np.take_along_axis(group.slots, index, axis=1)
    return Group(group.rows, group.real, slots, visible, group.query_pos, key_pos)


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """tokens, positions, write_slots [N]; wanted: batch indexes of the rows whose logits are returned."""

    tokens: IntArray
    positions: IntArray
    write_slots: IntArray
    wanted: IntArray
    groups: tuple[Group, ...]


# A chain longer than this is attended alone: padding it with short drafts would waste most of the product.
LONG_ROWS = 32


def _group(members: list[SequenceRows], starts: list[int]) -> tuple[Group, list[IntArray]]:
    """Pad the members into one Group; also return the unpadded positions of each member's rows."""
    counts = [len(m.tokens) for m in members]
    most, longest = max(counts), max(len(m.slots) for m in members)
    shape = (len(members), most)
    parents = np.full(shape, -1, dtype=np.int64)
    rows = np.empty(shape, dtype=np.int64)
    slots = np.empty((len(members), longest), dtype=np.int64)
    kv_len = np.array([m.kv_len for m in members], dtype=np.int64)[:, None]
    for i, (member, start) in enumerate(zip(members, starts, strict=True)):
        count = counts[i]
        parents[i, :count] = member.parents
        rows[i] = start
        rows[i, :count] += np.arange(count)
        slots[i, : len(member.slots)] = member.slots
        slots[i, len(member.slots) :] = member.slots[0]
    depths, ancestors = ancestry(parents)
    query_pos = kv_len + depths
    key_pos = np.arange(longest, dtype=np.int64)[None, :].repeat(len(members), 0)
    visible = np.ones((*shape, longest), dtype=np.bool_)
    draft = slice(int(kv_len.min()), None)  # the slots before are committed ones of all
    draft_row = key_pos[:, draft] - kv_len  # which of the sequence's own rows a slot belongs to; negative: committed
    in_draft = (draft_row >= 0) & (draft_row < most)
    own = np.minimum(np.maximum(draft_row, 0), most - 1)
    which = np.arange(len(members))[:, None]
    key_pos[:, draft] = np.where(in_draft, query_pos[which, own], key_pos[:, draft])
    seen = ancestors[which[:, None], np.arange(most)[:, None], own[:, None, :]]
    visible[..., draft] = (seen & in_draft[:, None, :]) | (draft_row < 0)[:, None, :]
    real = np.arange(most)[None, :] < np.array(counts)[:, None]
    group = Group(rows, real, slots, visible, query_pos, key_pos)
    return group, [query_pos[i, : counts[i]] for i in range(len(members))]


def build(sequences: Seq[SequenceRows]) -> RaggedBatch:
    """Lay the sequences' rows end to end. Short row sets share one padded group, long ones get one each."""
    starts = np.cumsum([0] + [len(s.tokens) for s in sequences]).tolist()
    short = [i for i, s in enumerate(sequences) if len(s.tokens) <= LONG_ROWS]
    buckets = ([short] if short else []) + [[i] for i, s in enumerate(sequences) if len(s.tokens) > LONG_ROWS]
    positions: list[IntArray] = [np.empty(0, dtype=np.int64)] * len(sequences)
    groups = []
    for bucket in buckets:
        group, where = _group([sequences[i] for i in bucket], [starts[i] for i in bucket])
        groups.append(group)
        for i, pos in zip(bucket, where, strict=True):
            positions[i] = pos
    ends = starts[1:]
    wanted = [np.arange(end - s.wanted, end, dtype=np.int64) for s, end in zip(sequences, ends, strict=True)]
    return RaggedBatch(
        tokens=np.concatenate([s.tokens for s in sequences]),
        positions=np.concatenate(positions),
        write_slots=np.concatenate([s.slots[s.kv_len :] for s in sequences]),
        wanted=np.concatenate(wanted),
        groups=tuple(groups),
    )
