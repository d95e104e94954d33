"""Rule R1 across features: requests that use them together, served with drafts, always as the plain loop decodes them.

A cell names what must happen (a stop string that begins in one step and ends in the next, an end-of-text token inside
an accepted run, a preemption in mid-draft, ...). Its seeds are tried in order until all of it happened in one run;
every run on the way must be right, and a cell whose features never meet is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import numpy as np

from draftwing.core import DraftShape, Request, SamplingParams
from draftwing.drafters.base import Drafter, SequenceView
from draftwing.drafters.lookahead import LookaheadDrafter
from draftwing.drafters.ngram import NgramDrafter
from draftwing.drafters.none import NoneDrafter
from draftwing.drafters.suffix import SuffixDrafter
from draftwing.drafters.tree import full_size
from draftwing.engine.step import Engine
from draftwing.policy.adaptive import AdaptivePolicy
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell
from draftwing.policy.profile import Profile
from draftwing.testing.drafters import OracleDrafter
from draftwing.testing.mock_draft_model import MockDraftModel
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.naive_sampling import noise, processed
from draftwing.testing.pairwise import Row, pairwise
from draftwing.testing.plain_loop import PlainOutput, PlainTarget, plain_decode
from draftwing.testing.run_engine import Received, assert_idle, make_engine

VOCAB, EOS = 48, 2
SEEDS = 100
BLOCK_TOKENS = 2
LOOKUP = ("ngram", "suffix", "lookahead")  # they need text that repeats, and rarely have two ways to go on
MAIN = "main"  # ids of the requests that the cell is about begin so

FACTORS: dict[str, Sequence[Any]] = {
    "drafter": ("oracle", "draft_model", "ngram", "suffix", "lookahead", "none"),
    "tree": (False, True),
    "temperature": (0.0, 1e-4, 0.8),
    "top_k": (0, 1),
    "penalties": (False, True),
    "logit_bias": (False, True),
    "ending": ("length", "stop", "eos"),
    "ignore_eos": (False, True),
    "logprobs": (None, 3),
    "min_tokens": (False, True),
    "n": (1, 3),
    "batch": ("alone", "mixed", "twins", "lengths"),
    "prefix": (False, True),
    "preempt": (False, True),
    "resume": (False, True),
    "ties": (False, True),
    "adaptive": (False, True),
}
CHEAP_ROWS = CostModel.fit(  # drafts pay here, so that mode adaptive makes some
    CostCurves(
        name="cheap rows",
        verify=tuple(VerifyCell(batch=1, rows=n, context=0, verify_ms=10 + n / 50) for n in (1, 2, 4, 64, 512)),
        draft_step_ms=(BatchCell(batch=1, ms=0.01),),
    )
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination; see FACTORS.

    tree: two children of the root, else chains. ending: "length" inside a draft, "stop": a string across a draft's
    edge, "eos" inside an accepted run. resume: the request arrives with output so far. ties: the target's logits are
    coarse. adaptive: the policy stops and cuts drafts. batch: alone, with requests of other parameters, with the same
    request once more, or beside very short and long prompts.
    """

    drafter: str
    tree: bool
    temperature: float
    top_k: int
    penalties: bool
    logit_bias: bool
    ending: str
    ignore_eos: bool
    logprobs: int | None
    min_tokens: bool
    n: int
    batch: str
    prefix: bool
    preempt: bool
    resume: bool
    ties: bool
    adaptive: bool = False

    def __str__(self) -> str:
        words = [self.drafter, f"t{self.temperature:g}", self.ending, self.batch]
        flags = ("tree", "penalties", "logit_bias", "ignore_eos", "min_tokens", "prefix", "preempt", "resume", "ties")
        words += [name for name in (*flags, "adaptive") if getattr(self, name)]
        words += [f"top_k{self.top_k}"] * bool(self.top_k) + ["logprobs"] * bool(self.logprobs) + [f"n{self.n}"]
        return "-".join(words)


