"""Measuring a grid: in turns, until known, within a budget, and on after a stop."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from draftwing.drafters.base import DrafterTraits
from draftwing.errors import ConfigError
from draftwing_tuner.grid import HELD_ROWS, Bounds, Cell, grid
from draftwing_tuner.measure import LEAST, MOST, Summary, measure, summarise
from draftwing_tuner.samples import SampleFile

BOUNDS = Bounds(sequences=8, rows=512, contexts=(32, 256))
KEY = {"device": "a", "model_digest": "m"}


class Machine:
    """A virtual clock that advances by what a cell costs, with noise. seconds: since the start."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        self.seconds = 0.0
        self.order: list[Cell] = []
        self._noise, self._draw = noise, random.Random(seed)

    def sample(self, cell: Cell) -> float:
        ms = (5 + cell.rows + cell.batch + cell.depth) * (1 + self._noise * self._draw.random())
        self.order.append(cell)
        self.seconds += ms / 1e3
        return ms

    def now(self) -> float:
        return self.seconds


def run(machine: Machine, cells: list[Cell], path: Path, budget_s: float = 1e9) -> list[Summary]:
    file = SampleFile(path, KEY)
    try:
        return measure(cells, machine.sample, file, budget_s=budget_s, now=machine.now)
    finally:
        file.close()


def test_a_quiet_machine_needs_the_least_number_of_samples(tmp_path: Path) -> None:
    cells = grid(BOUNDS, DrafterTraits(trees=True))
    found = run(Machine(0.0), cells, tmp_path / "m.jsonl")
    assert [summary.cell for summary in found] == cells
    assert all(summary.n == LEAST and summary.done and summary.width == 0 for summary in found)


def test_cells_come_in_turns_and_in_another_order_each_time(tmp_path: Path) -> None:
    machine = Machine(0.0)
    cells = [Cell("verify", rows=n) for n in range(1, 20)]
    run(machine, cells, tmp_path / "m.jsonl")
    rounds = [machine.order[i : i + len(cells)] for i in range(0, len(machine.order), len(cells))]
    assert all(sorted(one) == cells for one in rounds)
    assert len({tuple(one) for one in rounds}) == LEAST


def test_a_noisy_cell_is_sampled_until_its_interval_is_narrow(tmp_path: Path) -> None:
    (found,) = run(Machine(0.5), [Cell("verify", rows=4)], tmp_path / "m.jsonl")
    assert LEAST < found.n < MOST
    assert found.width < 0.02
    assert found.low <= found.median <= found.high
    assert found.p20 < found.median < found.p95


@pytest.mark.parametrize("budget_s", [0.5, 3.0])
def test_a_small_budget_measures_the_first_cells_well(tmp_path: Path, budget_s: float) -> None:
    machine = Machine(0.0)
    cells = grid(BOUNDS, DrafterTraits(trees=True))
    found = run(machine, cells, tmp_path / "m.jsonl", budget_s)
    assert machine.seconds < budget_s * 1.5 + 5
    assert all(summary.n >= LEAST for summary in found)
    assert {summary.cell for summary in found} < set(cells)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    cells = [Cell("verify", rows=n) for n in (1, 2, 3)]

    class Stopped(Machine):
        def sample(self, cell: Cell) -> float:
            if len(self.order) == 7:
                raise KeyboardInterrupt
            return super().sample(cell)

    path = tmp_path / "m.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(Stopped(0.0), cells, path)
    path.write_text(path.read_text() + '{"cell": {"part": "ver')  # killed while it wrote
    machine = Machine(0.0)
    found = run(machine, cells, path)
    assert len(machine.order) == 3 * LEAST - 7
    assert [summary.n for summary in found] == [LEAST] * 3
    assert run(again := Machine(0.0), cells, path) == found
    assert again.order == []


def test_seconds_of_earlier_runs_count(tmp_path: Path) -> None:
    cells = [Cell("verify", rows=4)]
    path = tmp_path / "m.jsonl"
    run(Machine(0.5), cells, path, budget_s=0.1)
    machine = Machine(0.5)
    run(machine, cells, path, budget_s=0.1)
    assert machine.order == []


def test_another_machines_samples_are_refused_by_field(tmp_path: Path) -> None:
    SampleFile(tmp_path / "m.jsonl", KEY).close()
    with pytest.raises(ConfigError, match="device 'a' \\(now 'b'\\)") as caught:
        SampleFile(tmp_path / "m.jsonl", {**KEY, "device": "b"})
    assert "model_digest" not in str(caught.value)


def test_few_samples_have_no_interval() -> None:
    assert summarise(Cell("verify"), [1.0] * (LEAST - 1)).high == float("inf")
    assert not summarise(Cell("verify"), [1.0] * (LEAST - 1)).done


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    draw = random.Random(1)
    draws = ([1 + draw.random() for _ in range(25)] for _ in range(400))
    held = [s.low <= 1.5 <= s.high for s in (summarise(Cell("verify"), drawn) for drawn in draws)]
    assert 0.92 <= sum(held) / len(held) <= 1.0


@pytest.mark.parametrize("sequences", [1, 3, 8, 64])
@pytest.mark.parametrize("trees", [False, True])
def test_the_grid_stays_within_its_bounds(sequences: int, trees: bool) -> None:
    bounds = Bounds(sequences, 100, (16, 64))
    cells = grid(bounds, DrafterTraits(trees=trees, max_depth=4))
    assert len(cells) == len(set(cells))
    assert all(cell.batch <= sequences and cell.rows <= 100 and cell.depth <= 4 for cell in cells)
    assert all(cell.rows >= cell.batch for cell in cells if cell.part == "verify")
    assert trees or all(cell.width <= 1 for cell in cells)
    parts = Counter(cell.part for cell in cells)
    assert min(parts[part] for part in ("verify", "draft", "catch_up", "overhead")) > 0
    verify = [cell for cell in cells if cell.part == "verify"]
    assert {c.context for c in verify} == {16, 64}
    assert all(c.held_out for c in verify if c.rows in HELD_ROWS)
    assert any(not c.held_out for c in verify)


def test_plain_decoding_needs_no_drafter() -> None:
    assert not [cell for cell in grid(BOUNDS, DrafterTraits(max_depth=0)) if cell.part in ("draft", "catch_up")]


class SlowStart(Machine):
    """Its first sample makes things ready, which takes the watch a hundred samples' time and the cell's clock none."""

    def sample(self, cell: Cell) -> float:
        self.seconds += 2.0 * (not self.order)
        return super().sample(cell)


def test_what_is_set_up_once_leaves_no_cell_out(tmp_path: Path) -> None:
    cells = [Cell("overhead", batch=1), *(Cell("verify", rows=n) for n in range(1, 9))]
    found = run(SlowStart(0.0), cells, tmp_path / "m.jsonl", budget_s=4.0)
    assert [summary.cell for summary in found] == cells
    assert all(summary.done for summary in found)
