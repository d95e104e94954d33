"""The rules every drafter keeps, as a suite: a plug-in's tests subclass it.

    class TestMine(DrafterContract):
        @pytest.fixture
        def make_drafter(self) -> MakeDrafter:
            return lambda: bound(MyDrafter())

A fixture `features` may be overridden too, for drafters that need the target's hidden states.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

import numpy as np
import pytest

from draftwing.core import NO_DRAFT, DraftShape, DraftTree, Request, SamplingParams, StepPlan
from draftwing.drafters.base import (
    Accepted,
    BoolArray,
    Drafter,
    FeatureRows,
    NullController,
    SequenceView,
    TargetInfo,
)
from draftwing.drafters.validate import checked
from draftwing.testing.drafters import View
from draftwing.testing.faulty import FAULTS, FaultyDrafter
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import make_engine, run_to_end

VOCAB_SIZE = 64
CONTEXT_LENGTH = 512
BLOCK_TOKENS, LIVES = 16, 64
BLOCKS = CONTEXT_LENGTH // BLOCK_TOKENS  # of one sequence
CHAIN, WIDE, TREE = DraftShape((1,) * 4, 4), DraftShape((3, 1, 1), 9), DraftShape((3, 2, 2), 12)

MakeDrafter = Callable[[], Drafter]
Features = Callable[[SequenceView, int, int], FeatureRows | None]


def bound(drafter: Drafter, vocab_size: int = VOCAB_SIZE) -> Drafter:
    drafter.bind(TargetInfo(vocab_size=vocab_size, context_length=CONTEXT_LENGTH, eos_token_ids=(0,)))
    drafter.reserve(LIVES * BLOCKS, BLOCK_TOKENS)
    return drafter


def no_features(sequence: SequenceView, start: int, stop: int) -> FeatureRows | None:
    return None


def text(seed: int, length: int) -> list[int]:
    """Tokens that repeat themselves now and then, as text does."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = rng.integers(1, VOCAB_SIZE, 8).tolist()
    while len(tokens) < length:
        start = int(rng.integers(0, len(tokens) - 6))
        tokens += [*tokens[start : start + int(rng.integers(3, 7))], int(rng.integers(1, VOCAB_SIZE))]
    return tokens[:length]


@dataclass
class Life:
    """One sequence whose output is known, run through a drafter as the engine would."""

    drafter: Drafter
    features: Features
    seed: int
    temperature: float = 0.0
    prompt_len: int = 40
    view: View = field(init=False)
    drafts: list[DraftTree] = field(default_factory=list)

    def __post_init__(self) -> None:
        params = SamplingParams(max_tokens=400, temperature=self.temperature, seed=self.seed)
        self.view = View(f"life-{self.seed}", text(self.seed, self.prompt_len), self.prompt_len, params)
        self.view.table = list(range(self.seed % LIVES * BLOCKS, (self.seed % LIVES + 1) * BLOCKS))

    def rows(self, start: int, stop: int) -> list[FeatureRows] | None:
        rows = self.features(self.view, start, stop)
        return None if rows is None else [rows]

    def begin(self) -> None:
        half = self.prompt_len // 2
        self.drafter.prefill([self.view], self.rows(0, half))
        self.drafter.prefill([self.view], self.rows(half, self.prompt_len - 1))

    def step(self, shape: DraftShape = CHAIN) -> DraftTree:
        (draft,) = self.drafter.propose([self.view], StepPlan("it", (shape,)), NullController())
        self.commit(draft)
        return draft

    def commit(self, draft: DraftTree) -> None:
        """Accept what the known output accepts, and add the bonus token."""
        self.drafts.append(draft)
        root = len(self.view.tokens) - 1
        output = text(self.seed, root + 20)[root + 1 :]
        nodes: list[int] = []
        parent = -1
        for token in output:
            below = [n for n, p in enumerate(draft.parents.tolist()) if p == parent and draft.tokens[n] == token]
            if not below:
                break
            nodes.append(parent := below[0])
        self.view.tokens.extend(output[: len(nodes) + 1])
        accepted = Accepted(np.array(nodes, dtype=np.int64), len(nodes) + 1)
        self.drafter.commit([self.view], [accepted], self.rows(root, root + len(nodes) + 1))

    def end(self) -> None:
        self.drafter.release(self.view)


@dataclass(frozen=True)
class Start:
    """Starts sequences that have run their prompt, by seed, on a given drafter or on a new one."""

    make_drafter: MakeDrafter
    features: Features = no_features

    def __call__(self, seed: int, drafter: Drafter | None = None, temperature: float = 0.0) -> Life:
        life = Life(self.make_drafter() if drafter is None else drafter, self.features, seed, temperature)
        life.begin()
        return life


def same(one: DraftTree, other: DraftTree) -> bool:
    return bool(np.array_equal(one.tokens, other.tokens) and np.array_equal(one.parents, other.parents))


