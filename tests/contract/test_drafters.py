"""The built-in drafters keep the contract, and the contract notices those that don't."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

import numpy as np
import pytest

from draftwing.core import DraftTree, StepPlan
from draftwing.drafters.auto import AutoDrafter
from draftwing.drafters.base import (
    Controller,
    Drafter,
    DrafterTraits,
    NullController,
    SequenceView,
    TokenDrafter,
)
from draftwing.drafters.lookahead import LookaheadDrafter
from draftwing.drafters.ngram import NgramDrafter, NgramOptions
from draftwing.drafters.none import NoneDrafter
from draftwing.drafters.suffix import SuffixDrafter
from draftwing.testing.drafter_contract import (
    VOCAB_SIZE,
    DrafterContract,
    Life,
    MakeDrafter,
    Start,
    bound,
    same,
    text,
)
from draftwing.testing.drafters import OracleDrafter


class TestNone(DrafterContract):
    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        return lambda: bound(NoneDrafter())


class TestNgram(DrafterContract):
    @pytest.fixture(params=["recent", "vllm", "hf"])
    def make_drafter(self, request: pytest.FixtureRequest) -> MakeDrafter:
        return lambda: bound(NgramDrafter(NgramOptions(rule=request.param)))

    def test_something_is_drafted_and_accepted(self, live: Start) -> None:
        life = live(1)
        drafted = [len(life.step()) for _ in range(30)]
        assert sum(drafted) > 30
        assert len(life.view.tokens) > 40 + 30 + 10


class TestSuffix(DrafterContract):
    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        return lambda: bound(SuffixDrafter())


class TestLookahead(DrafterContract):
    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        return lambda: bound(LookaheadDrafter())


class TestAuto(DrafterContract):
    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        return lambda: bound(AutoDrafter(drafters={"a": NgramDrafter(), "b": NoneDrafter(), "c": SuffixDrafter()}))

    def test_steps_without_a_proposal_are_followed(self, live: Start) -> None:
        """Which drafter is asked follows from the drafts so far; what one drafts does not."""
        asked, quiet = live(4), live(4)
        for _ in range(6):
            quiet.commit(asked.step())
        for mine, other in zip(drafters_of(asked), drafters_of(quiet), strict=True):
            plan = StepPlan("it", (self.shapes(asked.drafter)[1],))
            (one,) = mine.propose([asked.view], plan, NullController())
            (two,) = other.propose([quiet.view], plan, NullController())
            assert same(one, two)


def drafters_of(life: Life) -> list[Drafter]:
    assert isinstance(life.drafter, AutoDrafter)
    return list(life.drafter.drafters.values())


class TestOracle(DrafterContract):
    @pytest.fixture
    def make_drafter(self) -> MakeDrafter:
        def plain(sequence: SequenceView) -> list[int]:
            return text(sequence.params.seed, sequence.prompt_len + 300)[sequence.prompt_len :]

        return lambda: bound(OracleDrafter(plain))


class Faulty(TokenDrafter):
    """Drafts well, but for the fault in its class."""

    traits = DrafterTraits(trees=True)

    def __init__(self) -> None:
        self.inner = NgramDrafter()

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        return self.inner.propose(sequences, plan, controller, base)

    def release(self, sequence: SequenceView) -> None:
        self.inner.release(sequence)


class Leaks(Faulty):
    def release(self, sequence: SequenceView) -> None:
        pass


class Grumbles(Faulty):
    def release(self, sequence: SequenceView) -> None:
        del self.inner._contexts[sequence.id]


class Oversteps(Faulty):
    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        return [DraftTree.chain([1] * (shape.depth + 1)) for shape in plan.shapes]


class Rolls(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng()

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        return [DraftTree.chain(self.rng.integers(0, VOCAB_SIZE, shape.depth)) for shape in plan.shapes]


class Mixes(Faulty):
    """One memory for all sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        drafts = [DraftTree.chain([self.last] * shape.depth) for shape in plan.shapes]
        self.last = sequences[-1].tokens[-1]
        return drafts


class Forgets(Faulty):
    """Drops the state of all sequences where it should drop one's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        self.calls.update(sequence.id for sequence in sequences)
        return [DraftTree.chain([self.calls[sequence.id]]) for sequence in sequences]

    def release(self, sequence: SequenceView) -> None:
        self.calls.clear()


class IgnoresBase(Faulty):
    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        return self.inner.propose(sequences, plan, controller)


@pytest.mark.parametrize(
    ("drafter", "test"),
    [
        (Leaks, "test_release_frees_memory"),
        (Grumbles, "test_release_is_final_and_forgiving"),
        (Oversteps, "test_no_draft_means_none"),
        (Rolls, "test_asking_twice_changes_nothing"),
        (Rolls, "test_two_runs_draft_alike"),
        (Mixes, "test_a_batch_drafts_as_its_sequences_alone"),
        (Mixes, "test_a_base_leaves_no_trace"),
        (Forgets, "test_a_cancelled_sequence_disturbs_no_other"),
        (IgnoresBase, "test_a_base_drafts_as_if_committed"),
    ],
)
def test_a_fault_is_noticed(drafter: type[Faulty], test: str) -> None:
    def make() -> Faulty:
        return drafter()

    suite = DrafterContract()
    takes_both = "make_drafter" in getattr(DrafterContract, test).__code__.co_varnames
    with pytest.raises((AssertionError, KeyError)):
        getattr(suite, test)(Start(make), *([make] if takes_both else []))


def test_drafts_beyond_the_plan_are_noticed() -> None:
    with pytest.raises(AssertionError):
        DrafterContract().test_drafts_are_sound_and_within_the_plan(Start(Oversteps), 0.0)
