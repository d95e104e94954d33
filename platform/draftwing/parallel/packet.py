"""What rank 0 tells the other ranks in a step: one packed integer tensor, from which they rebuild the whole forward.

Block tables go as what is new since the packet before: a sequence that was in it names its place there and sends only
blocks it has gained. Cache rows that were moved since travel with the next step, which is the first to read them.

int32 words: kind, sequences, rows, moves; then a sequence's place in the packet before (-1: none), committed rows, own
rows, wanted rows times two plus one where the rows are a tree, blocks kept; then tokens; parents of trees; new blocks;
sources and targets of moves. That is at most 16 bytes a row (token, parent, a move), 20 a sequence, 4 a new block, and
16.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from draftwing.core import IntArray
from draftwing.engine.batch import SequenceRows, chain_parents

Words = npt.NDArray[np.int32]
STEP, STOP = 1, 2
HEAD, PER_SEQUENCE = 4, 5


@dataclass(frozen=True, slots=True)
class Step:
    """moves: source and target cache rows [2, M], to be copied before the forward."""

    sequences: list[SequenceRows]
    moves: IntArray


@dataclass(slots=True)
class Packer:
    """Rank 0's end. block_tokens: rows of a block, by which slots are told from block numbers.

    tables: by sequence, its place in the packet before and its blocks then.
    """

    block_tokens: int
    tables: dict[int, tuple[int, IntArray]] = field(default_factory=dict)

    def pack(self, sequences: Seq[SequenceRows], moves: IntArray) -> Words:
        head, trees, fresh = [], [], []
        tables: dict[int, tuple[int, IntArray]] = {}
        for i, rows in enumerate(sequences):
            table = rows.slots[:: self.block_tokens] // self.block_tokens
            place, before = self.tables.get(rows.key, (-1, table[:0]))
            kept = _shared(before, table)
            tree = not np.array_equal(rows.parents, chain_parents(len(rows.tokens)))
            head.append((place, rows.kv_len, len(rows.tokens), 2 * rows.wanted + tree, kept))
            trees += [rows.parents] if tree else []
            fresh.append(table[kept:])
            if rows.key >= 0:
                tables[rows.key] = i, table
        self.tables = tables
        count = sum(len(rows.tokens) for rows in sequences)
        start = np.array([STEP, len(sequences), count, moves.shape[1]], dtype=np.int64)
        tokens = [rows.tokens for rows in sequences]
        parts = [start, np.array(head, dtype=np.int64).reshape(-1), *tokens, *trees, *fresh, moves.reshape(-1)]
        return np.concatenate(parts).astype(np.int32)


def _shared(before: IntArray, table: IntArray) -> int:
    """How many blocks two tables begin with alike."""
    size = min(len(before), len(table))
    differ = np.flatnonzero(before[:size] != table[:size])
    return int(differ[0]) if len(differ) else size


@dataclass(slots=True)
class Unpacker:
    """The other ranks' end."""

    block_tokens: int
    tables: list[IntArray] = field(default_factory=list)

    def unpack(self, words: Words) -> Step | None:
        """None: rank 0 has stopped."""
        kind, count, rows, moves = (int(word) for word in words[:HEAD])
        if kind == STOP:
            return None
        head = words[HEAD : HEAD + PER_SEQUENCE * count].reshape(count, PER_SEQUENCE).astype(np.int64)
        at = HEAD + PER_SEQUENCE * count
        gained = -(-(head[:, 1] + head[:, 2]) // self.block_tokens) - head[:, 4]
        sizes = [rows, int(head[head[:, 3] & 1 == 1, 2].sum()), int(gained.sum()), 2 * moves]
        tokens, parents, fresh, moved = np.split(words[at : at + sum(sizes)].astype(np.int64), np.cumsum(sizes)[:-1])
        sequences, tables = [], []
        for (place, kv_len, own, wanted, kept), new in zip(head.tolist(), gained.tolist(), strict=True):
            table = np.concatenate([self.tables[place][:kept] if kept else fresh[:0], fresh[:new]])
            fresh = fresh[new:]
            above = parents[:own] if wanted & 1 else chain_parents(own)
            parents = parents[own:] if wanted & 1 else parents
            slots = (table[:, None] * self.block_tokens + np.arange(self.block_tokens)).reshape(-1)[: kv_len + own]
            sequences.append(SequenceRows(tokens[:own], above, slots, kv_len, wanted >> 1))
            tokens = tokens[own:]
            tables.append(table)
        self.tables = tables
        return Step(sequences, moved.reshape(2, -1))


def stop_packet() -> Words:
    return np.array([STOP, 0, 0, 0], dtype=np.int32)