def sensible(row: Row) -> bool:
    """An ignored end can't be the ending, one sequence alone is never preempted, and what isn't drafted is no tree and
    adapts to nothing."""
    if row["ending"] == "eos" and row["ignore_eos"]:
        return False
    if row["drafter"] == "none" and (row["tree"] or row["adaptive"]):
        return False
    return not (row["preempt"] and row["batch"] == "alone" and row["n"] == 1)


def pairwise_cells() -> list[Cell]:
    """Cells in which every two values meet."""
    return [Cell(**row) for row in pairwise(FACTORS, sensible)]


def random_cells(count: int, seed: int) -> Iterator[Cell]:
    """Cells drawn from the whole product."""
    draw = np.random.default_rng(seed)
    while count:
        row = {name: values[int(draw.integers(len(values)))] for name, values in FACTORS.items()}
        if sensible(row):
            count -= 1
            yield Cell(**row)


class Letters:
    """A decoder whose every token but the end of text is one letter."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(0x4E00 + token) for token in ids if token != EOS)


class World(Protocol):
    """Where cells are served: a target with its plain form, and engines around it. vocab: of the target."""

    vocab: int
    plain: PlainTarget

    def engine(self, run: Run, blocks: int) -> Engine:
        """One for the run's cell, with a cache of so many blocks of BLOCK_TOKENS."""
        ...

    def favour_end(self, cell: Cell, seed: int) -> dict[int, float]:
        """A logit bias by which the text of a cell that needs an end of text comes to one."""
        ...


@dataclass(slots=True)
class Run:
    """A cell with a seed: its requests, and what serving them showed. happened: features by name."""

    cell: Cell
    seed: int
    world: World
    requests: list[Request] = field(default_factory=list)
    plain: dict[str, PlainOutput] = field(default_factory=dict)
    received: dict[str, Received] = field(default_factory=dict)
    last_emission: dict[str, int] = field(default_factory=dict)
    preempted_in_mid_draft: bool = False
    happened: dict[str, bool] = field(default_factory=dict)


def needs_end(cell: Cell) -> bool:
    return cell.ending == "eos" or cell.ignore_eos or cell.min_tokens


class MockWorld:
    """The mock target, whose distributions suit the cell, with drafters that need no checkpoint."""

    vocab = VOCAB

    def __init__(self, cell: Cell, seed: int) -> None:
        behaviour = MockBehaviour(
            VOCAB,
            order=1 if cell.drafter in LOOKUP else 0,
            surprise=0.4,
            grid=2.0 if cell.ties else 0.0,
            seed=seed,
            eos_id=EOS,
            eos_rate=0.1 if needs_end(cell) else 0.0,
        )
        self._target = MockTarget(behaviour, slots=4096)
        self.plain: PlainTarget = self._target

    def favour_end(self, cell: Cell, seed: int) -> dict[int, float]:
        return {}

    def engine(self, run: Run, blocks: int) -> Engine:
        drafter = self._drafter(run)
        drafter.reserve(blocks, BLOCK_TOKENS)
        engine = make_engine(
            self._target,
            drafter=drafter,
            branching=() if run.cell.drafter == "none" else branching(run.cell),
            blocks=blocks,
            block_tokens=BLOCK_TOKENS,
            prefill_chunk=7,
            eos_token_ids=(EOS,),
            decoder=Letters(),
        )
        return adapting(engine, run.cell)

    def _drafter(self, run: Run) -> Drafter:
        simple: dict[str, Callable[[], Drafter]] = {
            "none": NoneDrafter,
            "ngram": NgramDrafter,
            "suffix": SuffixDrafter,
            "lookahead": LookaheadDrafter,
            "draft_model": lambda: MockDraftModel(self._target),
        }
        if run.cell.drafter in simple:
            return simple[run.cell.drafter]()
        # It goes on after what ends the request, so that an end lies inside the run that would be accepted.
        beyond = {}
        for request in run.requests:
            params = replace(request.params, ignore_eos=True, stop=(), max_tokens=request.params.max_tokens + 6)
            known = run.plain[request.id].tokens
            beyond[request.id] = known + oracle(self, request, params).tokens[len(known) :]

        def output(sequence: SequenceView) -> list[int]:
            return beyond.get(sequence.id, [])

        return OracleDrafter(output, accuracy=0.85, seed=run.seed)


