"""Replays spread over Ray tasks are those of this process, in the same order, errors included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.drafters.base import DrafterTraits
from draftwing.errors import ConfigError, SetupError
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.profile import Profile
from draftwing_tuner.mixed import Mixed, compare, contenders
from draftwing_tuner.rates import Bucket, Ground, Replay, rate_of
from draftwing_tuner.search import Found, search
from draftwing_tuner.tasks import J, R, S, Spread, in_turn, ray_tasks
from draftwing_tuner.trace import Trace
from tests.unit.tuner.test_search import costs
from tests.unit.tuner.traces import made_up_trace

BUCKETS = [Bucket(1, 16), Bucket(4, 16)]


def compared(spread: Spread) -> list[Mixed]:
    """Every kind of policy, those that learn among them."""
    ground = Ground(made_up_trace(3, answers=4), "made", costs(0.2, 0.1))
    rows = (ScheduleRow(4, 64, (2, 1), 4, 2.0, 90.0, 1.3),)
    return compare(ground, contenders(ground, Profile(ground.costs, schedule=rows), [], 2), [1, 4], spread)


def searched(folder: Path, spread: Spread) -> list[Found]:
    folder.mkdir()
    replay = Replay(Ground(made_up_trace(3, answers=4), "made", costs(0.2, 0.1)), spread)
    return search(replay, BUCKETS, DrafterTraits(trees=True, confidence=True), folder, trials=6)


def test_nothing_depends_on_who_computes_it(tmp_path: Path, ray_session: str) -> None:
    with ray_tasks() as spread:
        far, day = searched(tmp_path / "far", spread), compared(spread)
        with pytest.raises(ConfigError, match=r"^the answers are too short to keep 4 sequences busy; .*$"):
            spread(rate_of, Ground(Trace((), {"made": ()}), "made", costs(0.2, 0.1)), [(BUCKETS[1], NO_DRAFT)])
    assert far == searched(tmp_path / "near", in_turn)
    assert day == compared(in_turn)
    assert any(one.shape != NO_DRAFT for one in far)


def test_rates_asked_together_are_computed_once() -> None:
    asked: list[object] = []

    def spread(work: Callable[[S, J], R], shared: S, jobs: Sequence[J]) -> list[R]:
        asked.extend(jobs)
        return in_turn(work, shared, jobs)

    replay = Replay(Ground(made_up_trace(3, answers=4), "made", costs(0.2, 0.1)), spread)
    jobs = [(BUCKETS[0], DraftShape((1,), 1)), (BUCKETS[0], NO_DRAFT)]
    replay.learn([*jobs, *jobs])
    replay.learn(jobs)
    assert asked == jobs
    assert replay.rate(*jobs[0]) == Replay(replay.ground).rate(*jobs[0])


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:1")
    with pytest.raises(SetupError, match=r"Ray at 127\.0\.0\.2:1 \(from RAY_ADDRESS; unset .*refused"), ray_tasks():
        pass
