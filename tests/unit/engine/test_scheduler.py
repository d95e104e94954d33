"""Who gives way and who waits when the cache is short."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftwing.core import Request, SamplingParams
from draftwing.engine.step import Engine
from draftwing.testing.drafters import OracleDrafter
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.plain_loop import plain_decode
from draftwing.testing.run_engine import make_engine, run_to_end

BLOCK = 4


def request(name: str, prompt: Sequence[int], tokens: int, salt: str = "") -> Request:
    return Request(name, list(prompt), SamplingParams(max_tokens=tokens, temperature=0), salt=salt)


def engine_for(
    requests: list[Request], *, blocks: int, branching: Sequence[int] = (), chunk: int = 64, accuracy: float = 0.5
) -> Engine:
    """On the mock target, with drafts that are as right as `accuracy` says."""
    target = MockTarget(MockBehaviour(vocab_size=32, order=2), slots=blocks * BLOCK)
    plain = {one.id: plain_decode(target, one.prompt_ids, one.params).tokens for one in requests}
    drafter = OracleDrafter(lambda sequence: plain[sequence.id], accuracy)
    return make_engine(
        target, drafter=drafter, branching=branching, blocks=blocks, block_tokens=BLOCK, prefill_chunk=chunk
    )


def run_and_compare(engine: Engine, requests: list[Request]) -> None:
    received = run_to_end(engine, requests)
    assert isinstance(engine.runner, MockTarget)
    for one in requests:
        assert received[one.id].tokens == plain_decode(engine.runner, one.prompt_ids, one.params).tokens


def first_steps(engine: Engine, requests: list[Request]) -> dict[str, int]:
    """Serve them; the step in which each request got its first tokens."""
    for one in requests:
        engine.add(one)
    first: dict[str, int] = {}
    for step in range(1000):
        for emission in engine.step():
            first.setdefault(emission.request_id, step)
        if not engine.busy:
            return first
    raise AssertionError("still busy")


@pytest.mark.parametrize("short", [2, 3, 5])
@pytest.mark.parametrize("chunk", [3, 5])
@pytest.mark.parametrize("branching", [(3, 2), (2, 2, 2)])
def test_who_gives_way_to_a_prompt_runs_no_more_in_that_step(short: int, chunk: int, branching: Sequence[int]) -> None:
    """A young sequence decodes with large drafts while an old one's prompt needs its blocks."""
    requests = [request("old", [(7 * i) % 31 for i in range(26)], 3), request("young", [9] * short, 12)]
    engine = engine_for(requests, blocks=8, branching=branching, chunk=chunk)
    run_and_compare(engine, requests)


def test_blocks_of_past_drafts_are_given_back_before_anyone_gives_way() -> None:
    """Two sequences whose tokens fit, but not beside what the first one's drafts take for a step."""
    params = SamplingParams(max_tokens=13, temperature=0, speculate=False)
    requests = [request("drafts", [0, 1, 2], 13), Request("plain", [0, 1, 2], params, salt="other")]
    engine = engine_for(requests, blocks=8, branching=(3, 3), accuracy=0)
    run_and_compare(engine, requests)
    assert engine.counters.draft_tokens > 50
    assert engine.counters.preemptions == 0


def test_a_prompt_starts_only_where_the_prompts_before_it_still_fit() -> None:
    """Else the later one would be run for nothing and preempted."""
    requests = [request("first", [1] * 40, 2), request("second", [2] * 40, 2)]
    engine = engine_for(requests, blocks=16, chunk=8)
    first = first_steps(engine, requests)
    assert engine.counters.preemptions == 0
    assert sum(record.prefill_rows for record in engine.records) == 80
    assert first["second"] > first["first"]


def test_nobody_waits_for_a_sequence_that_has_computed_the_block_already() -> None:
    """Twins hold the same output twice, only the first one's copy is cached, and it is evicted while the other runs."""
    prompt = [3, 1, 4, 1, 5]
    twins = [request("short twin", prompt, 16), request("long twin", prompt, 60)]
    engine = engine_for(twins, blocks=24)
    target = engine.runner
    assert isinstance(target, MockTarget)
    output = plain_decode(target, prompt, twins[0].params).tokens
    for one in twins:
        engine.add(one)
    while engine.running != 1 or engine.waiting:
        engine.step()
    filler = request("filler", [7] * 60, 1, salt="other")
    follower = request("follower", [*prompt, *output], 1)
    engine.add(filler)
    while engine.running != 1 or engine.waiting:
        engine.step()
    hits = engine.counters.prefix_hits
    assert first_steps(engine, [follower])["follower"] == 0
    assert 0 < engine.counters.prefix_hits - hits < 20, "some of the five blocks were evicted"
    assert engine.counters.preemptions == 0


def test_cached_blocks_of_a_prompt_count_as_room_that_it_needs() -> None:
    """A prompt that is cached whole, in a cache that is nearly full of another sequence."""
    cached, late = request("cached", [5] * 25, 1), request("late", [5] * 26, 8)
    old = request("old", [1] * 45, 3)
    engine = engine_for([cached, late, old], blocks=18)
    run_to_end(engine, [cached])
    first = first_steps(engine, [old, late])
    assert engine.counters.prefix_hits == 24
    assert engine.counters.preemptions == 0
    assert first["late"] > first["old"]


def test_blocks_of_past_drafts_keep_nobody_waiting() -> None:
    late = request("late", [2] * 9, 1)
    early = request("early", [1, 1, 1], 20)
    engine = engine_for([early, late], blocks=8, branching=(3, 3, 1), accuracy=0)
    engine.add(early)
    for _ in range(4):
        engine.step()
    assert engine.pool.free < 3, "its drafts took no room"
    assert first_steps(engine, [late])["late"] == 0