def branching(cell: Cell) -> tuple[int, ...]:
    return (2, 1, 1, 1) if cell.tree else (1, 1, 1, 1)


def adapting(engine: Engine, cell: Cell) -> Engine:
    """With the policy that the cell asks for. A clock that ticks when it is read makes runs the same every time."""
    if cell.adaptive:
        shape = DraftShape(branching(cell), full_size(branching(cell)))
        traits = engine.drafting.drafter.traits
        engine.policy = AdaptivePolicy("it", shape, traits, Profile(CHEAP_ROWS, frozen=True))
        engine.clock = count().__next__
    return engine


def run_cell(cell: Cell, world: Callable[[Cell, int], World] = MockWorld, first: int = 0) -> Run:
    """Serve seed after seed until everything the cell names happened. AssertionError: a wrong run, or it never does.

    first: the seed to begin with, which only saves time.
    """
    missed: dict[str, int] = {}
    for seed in range(first, first + SEEDS):
        run = serve(cell, seed, world(cell, seed))
        if run is None:
            missed["no request like this"] = missed.get("no request like this", 0) + 1
            continue
        if all(run.happened.values()):
            return run
        for name, happened in run.happened.items():
            missed[name] = missed.get(name, 0) + (not happened)
    raise AssertionError(f"{cell}: its features never met in {SEEDS} runs; how often each was missing: {missed}")


def serve(cell: Cell, seed: int, world: World) -> Run | None:
    """One run, compared with the plain loop. None: plain decoding has no such request at this seed."""
    run = Run(cell, seed, world)
    main = _main_request(run)
    if main is None:
        return None
    # Together with min_tokens, which few texts allow, it would be too rare to look for.
    if cell.penalties and not cell.min_tokens and not _penalised(world, main):
        return None
    choices = [replace(main, id=f"{MAIN}{choice}", choice=choice) for choice in range(cell.n)]
    run.requests = [*choices, *_company(run, main)]
    for request in run.requests:
        run.plain[request.id] = oracle(run.world, request)
        if cell.resume and len(run.plain[request.id].tokens) > 4:
            request.generated_ids = run.plain[request.id].tokens[: 1 + seed % 3]
    engine = _engine(run)
    if cell.prefix:
        warm = Request("warm", main.prompt_ids, SamplingParams(max_tokens=1, temperature=0.0))
        _drive(engine, run, [warm])
    _drive(engine, run, run.requests)
    _compare(run)
    _witness(run, engine)
    return run


def oracle(world: World, request: Request, params: SamplingParams | None = None) -> PlainOutput:
    chosen = request.params if params is None else params
    return plain_decode(
        world.plain,
        request.prompt_ids,
        chosen,
        choice=request.choice,
        eos_token_ids=(EOS,),
        decode=Letters().decode,
    )


