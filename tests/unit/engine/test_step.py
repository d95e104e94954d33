"""The engine's step on a mock target: what one request, one draft or one fault may cost the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from draftwing.core import DraftTree, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Controller, SequenceView, TokenDrafter
from draftwing.engine.step import Engine
from draftwing.errors import OverloadedError, RequestError
from draftwing.testing.bytes_tokenizer import BytesTokenizer
from draftwing.testing.drafters import OracleDrafter
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.plain_loop import PlainOutput, plain_decode
from draftwing.testing.run_engine import Received, make_engine, run_to_end

BEHAVIOUR = MockBehaviour(vocab_size=259, order=2)
TOKENIZER = BytesTokenizer()
PROMPTS = ([1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15, 16])
PENALISED: dict[str, Any] = {"repetition_penalty": 1.2, "presence_penalty": 0.2, "frequency_penalty": 0.1}


def requests(count: int = 4, **settings: Any) -> list[Request]:
    settings = {"max_tokens": 16, "temperature": 0.8, **PENALISED, **settings}
    return [Request(f"r{i}", PROMPTS[i], SamplingParams(seed=i, **settings)) for i in range(count)]


def oracle(request: Request, behaviour: MockBehaviour = BEHAVIOUR) -> PlainOutput:
    return plain_decode(
        MockTarget(behaviour), request.prompt_ids, request.params, choice=request.choice, decode=TOKENIZER.decode
    )


def speculating(behaviour: MockBehaviour = BEHAVIOUR, accuracy: float = 0.8, **settings: Any) -> Engine:
    known: dict[str, list[int]] = {}

    def plain(view: SequenceView) -> list[int]:
        if view.id not in known:
            request = Request(view.id, list(view.tokens[: view.prompt_len]), view.params, choice=view.choice)
            known[view.id] = oracle(request, behaviour).tokens
        return known[view.id]

    settings = {"branching": (2, 1, 1), "decoder": TOKENIZER, **settings}
    return make_engine(MockTarget(behaviour), drafter=OracleDrafter(plain, accuracy), **settings)


def test_the_last_step_of_a_request_tells_its_end_and_its_acceptance() -> None:
    engine = speculating()
    got = run_to_end(engine, requests())
    counters = engine.counters
    for request in requests():
        received, plain = got[request.id], oracle(request)
        assert (received.tokens, received.text, received.finish_reason) == (plain.tokens, plain.text, "length")
        assert received.summary is not None
        by_prefill = int(len(request.prompt_ids) > 1)  # the first token comes from the prompt's last row
        assert sum(received.summary.accepted) + received.summary.verifies + by_prefill == 16
        assert received.emissions == received.summary.verifies + by_prefill
    assert counters.finished == {"length": 4}
    assert counters.generated_tokens == 64
    assert counters.prompt_tokens == sum(len(r.prompt_ids) for r in requests())
    assert counters.accepted_tokens == sum(counters.accepted_per_depth) > 20
    records = list(engine.records)
    assert len(records) == counters.steps
    assert sum(r.drafted for r in records) == counters.draft_tokens
    assert sum(r.accepted for r in records) == counters.accepted_tokens
    assert sum(r.branched for r in records) == counters.branched_tokens > 5
    assert sum(r.committed for r in records) == counters.generated_tokens
    assert all(r.rows == r.sequences + r.drafted + r.prefill_rows for r in records)


def test_a_pause_drafts_nothing_and_changes_no_token() -> None:
    """Between any two steps; and then it drafts again, with the policy that it had."""
    engine = speculating()
    for request in requests():
        engine.add(request)
    got: dict[str, Received] = {request.id: Received() for request in requests()}
    drafted: dict[bool, int] = {False: 0, True: 0}
    policy = engine.policy
    while engine.busy:
        engine.paused = "by hand" if engine.counters.steps % 5 in (2, 3) else ""
        for emission in engine.step():
            got[emission.request_id].take(emission)
        drafted[bool(engine.paused)] += engine.records[-1].drafted
        status = engine.policy_status()
        assert (status.paused, status.reason) == (bool(engine.paused), engine.paused or "fixed")
        assert status.mode == "fixed"
    assert drafted[True] == 0
    assert drafted[False] > 20
    assert engine.policy is policy
    assert [got[r.id].tokens for r in requests()] == [oracle(r).tokens for r in requests()]


def test_a_request_may_refuse_speculation() -> None:
    engine = speculating()
    got = run_to_end(engine, requests(speculate=False))
    assert engine.counters.draft_tokens == 0
    assert [got[r.id].tokens for r in requests()] == [oracle(r).tokens for r in requests()]


def test_logits_that_are_not_finite_fail_their_request_alone() -> None:
    bad = oracle(requests()[1]).tokens
    prefix = (*PROMPTS[1], *bad[:5])
    behaviour = MockBehaviour(vocab_size=259, order=2, nan_after=lambda path: path == prefix)
    for engine in (speculating(behaviour), make_engine(MockTarget(behaviour), decoder=TOKENIZER)):
        got = run_to_end(engine, requests())
        assert (got["r1"].tokens, got["r1"].finish_reason) == (bad[:5], "error")
        assert "not finite" in str(got["r1"].error)
        for request in requests():
            if request.id != "r1":
                assert got[request.id].tokens == oracle(request).tokens


def test_logits_that_are_not_finite_off_the_path_cost_nothing() -> None:
    paths = {(*r.prompt_ids, *oracle(r).tokens[:n]) for r in requests() for n in range(17)}
    longest = max(map(len, PROMPTS))
    behaviour = MockBehaviour(vocab_size=259, order=2, nan_after=lambda path: len(path) > longest and path not in paths)
    engine = speculating(behaviour, accuracy=0.5)
    got = run_to_end(engine, requests())
    assert engine.counters.draft_tokens > engine.counters.accepted_tokens + 10
    assert [got[r.id].tokens for r in requests()] == [oracle(r).tokens for r in requests()]


class Misbehaving(TokenDrafter):
    """Returns whatever it is told to for every second draft, and a sound chain for the others."""

    traits = OracleDrafter.traits

    def __init__(self, bad: Callable[[], object]) -> None:
        self.bad = bad

    def propose(
        self,
        sequences: Sequence[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Sequence[Sequence[int]] | None = None,
    ) -> list[DraftTree]:
        drafts: list[Any] = [self.bad() if i % 2 else DraftTree.chain([7, 8]) for i in range(len(sequences))]
        return drafts


def raises() -> object:
    raise ZeroDivisionError("a drafter's bug")


def tree(tokens: list[int], parents: list[int], confidences: list[float] | None = None) -> Callable[[], object]:
    scores = None if confidences is None else np.array(confidences, dtype=np.float32)
    return lambda: DraftTree(np.array(tokens), np.array(parents), scores)


@pytest.mark.parametrize(
    "bad",
    [
        raises,
        lambda: None,
        lambda: [7, 8],
        tree([259], [-1]),
        tree([-1], [-1]),
        tree([1, 2], [-1, 5]),
        tree([1, 2], [1, -1]),
        tree([1, 2, 3, 4, 5, 6, 7], [-1, 0, 1, 2, 3, 4, 5]),
        tree([1, 2], [-1, 0], [0.5, float("nan")]),
        lambda: DraftTree(np.array([[1]]), np.array([-1])),
    ],
    ids=[
        "raises",
        "nothing",
        "no tree",
        "id too large",
        "id negative",
        "parent unknown",
        "child first",
        "too deep",
        "NaN",
        "shape",
    ],
)
def test_a_bad_draft_costs_that_draft(bad: Callable[[], object]) -> None:
    engine = make_engine(MockTarget(BEHAVIOUR), drafter=Misbehaving(bad), branching=(1, 1, 1), nodes=6)
    got = run_to_end(engine, requests())
    assert [got[r.id].tokens for r in requests()] == [oracle(r).tokens for r in requests()]
    assert engine.counters.bad_drafts > 0
    if bad is not raises:
        assert engine.counters.draft_tokens > 0


@pytest.mark.parametrize("done", [1, 5, 15])
def test_a_resumed_request_goes_on_where_it_was(done: int) -> None:
    resumed, plain = [], [oracle(r) for r in requests(min_tokens=10)]
    for request, whole in zip(requests(min_tokens=10), plain, strict=True):
        request.generated_ids = whole.tokens[:done]
        request.emitted_chars = len(TOKENIZER.decode(request.generated_ids).rstrip("\ufffd"))
        resumed.append(request)
    for engine in (speculating(), make_engine(MockTarget(BEHAVIOUR), decoder=TOKENIZER)):
        got = run_to_end(engine, resumed)
        for request, whole in zip(resumed, plain, strict=True):
            assert got[request.id].tokens == whole.tokens[done:]
            assert got[request.id].text == whole.text[request.emitted_chars :]


def test_cancelling_frees_slot_and_blocks_before_the_next_step() -> None:
    engine = speculating(sequences=2)
    for request in requests():
        engine.add(request)
    engine.step()
    engine.step()
    assert (engine.running, engine.waiting) == (2, 2)
    used = engine.pool.blocks - engine.pool.free
    engine.cancel("r0")
    assert engine.pool.blocks - engine.pool.free < used
    emitted = {emission.request_id for _ in range(2) for emission in engine.step()}
    assert "r2" in emitted
    assert "r0" not in emitted
    engine.cancel("r0")
    engine.cancel("unknown")
    engine.cancel("r3")  # still waiting
    engine.check()
    got = run_to_end(engine)
    assert set(got) == {"r1", "r2"}
    assert engine.counters.finished == {"cancelled": 2, "length": 2}


def test_the_queue_is_bounded() -> None:
    engine = speculating(sequences=1, queue=2)
    for request in requests(2):
        engine.add(request)
    with pytest.raises(OverloadedError, match="2 requests are waiting"):
        engine.add(requests()[2])
    assert set(run_to_end(engine)) == {"r0", "r1"}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request("r", [], SamplingParams()), "prompt is empty"),
        (Request("r", [259], SamplingParams()), "token id 259"),
        (Request("r", [1, -2], SamplingParams()), "token id -2"),
        (Request("r", [1] * 90, SamplingParams(max_tokens=20)), "maximum context length is 100"),
        (Request("r", [1], SamplingParams(temperature=float("nan"))), "temperature"),
        (Request("r", [1], SamplingParams(max_tokens=4), generated_ids=[1, 2, 3, 4]), "generated_ids has 4 tokens"),
        (Request("r0", [1], SamplingParams()), "'r0' is in use"),
        (Request("r", [1] * 60, SamplingParams(max_tokens=30)), "exceed the whole cache of 80 tokens"),
    ],
)
def test_what_cant_be_served_is_refused_and_disturbs_nobody(request_: Request, says: str) -> None:
    engine = speculating(context=100, blocks=20)
    engine.add(requests()[0])
    with pytest.raises(RequestError, match=says):
        engine.add(request_)
    assert run_to_end(engine)["r0"].tokens == oracle(requests()[0]).tokens


def raw_logprobs(path: list[int]) -> np.ndarray[Any, Any]:
    logits = MockTarget(BEHAVIOUR).logits_after(path).astype(np.float64)
    top = logits.max()
    return np.asarray(logits - top - np.log(np.exp(logits - top).sum()))


def test_logprobs_are_the_raw_models_at_every_token_also_accepted_ones() -> None:
    engine = speculating()
    got = run_to_end(engine, requests(logprobs=3))
    assert engine.counters.accepted_tokens > 20
    for request in requests():
        received: Received = got[request.id]
        assert [entry.token for entry in received.logprobs] == received.tokens
        for at, entry in enumerate(received.logprobs):
            want = raw_logprobs([*request.prompt_ids, *received.tokens[:at]])
            assert entry.logprob == pytest.approx(want[entry.token], abs=1e-5)
            best = np.lexsort((np.arange(len(want)), -want))[:3]
            assert [token for token, _ in entry.alternatives] == best.tolist()
            assert [value for _, value in entry.alternatives] == pytest.approx(want[best].tolist(), abs=1e-5)


def test_what_follows_a_stop_inside_an_accepted_run_is_dropped_and_not_counted() -> None:
    plain = oracle(requests(1)[0]).tokens
    stop = next(t for i, t in enumerate(plain) if 3 <= i <= 10 and t not in plain[:i])
    params = SamplingParams(max_tokens=16, temperature=0.8, seed=0, stop_token_ids=(stop,), logprobs=0, **PENALISED)
    engine = speculating(accuracy=1.0, branching=(1,) * 8)
    # The drafter knows what would follow the stop.
    engine.drafting.drafter = OracleDrafter(lambda view: plain, accuracy=1.0, vocab_size=259)
    got = run_to_end(engine, [Request("r0", PROMPTS[0], params)])["r0"]
    end = plain.index(stop) + 1
    assert (got.tokens, got.finish_reason, got.stop_reason) == (plain[:end], "stop", stop)
    assert [entry.token for entry in got.logprobs] == plain[:end]
    assert engine.counters.generated_tokens == end
    assert engine.counters.steps < end
