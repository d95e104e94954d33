"""Blocks found again: by content and salt, as long as they should be, evicted in the right order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core import Request, SamplingParams
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.prefix_cache import extend_chain
from draftwing.engine.step import Engine
from draftwing.testing.drafters import OracleDrafter
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.plain_loop import plain_decode
from draftwing.testing.run_engine import Received, make_engine, run_to_end

BLOCK = 4


def chain_of(tokens: Sequence[int], salt: str = "", block_tokens: int = BLOCK) -> list[bytes]:
    return extend_chain([], salt, list(tokens), block_tokens, len(tokens) // block_tokens)


def held(pool: BlockPool, tokens: Sequence[int]) -> list[int]:
    """A table that ran these tokens, with what it found in the cache."""
    table: list[int] = []
    chain = chain_of(tokens, block_tokens=pool.block_tokens)
    pool.share(table, pool.find(chain))
    assert pool.grow(table, len(tokens))
    for block, digest in zip(table, chain, strict=False):
        pool.keep(block, digest)
    return table


@given(
    st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9), st.sampled_from(["", "a", "é"])
)
def test_a_digest_stands_for_salt_and_all_tokens_so_far(first: list[int], second: list[int], salt: str) -> None:
    """Blocks of two tokens: chains agree exactly as far as the tokens do, and nowhere under another salt."""
    one, other = chain_of(first, salt, 2), chain_of(second, salt, 2)
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        assert (a == b) == (first[: 2 * i + 2] == second[: 2 * i + 2])
    assert not set(one) & set(chain_of(second, salt + "x", 2))
    assert len(set(one)) == len(one)


def test_a_chain_grows_with_its_tokens() -> None:
    tokens = list(range(11))
    chain = extend_chain([], "s", tokens[:5], BLOCK, 1)
    assert extend_chain(chain, "s", tokens, BLOCK, 2) == chain_of(tokens, "s")


@given(
    st.integers(1, 10),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 16), st.booleans()), max_size=50),
)
def test_blocks_add_up_and_never_lie(blocks: int, uses: list[tuple[int, int, int, bool]]) -> None:
    """Four tables run one of three texts to some length, or end. What is found was written for these tokens."""
    pool = BlockPool(blocks, 2)
    texts = [[0] * 16, [0] * 6 + [1] * 10, [2] * 16]
    tables: list[list[int]] = [[] for _ in range(4)]
    content: dict[int, bytes] = {}  # what a block holds, kept by us
    for which, text, length, end in uses:
        table, tokens = tables[which], texts[text][:length]
        pool.release(table)
        chain = chain_of(tokens, block_tokens=2)
        found = pool.find(chain)
        assert [content[block] for block in found] == chain[: len(found)]
        fits = pool.blocks_for(length) - len(found) + pool.idle(found) <= pool.free
        pool.share(table, found)
        assert pool.grow(table, length) == fits
        new = [block for block in table if block not in found]
        pool.check_writable(new)
        if fits:
            for block in new:
                content.pop(block, None)
            for block, digest in zip(table, chain, strict=False):
                content[block] = digest
                pool.keep(block, digest)
            assert len(pool.find(chain)) == len(chain)
        if end or not fits:
            pool.release(table)
        pool.check(tables)
    for table in tables:
        pool.release(table)
    pool.check([])
    assert pool.free == blocks


def test_blank_blocks_go_first_then_the_least_recently_used() -> None:
    pool = BlockPool(6, BLOCK)
    for text in ([1] * 8, [2] * 8):
        pool.release(held(pool, text))
    pool.release(held(pool, [1] * 8))  # used again
    table: list[int] = []
    assert pool.grow(table, 2 * BLOCK)
    assert pool.cached == 4, "two blocks were blank"
    assert pool.grow(table, 3 * BLOCK)
    assert len(pool.find(chain_of([2] * 8))) == 1, "the end of a text goes before its beginning"
    assert pool.grow(table, 4 * BLOCK)
    assert pool.find(chain_of([2] * 8)) == []
    assert len(pool.find(chain_of([1] * 8))) == 2
    assert not pool.grow(table, 7 * BLOCK)
    assert pool.cached == 2, "a refusal evicts nothing"
    pool.check([table])


def test_tables_stay_in_a_row_also_where_every_block_is_cached() -> None:
    """A table in a row is read without a copy. Strictly by age none of these would be."""
    pool, draw = BlockPool(512, BLOCK), np.random.default_rng(0)
    in_a_row: list[bool] = []
    for text in range(100):
        length = int(draw.integers(20, 160))
        table: list[int] = []
        for tokens in range(8, length, 4):
            assert pool.grow(table, tokens)
        for block, digest in zip(table, chain_of([text] * length), strict=False):
            pool.keep(block, digest)
        if text > 30:
            in_a_row.append(bool((np.diff(table) == 1).all()))
        pool.release(table)
    assert pool.cached > 500
    assert np.mean(in_a_row) > 0.5


def test_what_was_used_lately_is_evicted_only_in_turn() -> None:
    """Also where it lies right behind a growing table."""
    pool = BlockPool(32, 1)
    tables = [held(pool, [text] * 8) for text in range(4)]
    assert [table[0] for table in tables] == [0, 8, 16, 24]
    growing = tables.pop(1)
    for table in (tables[0], tables[2], tables[1]):
        pool.release(table)
    assert pool.grow(growing, 16)
    found = [len(pool.find(chain_of([text] * 8, block_tokens=1))) for text in range(4)]
    assert found == [0, 8, 8, 8], "the text behind it stays, the one that was released first goes"


def test_held_blocks_are_never_evicted() -> None:
    pool = BlockPool(3, BLOCK)
    first = held(pool, [1] * 8)
    second = held(pool, [1] * 8)
    assert first == second
    pool.release(first)
    table: list[int] = []
    assert pool.free == 1
    assert not pool.grow(table, 2 * BLOCK)
    assert pool.grow(table, BLOCK)
    pool.check([second, table])


def test_forgotten_blocks_are_blank_once_released() -> None:
    pool = BlockPool(3, BLOCK)
    table = held(pool, [1] * 8)
    pool.forget(table)
    assert pool.find(chain_of([1] * 8)) == []
    pool.release(table)
    assert pool.cached == 0
    pool.check([])


def test_a_damaged_cache_is_noticed() -> None:
    pool = BlockPool(4, BLOCK)
    table = held(pool, [1] * 8)
    with pytest.raises(RuntimeError, match="may be written"):
        pool.check_writable(table)
    pool.release(list(table))
    with pytest.raises(RuntimeError, match="do not add up"):
        pool.check([table])


# The engine on the mock target.


def target(blocks: int = 256, **behaviour: object) -> MockTarget:
    return MockTarget(MockBehaviour(vocab_size=32, order=2, **behaviour), slots=blocks * BLOCK)  # type: ignore[arg-type]


def request(name: str, prompt: Sequence[int], tokens: int = 9, salt: str = "", **params: object) -> Request:
    return Request(name, list(prompt), SamplingParams(max_tokens=tokens, temperature=0, **params), salt=salt)  # type: ignore[arg-type]


def plain(target: MockTarget, one: Request) -> list[int]:
    return plain_decode(target, one.prompt_ids, one.params, choice=one.choice).tokens


def served(engine: Engine, one: Request) -> tuple[Received, int]:
    """What it got, and the prompt rows that were run for it."""
    before = sum(record.prefill_rows for record in engine.records)
    received = run_to_end(engine, [one])[one.id]
    assert isinstance(engine.runner, MockTarget)
    assert received.tokens == plain(engine.runner, one)
    return received, sum(record.prefill_rows for record in engine.records) - before


PROMPT = [5, 3, 9, 1, 7, 7, 2, 8, 4, 4, 6, 0, 1]


@pytest.mark.parametrize("length", range(1, 14))
def test_a_repeated_prompt_runs_only_what_is_no_full_block(length: int) -> None:
    """Never the whole prompt: its last token is run, for its logits."""
    engine, prompt = make_engine(target(), block_tokens=BLOCK), PROMPT[:length]
    assert served(engine, request("cold", prompt))[0].cached_tokens == 0
    received, rows = served(engine, request("warm", prompt))
    assert received.cached_tokens == (length - 1) // BLOCK * BLOCK
    # One token left decodes: it counts as a root, not as prompt.
    left = length - received.cached_tokens
    assert rows == (left if left > 1 else 0)
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (2 * length, received.cached_tokens)


@pytest.mark.parametrize("branching", [(), (1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_the_next_turn_finds_prompt_and_output(branching: tuple[int, ...], accuracy: float) -> None:
    """All rows that were committed, however they came about; the last output token has none."""
    model = target()
    first = request("first", PROMPT, tokens=14)
    output = plain(model, first)
    drafter = OracleDrafter({tuple(PROMPT): output}, accuracy)
    engine = make_engine(model, drafter=drafter, branching=branching, block_tokens=BLOCK)
    served(engine, first)
    second = request("second", [*PROMPT, *output, 3, 3], tokens=1)
    received, _ = served(engine, second)
    assert received.cached_tokens == (len(PROMPT) + len(output) - 1) // BLOCK * BLOCK


def test_equal_prompts_under_other_salts_are_not_found() -> None:
    engine = make_engine(target(), block_tokens=BLOCK)
    for salt in ("", "a", "b"):
        received, rows = served(engine, request(f"of {salt!r}", PROMPT, salt=salt))
        assert (received.cached_tokens, rows) == (0, len(PROMPT))
    assert served(engine, request("again", PROMPT, salt="a"))[0].cached_tokens == 12


def test_switched_off_nothing_is_cached() -> None:
    engine = make_engine(target(), block_tokens=BLOCK, prefix=False)
    for name in ("cold", "still cold"):
        received, rows = served(engine, request(name, PROMPT))
        assert (received.cached_tokens, rows) == (0, len(PROMPT))
    assert engine.pool.cached == 0
    assert engine.counters.prefix_hits == 0


@pytest.mark.parametrize("chunk", [3, 64])
def test_choices_of_one_prompt_compute_it_once(chunk: int) -> None:
    """Those that come together wait for the first, which computes what all of them need."""
    engine = make_engine(target(), block_tokens=BLOCK, prefill_chunk=chunk)
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=5)
    requests = [Request(f"choice {i}", PROMPT, params, choice=i) for i in range(4)]
    received = run_to_end(engine, requests)
    for one in requests:
        assert isinstance(engine.runner, MockTarget)
        assert received[one.id].tokens == plain(engine.runner, one)
    assert [received[one.id].cached_tokens for one in requests] == [0, 12, 12, 12]
    as_root = len(PROMPT) % chunk == 1  # a last chunk of one token counts as one
    assert sum(record.prefill_rows for record in engine.records) == len(PROMPT) - as_root
    assert max(record.sequences for record in engine.records) == 4


def test_a_preempted_sequence_finds_its_own_blocks() -> None:
    """The younger one gives way when the older grows, and needs little to come back."""
    rows = {}
    for prefix in (True, False):
        model = target(blocks=12)
        engine = make_engine(model, blocks=12, block_tokens=BLOCK, prefix=prefix)
        requests = [request("old", PROMPT, tokens=18), request("young", [*PROMPT[::-1]], tokens=18)]
        received = run_to_end(engine, requests)
        for one in requests:
            assert received[one.id].tokens == plain(model, one)
            assert received[one.id].cached_tokens == 0, "only what was there when the request first ran counts"
        assert engine.counters.preemptions > 0
        rows[prefix] = sum(record.prefill_rows for record in engine.records)
    assert rows[True] < rows[False]


def test_a_request_that_failed_leaves_nothing_to_find() -> None:
    """Non-finite logits may come from damaged keys and values: they must not spoil the next request (rule R3)."""
    bad = [True]
    engine = make_engine(target(nan_after=lambda path: bad[0] and len(path) >= 20), block_tokens=BLOCK)
    assert run_to_end(engine, [request("bad", PROMPT, tokens=20)])["bad"].finish_reason == "error"
    assert engine.pool.cached == 0
    bad[0] = False
    assert served(engine, request("good", PROMPT, tokens=20))[0].cached_tokens == 0


def test_an_idle_engine_that_holds_a_block_says_so() -> None:
    engine = make_engine(target(), block_tokens=BLOCK)
    engine.pool.share([], [3])  # a table that nobody gives back
    with pytest.raises(RuntimeError, match="idle, but 1 cache blocks are still held"):
        run_to_end(engine, [request("last", PROMPT)])


def test_a_cancelled_request_leaves_what_it_committed() -> None:
    engine = make_engine(target(), block_tokens=BLOCK, prefill_chunk=5)
    engine.add(request("gone", PROMPT))
    engine.step()
    engine.step()  # ten rows: two full blocks
    engine.cancel("gone")
    assert served(engine, request("next", PROMPT))[0].cached_tokens == 8
