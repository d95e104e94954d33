"""Method `auto`: tries each drafter, keeps the best of late per class, explores within bounds, survives failures."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import pytest

from draftwing.config import load_config
from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters.auto import AutoDrafter, AutoOptions
from draftwing.drafters.base import Accepted, Controller, DrafterTraits, NullController, SequenceView, TokenDrafter
from draftwing.errors import ConfigError
from draftwing.testing.drafters import View

SHAPE = DraftShape((2, 1, 1), 6)


class Chain(TokenDrafter):
    """Proposes its own token; told: what it heard of verifies."""

    traits = DrafterTraits(max_depth=2)

    def __init__(self, token: int, *, fails: bool = False) -> None:
        self.token, self.fails, self.asked = token, fails, 0
        self.told: list[int] = []

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        if self.fails:
            raise ZeroDivisionError("a bug")
        self.asked += len(sequences)
        return [DraftTree.chain([self.token] * shape.depth) for shape in plan.shapes]

    def commit(self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: object = None) -> None:
        self.told += [len(one.nodes) for one in accepted]


def run(auto: AutoDrafter, right: int, steps: int, temperature: float = 0.0) -> list[int]:
    """Tokens proposed in each step, where `right` is what the target takes; -1: no draft."""
    view = View("a", [1], 1, SamplingParams(temperature=temperature))
    proposed = []
    for _ in range(steps):
        (draft,) = auto.propose([view], StepPlan("auto", (SHAPE,)), NullController())
        sound = isinstance(draft, DraftTree)
        token = int(draft.tokens[0]) if sound else -1
        proposed.append(token)
        nodes = np.arange(len(draft) if sound and token == right else 0)
        auto.commit([view], [Accepted(nodes, len(nodes) + 1)])
    return proposed


def test_the_best_is_kept_and_the_others_are_explored_within_bounds() -> None:
    drafters = {"a": Chain(1), "b": Chain(2), "c": Chain(3)}
    auto = AutoDrafter(AutoOptions(trials=2, explore_every=10), drafters)
    assert run(auto, 2, 6).count(2) == 2
    later = run(auto, 2, 200)
    assert later.count(2) >= 180
    assert set(later) == {1, 2, 3}


def test_a_change_is_found_and_classes_are_apart() -> None:
    auto = AutoDrafter(AutoOptions(trials=2, explore_every=4, memory=8), {"a": Chain(1), "b": Chain(2)})
    run(auto, 1, 50)
    assert run(auto, 2, 200)[-40:].count(2) > 25
    assert run(auto, 1, 100, temperature=0.8)[-40:].count(1) > 30
    assert run(auto, 2, 40).count(2) > 25


def test_only_the_one_that_drafted_hears_what_was_accepted() -> None:
    one, other = Chain(1), Chain(2)
    run(AutoDrafter(AutoOptions(trials=2), {"a": one, "b": other}), 1, 4)
    assert one.told == [2, 0, 2, 0]
    assert other.told == [0, 0, 0, 0]


def test_one_that_raises_is_not_preferred() -> None:
    auto = AutoDrafter(AutoOptions(trials=1, explore_every=10), {"bad": Chain(1, fails=True), "good": Chain(2)})
    assert run(auto, 2, 100).count(-1) <= 10


def test_shapes_are_cut_to_what_a_drafter_can() -> None:
    auto = AutoDrafter(drafters={"a": Chain(1)})
    assert auto.traits.max_depth == 2
    (draft,) = auto.propose([View("a", [1], 1)], StepPlan("auto", (SHAPE,)), NullController())
    assert draft.parents.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("drafters", "says"),
    [
        ([{"method": "ngram"}, {"method": "suffix"}], "2 drafters of which 0 have method auto"),
        ([{"method": "auto"}], "auto has nothing to choose from"),
        ([{"method": "auto"}, {"method": "ngram"}, {"method": "ngram"}], "two of them have the name 'ngram'"),
    ],
)
def test_what_makes_no_choice_is_refused(drafters: list[dict[str, str]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(None, {"drafters": drafters}, {})


def test_the_chooser_is_the_drafter_of_the_config() -> None:
    drafters = [{"method": "ngram"}, {"method": "auto", "name": "best"}, {"method": "suffix"}]
    config = load_config(None, {"drafters": drafters}, {}).config
    assert config.drafter_name == "best"
    assert config.policy.mode == "adaptive"
