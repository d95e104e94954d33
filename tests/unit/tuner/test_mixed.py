"""The day of the comparison: the same requests for every setting, and times that add up."""

from __future__ import annotations

import pytest

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.errors import ConfigError
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import Policy
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing.policy.profile import Profile
from draftwing_tuner.history import StudyRow, best_shapes, shape_from, shape_text
from draftwing_tuner.mixed import EACH, PLAIN, TABLE, compare, contenders, phases_of, serve, with_table
from draftwing_tuner.rates import Ground
from draftwing_tuner.tasks import in_turn
from draftwing_tuner.trace import Trace
from tests.unit.tuner.test_search import costs
from tests.unit.tuner.traces import made_up_trace

BATCHES = [1, 4]
ROWS = [ScheduleRow(1, 64, (2, 1), 4, 2.0, 90.0, 1.3), ScheduleRow(4, 64, (), 0, 1.0, 90.0, 1.0)]


@pytest.fixture
def ground() -> Ground:
    return Ground(made_up_trace(5, answers=6), "made", costs(0.2, 0.1))


def test_the_load_climbs_and_falls() -> None:
    assert phases_of([4, 1, 2, 2]) == (1, 2, 4, 2, 1)
    assert phases_of([3]) == (3,)


def test_plain_decoding_alone_takes_a_step_a_token_and_one_for_each_prompt(ground: Ground) -> None:
    answers = ground.trace.requests[:EACH]
    rows = [one.prompt_len for one in answers] + [1] * sum(len(one.output) - 1 for one in answers)
    (seconds,) = serve(ground, (OffPolicy(), (1,)))
    assert seconds == pytest.approx(sum(10 + 0.2 * n for n in rows) / 1e3, rel=0.02)  # a few prompt rows are cached


def test_settings_are_told_by_time_over_the_same_requests(ground: Ground) -> None:
    tried: dict[str, Policy] = {PLAIN: OffPolicy(), "k2": FixedPolicy("made", DraftShape((1, 1), 2))}
    plain, fixed = compare(ground, tried, BATCHES, in_turn)
    assert (plain.ratios, plain.overall) == ((1.0, 1.0), 1.0)
    slow, fast = (serve(ground, (policy, (1, 4, 1))) for policy in tried.values())
    assert fixed.overall == sum(slow) / sum(fast)
    assert fixed.ratios == ((slow[0] + slow[2]) / (fast[0] + fast[2]), slow[1] / fast[1])
    assert fixed.overall > 1.1


def test_a_table_is_its_shapes_at_their_concurrency(ground: Ground) -> None:
    profile = Profile(ground.costs, schedule=tuple(ROWS))
    trees = best_shapes([StudyRow(1, 64, 0, 1.1, 1.1, "1x1x1x1, 4 nodes")], ROWS)
    tried = contenders(ground, profile, trees, most_depth=5)
    assert [*tried] == [
        *("plain decoding", "fixed k=1", "fixed k=2", "fixed k=3", "fixed k=4", "fixed k=5", "fixed 2x1, 4 nodes"),
        *("untuned default", "table", "adaptive"),
    ]
    found = {one.name: one for one in compare(ground, tried, BATCHES, in_turn)}
    alone, together = found["table"].ratios
    assert alone == pytest.approx(found["fixed 2x1, 4 nodes"].ratios[0])
    assert 1.0 <= together < alone  # the last one of four is alone
    other = with_table([*found.values()], ground, [ScheduleRow(4, 64, (), 0, 1.0, 90.0, 1.0)])
    assert [one for one in other if one.name != TABLE] == [one for one in found.values() if one.name != TABLE]


def test_the_best_shapes_are_those_of_every_bucket() -> None:
    words = ["no draft", "1x1, 2 nodes", "2x1, 3 nodes", "1x1, 2 nodes", "1, 1 nodes", "3, 3 nodes"]
    values = [1.0, 1.3, 1.2, 1.3, 1.1, 0.9]
    study = [StudyRow(1, 64, i, v, 1.3, shape) for i, (v, shape) in enumerate(zip(values, words, strict=True))]
    study.append(StudyRow(4, 64, 0, 1.0, 1.0, "no draft"))
    assert [shape_text(s) for s in best_shapes(study, [])] == [words[1], words[2], words[4], words[0]]
    assert best_shapes([], ROWS) == [DraftShape((2, 1), 4), NO_DRAFT]
    with pytest.raises(ValueError, match="no draft shape"):
        shape_from("2x, 3 nodes")


@pytest.mark.parametrize("most_depth", [2, 5])
def test_a_setting_has_one_name_whoever_brings_it(ground: Ground, most_depth: int) -> None:
    trees = [DraftShape((1, 1, 1), 3), DraftShape((1, 1, 1), 2), DraftShape((2, 1), 4), DraftShape((1, 1, 1), 3)]
    names = list(contenders(ground, Profile(ground.costs, schedule=tuple(ROWS)), trees, most_depth))
    assert names.count("fixed k=3") == 1
    assert "fixed 2x1, 4 nodes" in names
    assert "fixed 1x1x1, 2 nodes" in names


def test_a_day_begins_anew_for_a_policy_that_learns(ground: Ground) -> None:
    tried = contenders(ground, Profile(ground.costs, schedule=tuple(ROWS)), [], 5)
    assert compare(ground, tried, BATCHES, in_turn) == compare(ground, tried, BATCHES, in_turn)


def test_an_empty_trace_is_refused(ground: Ground) -> None:
    with pytest.raises(ConfigError, match="no answer"):
        serve(Ground(Trace((), {"made": ()}), "made", ground.costs), (OffPolicy(), (1,)))