def _main_request(run: Run) -> Request | None:
    """The request that the cell is about; stop string, lengths and output so far are taken from its plain output."""
    cell, draw = run.cell, np.random.default_rng(run.seed)
    prompt = draw.integers(3, run.world.vocab, 9).tolist() * 2
    params = SamplingParams(
        max_tokens=30 if cell.ending == "eos" else 18,
        temperature=cell.temperature,
        top_k=cell.top_k,
        seed=run.seed,
        logprobs=cell.logprobs,
        ignore_eos=cell.ignore_eos,
        logit_bias=run.world.favour_end(cell, run.seed),
    )
    if cell.penalties:
        # Half of the runs reward what was said before: text that repeats is easy to draft.
        sign = -1 if run.seed % 2 else 1
        params = replace(params, repetition_penalty=1.1, frequency_penalty=sign * 0.4, presence_penalty=sign * 2.0)
    if cell.logit_bias:
        bias = {int(t): 1.5 for t in draw.integers(3, run.world.vocab, 5)}
        params = replace(params, logit_bias={**params.logit_bias, **bias})
    request = Request(MAIN, prompt, params)
    if cell.min_tokens:
        if not cell.ignore_eos and len(oracle(run.world, request).tokens) >= 8:
            return None  # nothing would have ended it before
        params = replace(params, min_tokens=8)
    if cell.ending == "length":
        params = replace(params, max_tokens=int(draw.integers(12, 20)))
    request = replace(request, params=params)
    plain = oracle(run.world, request)
    if (plain.finish_reason == "stop") != (cell.ending == "eos") or len(plain.tokens) < 10:
        return None
    if cell.ending == "stop":
        at = int(draw.integers(max(6, params.min_tokens), len(plain.tokens) - 2))
        stop = Letters().decode(plain.tokens[at : at + 2])
        if not stop:
            return None  # two ends of text
        request = replace(request, params=replace(params, stop=(stop,)))
        plain = oracle(run.world, request)
        if plain.finish_reason != "stop" or len(plain.tokens) < 6:
            return None
    return request


