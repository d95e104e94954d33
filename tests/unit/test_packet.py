"""The packed tensor by which ranks follow: whatever rank 0 lays out, the others rebuild; and it stays short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core import IntArray
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.parallel.group import FIRST_WORDS
from draftwing.parallel.packet import HEAD, PER_SEQUENCE, Packer, Unpacker, stop_packet

NO_MOVES = np.empty((2, 0), dtype=np.int64)


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """The block tables of a few sequences, by key; -1 where nobody says which sequence it is."""
    keys = draw(st.lists(st.integers(-1, 3), max_size=4, unique=True))
    return [(key, draw(st.lists(st.integers(0, 1000), min_size=1, max_size=6))) for key in keys]


@st.composite
def rows(draw: st.DrawFn, key: int, table: list[int], size: int) -> SequenceRows:
    """Rows somewhere in the table's last block or two, in a chain or a tree."""
    room = len(table) * size
    end = draw(st.integers(room - size + 1, room))
    count = draw(st.integers(1, end))
    parents = chain_parents(count)
    if draw(st.booleans()):
        parents = np.array([-1] + [draw(st.integers(0, i - 1)) for i in range(1, count)], dtype=np.int64)
    slots = (np.array(table)[:, None] * size + np.arange(size)).reshape(-1)[:end]
    tokens = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count)), dtype=np.int64)
    return SequenceRows(tokens, parents, slots, end - count, draw(st.integers(0, count)), key)


def same(one: SequenceRows, other: SequenceRows) -> bool:
    arrays = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("tokens", "parents", "slots"))
    return arrays and (one.kv_len, one.wanted) == (other.kv_len, other.wanted)


@given(data=st.data(), size=st.integers(1, 4), steps=st.integers(1, 5))
def test_what_is_packed_is_rebuilt(data: st.DataObject, size: int, steps: int) -> None:
    packer, unpacker = Packer(size), Unpacker(size)
    for _ in range(steps):
        batch = [data.draw(rows(key, table, size)) for key, table in data.draw(tables())]
        count = data.draw(st.integers(0, 5))
        moves = np.array(data.draw(st.lists(st.integers(0, 4000), min_size=2 * count, max_size=2 * count)))
        moves = moves.reshape(2, count).astype(np.int64)
        step = unpacker.unpack(packer.pack(batch, moves))
        assert step is not None
        assert np.array_equal(step.moves, moves)
        assert len(step.sequences) == len(batch)
        assert all(same(one, other) for one, other in zip(step.sequences, batch, strict=True))


def test_stopping() -> None:
    assert Unpacker(8).unpack(stop_packet()) is None


def decoding(tables: list[IntArray], kv_len: int, count: int) -> list[SequenceRows]:
    parents = np.zeros(count, dtype=np.int64)
    parents[0] = -1
    slots = [(table[:, None] * 32 + np.arange(32)).reshape(-1)[: kv_len + count] for table in tables]
    tokens = np.arange(count)
    return [SequenceRows(tokens, parents, each, kv_len, count, key) for key, each in enumerate(slots)]


@pytest.mark.parametrize(("sequences", "nodes"), [(1, 0), (1, 60), (64, 3), (256, 0), (256, 7)])
def test_a_packet_is_at_most_16_bytes_a_row_and_4_kb(sequences: int, nodes: int) -> None:
    """Long contexts, every sequence with a tree, a new block and as many moved rows as it had accepted ones."""
    blocks = [np.arange(i * 2000, i * 2000 + 1025) for i in range(sequences)]
    packer = Packer(32)
    first = packer.pack(decoding([each[:-1] for each in blocks], 32 * 1024 - 1 - nodes, nodes + 1), NO_MOVES)
    assert len(first) > 1024 * sequences  # tables that nobody has seen go whole
    moves = np.zeros((2, sequences * min(nodes, 2)), dtype=np.int64)
    words = packer.pack(decoding(blocks, 32 * 1024 - nodes, nodes + 1), moves)
    assert 4 * len(words) <= 16 * sequences * (nodes + 1) + 4096
    assert len(words) == HEAD + sequences * (PER_SEQUENCE + (nodes + 1) * (2 if nodes else 1) + 1) + moves.size


def test_a_usual_step_is_one_broadcast() -> None:
    blocks = [np.arange(i * 2000, i * 2000 + 100) for i in range(32)]
    packer = Packer(32)
    packer.pack(decoding(blocks, 3000, 5), NO_MOVES)
    assert len(packer.pack(decoding(blocks, 3003, 5), np.zeros((2, 64), dtype=np.int64))) < FIRST_WORDS