def families(draft: DraftTree) -> dict[tuple[int, ...], list[int]]:
    """The tokens of each node's children, by the tokens from the root, left out, to that node."""
    paths: list[tuple[int, ...]] = []
    found: dict[tuple[int, ...], list[int]] = {}
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        above = paths[parent] if parent >= 0 else ()
        paths.append((*above, token))
        found.setdefault(above, []).append(token)
    return found


class _Choosy:
    """Chooses by chance; the root always. chosen: paths of the last draft's chosen nodes."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self.chosen: set[tuple[int, ...]] = set()

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        (draft,) = drafts
        if depth == 0:
            self.chosen = {()}
            return [np.ones(1, dtype=np.bool_)]
        grow = self._draw.random(1 + len(draft)) < 0.6
        paths: list[tuple[int, ...]] = []
        for i, (token, parent) in enumerate(zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
            if grow[i + 1] and len(paths[i]) == depth:
                self.chosen.add(paths[i])
        return [grow]


def footprint(root: object) -> tuple[int, int]:
    """Objects reachable from `root` and their bytes, not counting code, classes and modules."""
    code = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType)
    seen: set[int] = set()
    stack, size = [root], 0
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, code):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item)
        stack.extend(gc.get_referents(item))
    return len(seen), size


class DrafterContract:
    """Subclass and override `make_drafter`: a callable that gives a new drafter, bound to VOCAB_SIZE tokens."""

    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        raise NotImplementedError("override the fixture make_drafter")

    @pytest.fixture
    def features(self) -> Features:
        """(sequence, start, stop) -> rows of features; None for token drafters."""
        return no_features

    @pytest.fixture
    def live(self, make_drafter: MakeDrafter, features: Features) -> Start:
        return Start(make_drafter, features)

    def shapes(self, drafter: Drafter) -> list[DraftShape]:
        trees = [WIDE, TREE, DraftShape((2, 2), 3)] if drafter.traits.trees else []
        known = [NO_DRAFT, CHAIN, DraftShape((1,), 1), DraftShape((1,) * 8, 3), *trees]
        return [shape.cut(drafter.traits.max_depth, shape.nodes) for shape in known]

    def test_is_a_drafter(self, make_drafter: MakeDrafter, features: Features) -> None:
        drafter = make_drafter()
        assert isinstance(drafter, Drafter)
        given = features(View("a", text(1, 40), 40), 0, 4)
        assert (given is None) == (drafter.traits.kind == "token"), "override the fixture features"

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_drafts_are_sound_and_within_the_plan(self, live: Start, temperature: float) -> None:
        life = live(1, temperature=temperature)
        for _ in range(3):
            for shape in self.shapes(life.drafter):
                drafts = life.drafter.propose([life.view], StepPlan("it", (shape,)), NullController())
                sound, bad = checked(drafts, [shape], VOCAB_SIZE)
                assert bad == 0, (shape, drafts)
                assert same(sound[0], drafts[0]), "siblings share a token"
                assert (drafts[0].confidences is not None) == (life.drafter.traits.confidence and len(drafts[0]) > 0)
            life.step(self.shapes(life.drafter)[1])

    def test_only_chosen_nodes_get_children(self, live: Start) -> None:
        """And they get the same ones as if all were chosen."""
        life = live(1)
        if life.drafter.traits.stop == "block":
            pytest.skip("asks nobody while it drafts")
        widest = DraftShape((3, 2, 1) if life.drafter.traits.trees else (1, 1, 1), 15)
        plan = StepPlan("it", (widest.cut(life.drafter.traits.max_depth, 15),))
        choosy = _Choosy()
        for _ in range(8):
            (full,) = life.drafter.propose([life.view], plan, NullController())
            (draft,) = life.drafter.propose([life.view], plan, choosy)
            assert len(draft) <= len(full)
            known = families(full)
            for path, children in families(draft).items():
                assert path in choosy.chosen
                assert path not in known or known[path] == children
            assert all(path in families(draft) for path in choosy.chosen if path in known)
            life.commit(full)

    def test_no_draft_means_none(self, live: Start) -> None:
        life = live(1)
        for shape in (NO_DRAFT, DraftShape((), 5), DraftShape((1, 1), 0)):
            (draft,) = life.drafter.propose([life.view], StepPlan("it", (shape,)), NullController())
            assert len(draft) == 0

    def test_asking_twice_changes_nothing(self, live: Start) -> None:
        life = live(2)
        for _ in range(5):
            plan = StepPlan("it", (self.shapes(life.drafter)[-1],))
            (first,) = life.drafter.propose([life.view], plan, NullController())
            (again,) = life.drafter.propose([life.view], plan, NullController())
            assert same(first, again)
            life.step()

    def test_two_runs_draft_alike(self, live: Start) -> None:
        one, other = live(3), live(3)
        for _ in range(12):
            assert same(one.step(), other.step())

    def test_steps_without_a_proposal_are_followed(self, live: Start) -> None:
        """While the policy drafts nothing, commits alone keep the drafter's state."""
        asked, quiet = live(4), live(4)
        for _ in range(6):
            quiet.commit(asked.step())
        assert same(asked.step(), quiet.step())

    def test_a_batch_drafts_as_its_sequences_alone(self, live: Start, make_drafter: MakeDrafter) -> None:
        shared = make_drafter()
        if shared.traits.stateful_across_requests:
            pytest.skip("drafts may depend on other sequences")
        together = [live(seed, shared) for seed in (5, 6, 7)]
        alone = [live(seed) for seed in (5, 6, 7)]
        for step in range(10):
            order = [together[(step + i) % 3] for i in range(3 if step % 4 else 2)]
            plan = StepPlan("it", (CHAIN.cut(shared.traits.max_depth, 4),) * len(order))
            drafts = shared.propose([life.view for life in order], plan, NullController())
            assert len(drafts) == len(order)
            for life, draft in zip(order, drafts, strict=True):
                life.commit(draft)
                assert same(draft, alone[together.index(life)].step(plan.shapes[0]))

    def test_a_base_leaves_no_trace(self, live: Start) -> None:
        asked, plain = live(8), live(8)
        shape = self.shapes(asked.drafter)[1]
        for more in ([1], [2, 3, 4], [1]):
            plan = StepPlan("it", (shape, shape))
            drafts = asked.drafter.propose([asked.view, asked.view], plan, NullController(), base=[more, [5]])
            assert checked(drafts, plan.shapes, VOCAB_SIZE)[1] == 0
            assert same(asked.step(shape), plain.step(shape))

    def test_a_base_drafts_as_if_committed(self, live: Start) -> None:
        """Token drafters only: the features of tokens that were not run are unknown."""
        life, grown = live(9), live(9)
        if life.drafter.traits.kind == "feature":
            pytest.skip("needs the features of a real commit")
        plan = StepPlan("it", (self.shapes(life.drafter)[1],))
        more = text(9, 43)[40:]
        (ahead,) = life.drafter.propose([life.view], plan, NullController(), base=[more])
        grown.view.tokens.extend(more)
        (after,) = grown.drafter.propose([grown.view], plan, NullController())
        assert same(ahead, after)

    def test_a_cancelled_sequence_disturbs_no_other(self, live: Start, make_drafter: MakeDrafter) -> None:
        shared = make_drafter()
        if shared.traits.stateful_across_requests:
            pytest.skip("drafts may depend on other sequences")
        stays, goes, alone = live(10, shared), live(11, shared), live(10)
        plan = StepPlan("it", (self.shapes(shared)[1],) * 2)
        drafts = shared.propose([goes.view, stays.view], plan, NullController())
        goes.end()  # between proposing and committing
        stays.commit(drafts[1])
        assert same(drafts[1], alone.step(plan.shapes[0]))
        for _ in range(4):
            assert same(stays.step(), alone.step())

    def test_release_is_final_and_forgiving(self, live: Start, make_drafter: MakeDrafter) -> None:
        drafter = make_drafter()
        drafter.release(View("never seen", [1], 1))
        first = live(12, drafter)
        first.step()
        first.end()
        first.end()
        if not drafter.traits.stateful_across_requests:
            assert same(live(12, drafter).step(), live(12).step()), "the same id starts anew"

    def test_release_frees_memory(self, live: Start, make_drafter: MakeDrafter) -> None:
        drafter = make_drafter()
        if drafter.traits.stateful_across_requests:
            pytest.skip("keeps state by design")

        def cycle(seeds: range) -> tuple[int, int]:
            for seed in seeds:
                life = live(seed, drafter)
                life.step()
                life.end()
            return footprint(drafter)

        objects, size = cycle(range(20, 30))
        more_objects, more_size = cycle(range(30, 60))
        assert more_objects <= objects + 5
        assert more_size <= size + 1000

    @pytest.mark.parametrize("fault", FAULTS)
    def test_no_fault_changes_an_output(self, make_drafter: MakeDrafter, fault: str) -> None:
        """Around a mock target that gives no hidden states, a feature drafter fails in other ways too."""
        behaviour = MockBehaviour(vocab_size=VOCAB_SIZE, order=2)
        requests = [
            Request(
                f"{fault} {seed}", text(seed, 20), SamplingParams(max_tokens=12, temperature=seed % 2 * 0.8, seed=seed)
            )
            for seed in range(3)
        ]
        plain = run_to_end(make_engine(MockTarget(behaviour)), requests)
        drafter = FaultyDrafter(make_drafter(), FAULTS[fault])
        drafter.reserve(256, 4)
        depth = min(3, drafter.traits.max_depth)
        got = run_to_end(make_engine(MockTarget(behaviour), drafter=drafter, branching=(1,) * depth), requests)
        assert {name: one.tokens for name, one in got.items()} == {name: one.tokens for name, one in plain.items()}
        assert depth == 0 or drafter.calls > 0