def _company(run: Run, main: Request) -> list[Request]:
    draw = np.random.default_rng([run.seed, 1])
    own = replace(main.params, stop=(), logprobs=None, min_tokens=0, max_tokens=24)
    if run.cell.batch == "twins":
        return [replace(main, id="twin")]
    if run.cell.batch == "lengths":
        return [Request(f"of {n}", draw.integers(3, run.world.vocab, n).tolist(), own) for n in (1, 36)]
    if run.cell.batch == "mixed":
        others = ({"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9, "seed": 5}, {"speculate": False})
        return [
            Request(f"other {i}", draw.integers(3, run.world.vocab, 7).tolist(), replace(own, **more))  # type: ignore[arg-type]
            for i, more in enumerate(others)
        ]
    return []


def _engine(run: Run) -> Engine:
    longest = max(len(r.prompt_ids) + r.params.max_tokens for r in run.requests)
    prompts = {tuple(request.prompt_ids) for request in run.requests}  # equal ones share their blocks
    whole = sum(map(len, prompts)) + sum(len(run.plain[request.id].tokens) for request in run.requests)
    room = max(longest + 8, whole // 2) if run.cell.preempt else whole + 400
    return run.world.engine(run, room // BLOCK_TOKENS)


def _drive(engine: Engine, run: Run, requests: list[Request]) -> None:
    """Half of them at once, then one a step."""
    waiting = list(requests)
    received = {request.id: Received() for request in requests}
    for request in waiting[: -(-len(waiting) // 2)]:
        engine.add(request)
    del waiting[: -(-len(waiting) // 2)]
    while engine.busy or waiting:
        drafted = engine.counters.draft_tokens
        for emission in engine.step():
            received[emission.request_id].take(emission)
            run.last_emission[emission.request_id] = len(emission.token_ids)
        begun = any(received[s.id].tokens for s in engine.scheduler.preempted if s.id in received)
        run.preempted_in_mid_draft |= begun and (engine.counters.draft_tokens > drafted or run.cell.drafter == "none")
        engine.check()
        if waiting:
            engine.add(waiting.pop(0))
    assert_idle(engine)
    assert engine.drafting.failures == 0, "the drafter failed"
    run.received |= received


def _compare(run: Run) -> None:
    for request in run.requests:
        want, got, name = run.plain[request.id], run.received[request.id], f"{run.cell}, seed {run.seed}: {request.id}"
        tokens = [*request.generated_ids, *got.tokens]
        assert tokens == want.tokens, f"{name} gave {tokens}, plain decoding {want.tokens}"
        assert (got.finish_reason, got.stop_reason) == (want.finish_reason, want.stop_reason), name
        assert want.text.endswith(got.text), f"{name} gave the text {got.text!r}, plain decoding {want.text!r}"
        assert request.generated_ids or got.text == want.text, name
        _compare_logprobs(run, request, got)


def _compare_logprobs(run: Run, request: Request, got: Received) -> None:
    if request.params.logprobs is None:
        assert not got.logprobs
        return
    assert [entry.token for entry in got.logprobs] == got.tokens, f"{run.cell}: one entry for each returned token"
    path = [*request.prompt_ids, *request.generated_ids]
    for entry in got.logprobs:
        logits = run.world.plain.logits_after(path).astype(np.float64)
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        best = np.lexsort((np.arange(len(logits)), -logits))[: request.params.logprobs]
        assert abs(entry.logprob - scores[entry.token]) < 1e-4
        assert [token for token, _ in entry.alternatives] == best.tolist()
        np.testing.assert_allclose([value for _, value in entry.alternatives], scores[best], atol=1e-4)
        path.append(entry.token)


def _witness(run: Run, engine: Engine) -> None:
    """What the cell names, as seen in this run."""
    cell, happened = run.cell, run.happened
    mains = [request for request in run.requests if request.id.startswith(MAIN)]
    first = mains[0]
    plain, last = run.plain[first.id], run.last_emission[first.id]
    drafts = cell.drafter != "none"
    if drafts:
        happened["accepted"] = engine.counters.accepted_tokens > 0
        happened["rejected"] = engine.counters.draft_tokens > engine.counters.accepted_tokens
        if cell.tree and cell.drafter not in LOOKUP:
            happened["branched"] = engine.counters.branched_tokens > 0
    if cell.ending == "stop":
        happened["stop string across an edge"] = plain.stop_reason is not None and last == 1
    elif cell.ending == "eos":
        happened["end of text inside a run"] = plain.tokens[-1] == EOS and (last >= 2 or not drafts)
    else:
        limited = [r.id for r in mains if run.plain[r.id].finish_reason == "length"]
        happened["limit inside a draft"] = any(run.last_emission[name] >= 2 or not drafts for name in limited)
    if cell.ignore_eos:
        happened["end of text ignored"] = EOS in plain.tokens[:-1]
    if cell.logprobs is not None:
        happened["logprobs inside a run"] = run.received[first.id].emissions < len(plain.tokens) or not drafts
    if cell.n > 1 and cell.temperature == 0.8 and cell.top_k != 1:
        happened["choices differ"] = len({str(run.plain[request.id].tokens) for request in mains}) > 1
    if cell.prefix:
        happened["prefix hit"] = run.received[first.id].cached_tokens > 0
    if cell.preempt:
        happened["preempted in mid-draft"] = run.preempted_in_mid_draft
    if cell.resume:
        happened["resumed"] = 0 < len(first.generated_ids) < len(plain.tokens)
    if cell.ties:
        happened["tied"] = any(
            (logits == logits.max()).sum() > 1
            for at in range(len(plain.tokens))
            for logits in [run.world.plain.logits_after([*first.prompt_ids, *plain.tokens[:at]])]
        )


def _penalised(world: World, request: Request) -> bool:
    """Whether some token of the output is what it is because the one before it, most often a drafted one, counts."""
    params, prompt, output = request.params, list(request.prompt_ids), oracle(world, request).tokens
    for at in range(1, len(output)):
        logits = world.plain.logits_after([*prompt, *output[:at]])
        scores = [processed(logits, params, prompt, output[:seen]) for seen in (at - 1, at)]
        if params.temperature > 0 and params.top_k != 1:
            drawn = noise(params.seed, request.choice, len(prompt) + at, len(logits))
            scores = [values + drawn for values in scores]
        if scores[0].argmax() != scores[1].argmax():
            return True
    return False
