"""Measures a grid of cells: in random order, in turns, each until its median is known to 2 % or the time is over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, sqrt
from time import monotonic

import numpy as np

from draftwing_tuner.grid import Cell
from draftwing_tuner.samples import SampleFile

WIDTH = 0.02  # a cell is done when its median's interval reaches no further than this to either side
LEAST, MOST = 6, 400  # samples of a cell; fewer than 6 give no interval
FLOOR_MS = 0.02  # a cell below it is done when its interval is as narrow as this: nothing depends on it
Z = 1.96


@dataclass(frozen=True, slots=True)
class Summary:
    """Milliseconds of a cell. low, high: 95 % interval of the median, infinite with fewer than 6 samples."""

    cell: Cell
    n: int
    median: float
    p20: float
    p95: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Half the interval, relative to the median."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else inf

    @property
    def done(self) -> bool:
        narrow = self.width < WIDTH or (self.high - self.low) / 2 < WIDTH * FLOOR_MS or self.high < FLOOR_MS
        return self.n >= MOST or (self.n >= LEAST and narrow)


def summarise(cell: Cell, samples: list[float]) -> Summary:
    """The interval is that of order statistics: it assumes nothing about how times scatter."""
    ordered = np.sort(np.array(samples, dtype=np.float64))
    n = len(ordered)
    reach = Z * sqrt(n) / 2
    first, last = int(np.floor(n / 2 - reach)), int(np.ceil(n / 2 + reach))
    known = n >= LEAST
    low = float(ordered[max(first, 0)]) if known else -inf
    high = float(ordered[min(last, n - 1)]) if known else inf
    median, p20, p95 = (float(np.quantile(ordered, q)) for q in (0.5, 0.2, 0.95))
    return Summary(cell, n, median, p20, p95, low, high)


@dataclass(frozen=True, slots=True)
class Progress:
    """done: cells whose interval is narrow enough. seconds left of the budget."""

    done: int
    cells: int
    left_s: float
    spent_s: float


def measure(
    cells: Iterable[Cell],
    sample: Callable[[Cell], float],
    file: SampleFile,
    *,
    budget_s: float,
    now: Callable[[], float] = monotonic,
    show: Callable[[Progress], None] = lambda _: None,
    seed: int = 0,
) -> list[Summary]:
    """Rounds over the cells that aren't done, each in a new order. Earlier runs' samples and seconds count.

    The first round goes by importance and ends where the budget would not give more cells their least number of
    samples. Cells with too few samples are left out of the result.
    """
    begun, before = now(), file.spent_s
    shuffle = random.Random(seed + sum(map(len, file.samples.values())))

    def spent() -> float:
        return before + now() - begun

    def take(round_: Iterable[Cell], until_s: float) -> None:
        try:
            for cell in round_:
                file.add(cell, sample(cell))
                if spent() >= until_s:
                    break
        finally:
            file.spend(spent())

    every = list(cells)
    if spent() < budget_s / LEAST:
        take((c for c in every if c not in file.samples), budget_s / LEAST)
    while True:
        wanted = _affordable([c for c in every if c in file.samples], file, budget_s)
        left = [c for c in wanted if not summarise(c, file.samples[c]).done]
        if not left:  # time is left nevertheless: what was set up once had made samples look dear
            left = [c for c in every if c not in wanted][:1]
        show(Progress(len(wanted) - len(left), len(wanted), budget_s - spent(), spent()))
        if not left or spent() >= budget_s:
            break
        shuffle.shuffle(left)
        take(left, budget_s)
    found = [summarise(c, file.samples[c]) for c in wanted]
    return [summary for summary in found if summary.n >= LEAST]


def _affordable(cells: list[Cell], file: SampleFile, budget_s: float) -> list[Cell]:
    """The first cells, as many as can get their least number of samples within the budget.

    A sample takes longer by the watch than by a clock that counts this process alone.
    """
    known = {cell: float(np.median(samples)) / 1e3 for cell, samples in file.samples.items()}
    sampled = sum(known[cell] * len(samples) for cell, samples in file.samples.items())
    slower = max(file.spent_s / sampled, 1.0) if sampled > 0 else 1.0
    total, kept = 0.0, []
    for cell in cells:
        total += LEAST * slower * known[cell]
        if total > budget_s and len(file.samples[cell]) < LEAST:
            break
        kept.append(cell)
    return kept
