"""Validation on an engine: every level has its rounds, a stop loses none, and slow buckets lose their drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwing.core import DraftShape
from draftwing.drafters.ngram import NgramDrafter
from draftwing.policy.artifact import ScheduleRow
from draftwing.policy.base import Policy
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import assert_idle, make_engine
from draftwing_tuner.mixed import ADAPTIVE, PLAIN, TABLE, Mixed
from draftwing_tuner.paired import Block, Ratio, Round, Standing
from draftwing_tuner.validate import LEAST_ROUNDS, Level, better_mode, validate, withdrawn

PROMPTS = [[1, 2, 1, 2], [3, 4, 3], [5, 5]]
LEVELS = (1, 3)


def run(folder: Path, *, most_rounds: int, go_on: bool = True, shown: list[int] | None = None) -> list[Level]:
    runner = MockTarget(MockBehaviour(vocab_size=12, order=1, sharpness=8.0), slots=4096)
    engine = make_engine(runner, drafter=NgramDrafter(), blocks=1024)
    policies: dict[str, Policy] = {PLAIN: OffPolicy(), "k2": FixedPolicy("", DraftShape((1, 1), 2))}
    before = engine.policy
    found = validate(
        engine,
        PROMPTS,
        policies,
        LEVELS,
        folder,
        max_tokens=30,
        most_rounds=most_rounds,
        go_on=lambda: go_on,
        show=lambda done, _: shown.append(done) if shown is not None else None,
    )
    assert engine.policy is before
    assert_idle(engine)
    return found


def test_every_level_has_its_rounds(tmp_path: Path) -> None:
    levels = run(tmp_path, most_rounds=4)
    assert [level.concurrency for level in levels] == list(LEVELS)
    for level in levels:
        (standing,) = level.standings
        assert standing.policy == "k2"
        assert standing.rounds == 4
        assert standing.drafting > 0.5
        assert standing.tokens > level.concurrency
        assert standing.wall.low <= standing.wall.mean <= standing.wall.high


def test_when_the_time_is_over_there_are_enough_for_an_interval(tmp_path: Path) -> None:
    levels = run(tmp_path, most_rounds=9, go_on=False)
    assert [level.standings[0].rounds for level in levels] == [LEAST_ROUNDS] * 2


def test_a_stopped_validation_goes_on(tmp_path: Path) -> None:
    first = run(tmp_path, most_rounds=3)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text() + '{"level": 1, "blo')
    shown: list[int] = []
    second = run(tmp_path, most_rounds=4, shown=shown)
    assert shown == [3]
    assert [level.standings[0].rounds for level in second] == [4, 4]
    assert run(tmp_path, most_rounds=4, shown=shown) == second
    assert shown == [3]
    assert first != second


@pytest.mark.parametrize(("high", "drafts"), [(0.99, False), (1.01, True)])
def test_a_bucket_that_is_slower_beyond_its_interval_drafts_nothing(high: float, drafts: bool) -> None:
    rows = [ScheduleRow(batch, 256, (1, 1), 2, 1.4, 9.0, 1.2) for batch in (1, 4, 8, 16)]
    even = Ratio(1.0, 0.9, 1.1)
    levels = [
        Level(1, (Standing("table", even, even, 1.0, 1.0, 3),)),
        Level(8, (Standing("k2", Ratio(0.5, 0.5, 0.5), even, 1.0, 1.0, 3),)),
        Level(8, (Standing("table", Ratio(0.9, 0.8, high), even, 1.0, 1.0, 3),)),
    ]
    kept = withdrawn(rows, levels, "table", "cpu")
    assert kept[0] == rows[0]
    assert [mine == theirs for mine, theirs in zip(kept[1:], rows[1:], strict=True)] == [drafts] * 3
    assert drafts or all((row.branching, row.nodes, row.margin) == ((), 0, 1.0) for row in kept[1:])
    assert drafts or all(row.rate == pytest.approx(7.5) for row in kept[1:])
    assert withdrawn(rows, levels, "table", "wall") == rows
    assert withdrawn(rows, [], "table", "cpu") == rows


def rounds(adaptive: float, table: float, noise: float) -> tuple[Round, ...]:
    """Three rounds of 100 tokens a second times each factor; the table's rate varies by the noise."""
    return tuple(
        {
            PLAIN: [Block(1, 0, 100, 1.0, 1.0)] * 2,
            TABLE: [Block(1, 1, 100, 1.0, 1 / (table * (1 + noise * turn)))] * 2,
            ADAPTIVE: [Block(1, 1, 100, 1.0, 1 / adaptive)] * 2,
        }
        for turn in (-1, 0, 1)
    )


@pytest.mark.parametrize(
    ("adaptive", "table", "noise", "replayed", "mode"),
    [
        (1.3, 1.2, 0.01, "table", "adaptive"),  # the engine tells them apart, whatever replay says
        (1.2, 1.3, 0.01, "adaptive", "table"),
        (1.3, 1.2, 0.5, "table", "table"),  # it doesn't, and replay decides
        (1.2, 1.3, 0.5, "adaptive", "adaptive"),
    ],
)
def test_the_engine_chooses_the_mode_where_it_can_and_replay_where_it_cannot(
    adaptive: float, table: float, noise: float, replayed: str, mode: str
) -> None:
    mixed = [Mixed(name, (), 1.4 if name == replayed else 1.3) for name in (ADAPTIVE, TABLE)]
    assert better_mode(mixed, [Level(1, (), rounds(adaptive, table, noise))], "wall") == mode


def test_a_withdrawn_table_is_plain_decoding_when_the_mode_is_chosen() -> None:
    slow = Standing(TABLE, Ratio(0.5, 0.4, 0.6), Ratio(0.5, 0.4, 0.6), 1.0, 1.0, 3)
    mixed = [Mixed(ADAPTIVE, (), 1.1), Mixed(TABLE, (), 1.0)]
    level = Level(1, (slow,), rounds(adaptive=0.9, table=0.5, noise=0.01))
    assert better_mode(mixed, [level], "wall") == TABLE
