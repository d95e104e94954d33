"""Policies that take turns on the same traffic: what counts, and what the interval says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from math import exp, log

import pytest
from torch import Tensor

from draftwing.core import DraftShape, Request, SamplingParams
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.batch import SequenceRows
from draftwing.policy.modes import FixedPolicy
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import make_engine
from draftwing_tuner.paired import Block, Traffic, compare, plain_policy, run_block, run_round


class Timed(MockTarget):
    """A forward takes base + per_row * rows milliseconds on the clock `now`. order: see `MockBehaviour`."""

    def __init__(self, base: float, per_row: float, order: int = 1) -> None:
        super().__init__(MockBehaviour(vocab_size=12, order=order, sharpness=8.0), slots=4096)
        self.base, self.per_row, self.seconds = base, per_row, 0.0

    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        self.seconds += (self.base + self.per_row * sum(len(s.tokens) for s in sequences)) / 1e3
        return super().forward(sequences)

    def now(self) -> float:
        return self.seconds


def requests() -> Iterator[Request]:
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    for number in count():
        yield Request(f"{number}", [number % 12, 1, 2], params, salt=f"{number}")


def traffic_of(runner: Timed, concurrency: int) -> Traffic:
    engine = make_engine(runner, drafter=NgramDrafter(), blocks=1024, block_tokens=4)
    return Traffic(engine, requests(), concurrency)


def test_a_block_counts_full_steps_alone() -> None:
    runner = Timed(10.0, 0.5)
    block = run_block(traffic_of(runner, 3), plain_policy(), 20, cpu=runner.now, wall=runner.now)
    assert (block.steps, block.tokens, block.drafting) == (20, 60, 0)
    assert block.cpu_s == pytest.approx(20 * (10 + 3 * 0.5) / 1e3)
    assert runner.seconds > block.cpu_s  # prompts, and the first steps


def test_a_policy_that_gains_is_seen_to_gain_and_one_that_loses_to_lose() -> None:
    for order, gains in ((1, True), (0, False)):  # text that repeats itself, and text that doesn't
        runner = Timed(10.0, 10.0, order)
        traffic = traffic_of(runner, 2)
        policies = {"plain": plain_policy(), "k4": FixedPolicy("", DraftShape((1,) * 4, 4))}
        rounds = []
        for _ in range(4):
            blocks = {name: [] for name in policies}  # type: dict[str, list[Block]]
            for name in ("plain", "k4", "k4", "plain"):
                blocks[name].append(run_block(traffic, policies[name], 10, cpu=runner.now, wall=runner.now))
            rounds.append(blocks)
        (found,) = compare(rounds, "plain")
        assert found.cpu.low <= found.cpu.mean <= found.cpu.high
        assert (found.cpu.low > 1.0) if gains else (found.cpu.high < 1.0)
        assert found.cpu == found.wall
        assert found.drafting > 0.5
        traffic.drain()
        assert not traffic.engine.busy
        traffic.engine.check()


def test_a_round_goes_forth_and_back() -> None:
    order: list[str] = []

    class Named(FixedPolicy):
        def __init__(self, name: str) -> None:
            super().__init__("", DraftShape())
            self.name = name

        def decide(self, inputs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            if order[-1:] != [self.name]:
                order.append(self.name)
            return super().decide(inputs)

    run_round(traffic_of(Timed(1.0, 0.1), 1), {name: Named(name) for name in "ABC"}, 3)
    assert order == ["A", "B", "C", "B", "A"]  # C's two blocks lie side by side


def test_the_interval_of_ratios_is_student_s() -> None:
    rounds = [
        {"plain": [Block(1, 0, 100, 1.0, 1.0)] * 2, "new": [Block(1, 1, 100, 1.0 / ratio, 1.0)] * 2}
        for ratio in (1.1, 1.2, 1.3)
    ]
    (found,) = compare(rounds, "plain")
    logs = [log(1.1), log(1.2), log(1.3)]
    mean = sum(logs) / 3
    spread = (sum((x - mean) ** 2 for x in logs) / 2 / 3) ** 0.5
    assert found.cpu.mean == pytest.approx(exp(mean))
    assert found.cpu.high == pytest.approx(exp(mean + 4.30 * spread))
    assert found.wall.mean == pytest.approx(1.0)
    assert found.rounds == 3
    (alone,) = compare(rounds[:1], "plain")
    assert (alone.cpu.low, alone.cpu.high) == (0.0, float("inf"))


def test_traffic_that_ends_is_an_error() -> None:
    engine = make_engine(Timed(1.0, 0.1), drafter=NgramDrafter(), blocks=256)
    traffic = Traffic(engine, iter([next(requests())]), 1)
    with pytest.raises(RuntimeError, match="the traffic ended"):
        run_block(traffic, plain_policy(), 100)
