"""Blocks: none lost, none held twice, slots in token order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwing.engine.kv_cache import BlockPool


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=60),
)
def test_blocks_add_up_under_any_use(blocks: int, block_tokens: int, uses: list[tuple[int, int, bool]]) -> None:
    pool = BlockPool(blocks, block_tokens)
    tables: list[list[int]] = [[] for _ in range(4)]
    for which, tokens, release in uses:
        table = tables[which]
        before = list(table)
        if release:
            pool.release(table)
        elif pool.grow(table, tokens):
            assert table[: len(before)] == before
            assert len(table) == max(len(before), pool.blocks_for(tokens))
        else:
            assert table == before
            assert pool.blocks_for(tokens) - len(before) > pool.free
        pool.check(tables)


def test_slots_follow_the_table() -> None:
    pool = BlockPool(8, 2)
    first: list[int] = []
    second: list[int] = []
    assert pool.grow(first, 2)
    assert pool.grow(second, 1)
    assert pool.grow(first, 3)
    assert first == [0, 2]
    assert pool.slots(first, 3).tolist() == [0, 1, 4]


def test_a_sequence_alone_stays_contiguous() -> None:
    pool = BlockPool(16, 4)
    table: list[int] = []
    for tokens in range(1, 60):
        assert pool.grow(table, tokens)
    assert (np.diff(pool.slots(table, 59)) == 1).all()


def test_a_block_that_is_lost_or_held_twice_is_noticed() -> None:
    pool = BlockPool(4, 2)
    table: list[int] = []
    pool.grow(table, 4)
    with pytest.raises(RuntimeError, match="do not add up"):
        pool.check([])
    with pytest.raises(RuntimeError, match="do not add up"):
        pool.check([table, table])


@pytest.mark.parametrize(("blocks", "block_tokens"), [(0, 1), (1, 0), (-1, 4)])
def test_an_empty_pool_is_refused(blocks: int, block_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"blocks={blocks}, block_tokens={block_tokens}"):
        BlockPool(blocks, block_tokens)
