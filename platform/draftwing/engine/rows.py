"""Lays a step out as rows: prefill chunks and drafts for the forward, and the wanted rows for choosing and the walk.

Shapes: M wanted rows (rows whose next token is chosen: roots, draft nodes, last rows of finished prompts), B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftwing.core import DraftTree, IntArray
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.processors import SampleRows
from draftwing.engine.scheduler import Schedule
from draftwing.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Layout:
    """sequences [B] and batch [B] run side by side; the arrays are over the M wanted rows.

    owner [M]: index of the row's sequence. starts [B]: first wanted row of each sequence. tokens [M]. parents [M]: the
    wanted row each follows, a root's is itself. depths [M]: 0 at a root. path_rows, path_tokens [E]: each row's own
    draft tokens from itself up, roots excluded.
    """

    sequences: list[Sequence]
    batch: list[SequenceRows]
    owner: IntArray
    starts: IntArray
    tokens: IntArray
    parents: IntArray
    depths: IntArray
    path_rows: IntArray
    path_tokens: IntArray

    @property
    def count(self) -> int:
        return sum(len(rows.tokens) for rows in self.batch)

    @property
    def context(self) -> int:
        return sum(rows.kv_len for rows in self.batch)

    def split(self, rows: IntArray) -> list[IntArray]:
        """Ascending wanted rows, per sequence."""
        return np.split(rows, np.searchsorted(rows, self.starts[1:]))

    def sample_rows(self) -> SampleRows:
        """How each wanted row's token is to be chosen."""
        lengths = np.array([len(s.tokens) for s in self.sequences], dtype=np.int64)
        return SampleRows(
            sequences=[s.sampler for s in self.sequences],
            seq_of_row=self.owner,
            positions=lengths[self.owner] + self.depths,
            path_rows=self.path_rows,
            path_tokens=self.path_tokens,
        )


def lay_out(schedule: Schedule, drafts: list[DraftTree], pool: BlockPool) -> Layout:
    """Rows of the decoding sequences with their drafts, then of the prefill chunks; holds blocks for draft rows."""
    sequences, batch = [], []
    for sequence, draft in zip(schedule.decoding, drafts, strict=True):
        tokens = np.concatenate([np.array(sequence.tokens[-1:], dtype=np.int64), draft.tokens])
        parents = np.concatenate([np.array([-1], dtype=np.int64), draft.parents + 1])
        sequences.append(sequence)
        batch.append(_rows(sequence, tokens, parents, len(tokens), pool))
    for sequence, chunk in schedule.prefilling:
        tokens = np.array(sequence.tokens[sequence.kv_len : sequence.kv_len + chunk], dtype=np.int64)
        wanted = 1 if chunk == sequence.pending else 0
        sequences.append(sequence)
        batch.append(_rows(sequence, tokens, chain_parents(chunk), wanted, pool))
    return _wanted(sequences, batch)


def _rows(sequence: Sequence, tokens: IntArray, parents: IntArray, wanted: int, pool: BlockPool) -> SequenceRows:
    end = sequence.kv_len + len(tokens)
    if not pool.grow(sequence.table, end):
        raise RuntimeError(
            f"no cache blocks for {len(tokens)} rows of {sequence.id}; the scheduler must hold them first"
        )
    return SequenceRows(tokens, parents, pool.slots(sequence.table, end), sequence.kv_len, wanted, sequence.arrival)


def _wanted(sequences: list[Sequence], batch: list[SequenceRows]) -> Layout:
    counts = [rows.wanted for rows in batch]
    starts = np.cumsum([0, *counts])[:-1]
    owner = np.repeat(np.arange(len(batch)), counts)
    empty = np.empty(0, dtype=np.int64)
    skipped = [len(rows.tokens) - rows.wanted for rows in batch]
    tokens = np.concatenate([empty, *(r.tokens[skip:] for r, skip in zip(batch, skipped, strict=True))])
    shifts = starts - np.array(skipped, dtype=np.int64)
    parents = np.concatenate(
        [empty, *(r.parents[skip:] + shift for r, skip, shift in zip(batch, skipped, shifts, strict=True))]
    )
    roots = starts[np.array(counts, dtype=np.int64) > 0]
    parents[roots] = roots
    depths = np.zeros(len(tokens), dtype=np.int64)
    path_rows, path_tokens = [empty], [empty]
    at = np.arange(len(tokens))
    while (alive := np.flatnonzero(parents[at] != at)).size:
        path_rows.append(alive)
        path_tokens.append(tokens[at[alive]])
        depths[alive] += 1
        at = parents[at]
    path_rows_, path_tokens_ = np.concatenate(path_rows), np.concatenate(path_tokens)
    return Layout(sequences, batch, owner, starts, tokens, parents, depths, path_rows_, path_tokens_)
