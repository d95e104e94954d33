"""The study finds what pays on a cost curve, begins with what is known, and goes on after a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.drafters.base import DrafterTraits
from draftwing.policy.cost import CostModel
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell
from draftwing_tuner.rates import Bucket, Ground, Replay
from draftwing_tuner.search import best_fixed, candidates, search
from draftwing_tuner.tasks import J, R, S, in_turn
from tests.unit.tuner.traces import made_up_trace

TREES = DrafterTraits(trees=True, confidence=True)


def costs(per_row: float, draft: float) -> CostModel:
    """10 ms, and so much for each row and each draft level."""
    return CostModel.fit(
        CostCurves(
            name="line",
            verify=tuple(VerifyCell(batch=1, rows=n, context=0, verify_ms=10 + per_row * n) for n in (1, 4, 16, 64)),
            draft_step_ms=(BatchCell(batch=1, ms=draft), BatchCell(batch=64, ms=draft)),
        )
    )


@pytest.fixture
def replay() -> Replay:
    return Replay(Ground(made_up_trace(3, answers=8, accuracy=0.8), "made", costs(0.2, 0.1)))


def test_plain_decoding_takes_what_the_curve_says(replay: Replay) -> None:
    rate = replay.rate(Bucket(2, 16), NO_DRAFT)
    assert rate.tokens == 1
    assert rate.per_ms == pytest.approx(2 / 10.4)


def test_drafting_pays_where_rows_are_cheap_and_not_where_they_are_dear(tmp_path: Path, replay: Replay) -> None:
    (cheap,) = search(replay, [Bucket(1, 16)], TREES, tmp_path, trials=8)
    assert cheap.margin > 1.3
    assert cheap.shape.depth > 0
    dear = Replay(Ground(replay.ground.trace, "made", costs(10.0, 5.0)))
    (found,) = search(dear, [Bucket(4, 16)], TREES, tmp_path, trials=8)
    assert found.shape == NO_DRAFT
    assert found.margin == 1.0
    assert all(value <= 0 for _, value, _ in found.trials)


def test_the_first_trials_are_what_is_known(tmp_path: Path, replay: Replay) -> None:
    stored = DraftShape((2, 1), 4)
    (found,) = search(replay, [Bucket(2, 16)], TREES, tmp_path, stored=lambda _: stored, trials=4)
    shapes = [shape for _, _, shape in found.trials]
    assert shapes[:2] == [NO_DRAFT, DraftShape((1,) * 4, 4)]
    assert shapes[2].branching == (1,) * shapes[2].depth
    assert stored in shapes


def test_a_stopped_study_goes_on(tmp_path: Path, replay: Replay) -> None:
    bucket = Bucket(1, 16)
    (first,) = search(replay, [bucket], TREES, tmp_path, trials=3)
    (again,) = search(replay, [bucket], TREES, tmp_path, trials=5)
    assert again.trials[:3] == first.trials
    assert [number for number, _, _ in again.trials] == [0, 1, 2, 3, 4]
    assert again.margin >= first.margin


def test_what_was_asked_for_when_a_run_stopped_is_tried_again(tmp_path: Path, replay: Replay) -> None:
    def stopped(work: Callable[[S, J], R], shared: S, jobs: Sequence[J]) -> list[R]:
        if len(jobs) > 1:
            raise KeyboardInterrupt
        return in_turn(work, shared, jobs)

    bucket = Bucket(1, 16)
    halted = Replay(replay.ground, stopped)
    halted.learn([(bucket, NO_DRAFT)])
    with pytest.raises(KeyboardInterrupt):
        search(halted, [bucket], TREES, tmp_path, trials=5)
    (found,) = search(replay, [bucket], TREES, tmp_path, trials=5)
    assert [shape for _, _, shape in found.trials][:2] == [NO_DRAFT, DraftShape((1,) * 4, 4)]
    assert len(found.trials) == 5


def test_a_drafter_of_chains_gets_chains(tmp_path: Path, replay: Replay) -> None:
    (found,) = search(replay, [Bucket(1, 16)], DrafterTraits(max_depth=3), tmp_path, trials=8)
    assert all(set(shape.branching) <= {1} and shape.depth <= 3 for _, _, shape in found.trials)


def test_the_best_fixed_shape_is_that_of_the_mean(tmp_path: Path, replay: Replay) -> None:
    found = search(replay, [Bucket(1, 16), Bucket(4, 16)], TREES, tmp_path, trials=5)
    shape, mean = best_fixed(replay, found, 8)
    assert shape in candidates(found, 8)
    assert all(replay.rate(f.bucket, s).per_ms <= f.rate.per_ms + 1e-9 for f in found for s in candidates(found, 8))
    product = 1.0
    for one in found:
        product *= replay.rate(one.bucket, shape).per_ms / one.plain.per_ms
    assert mean == pytest.approx(product**0.5)
    assert mean <= (found[0].margin * found[1].margin) ** 0.5 + 1e-9
