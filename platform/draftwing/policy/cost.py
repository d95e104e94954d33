"""What a step costs, in milliseconds: fitted to a measured grid, and corrected by what steps really take.

Verify: V(N, context) = base(N, context) + stair(N). The base is a sum of non-negative terms (a constant, rows, hinges
in rows, context, and for a mixture of experts the share of experts that N rows touch), fitted on relative error. The
stair is what is left at each measured row count, linear between them and constant beyond: costs are not monotone in
rows, so it may have either sign. Where forwards are padded to captured sizes, N is the padded size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftwing.policy.curves import Assumptions, CostCurves

Floats = npt.NDArray[np.float64]
HINGES = (0.25, 0.5, 0.75)  # quantiles of the measured row counts at which the slope may grow
CELL_ROWS = np.array([1, 2, 3, 4, 5, 6, 7, *(2**n for n in range(3, 14))], dtype=np.float64)  # of the live correction
CELLS = len(CELL_ROWS)
FADE = 0.999  # of what a guessed model's cells stand on, after one more step: what isn't run is tried again in the end
GAIN, STEP = 0.1, 0.5  # of one correction: share of an error that is believed, and the largest log-ratio that counts
MEASURED_STEPS = 20.0  # a measured model weighs as much as so many steps in each cell
LEAST_MS = 1e-6


@dataclass(frozen=True, slots=True)
class Line:
    """Linear between its points; beyond the last it goes on with the last slope, if that rises. x ascends."""

    x: Floats
    y: Floats

    @classmethod
    def through(cls, points: list[tuple[float, float]]) -> Line:
        """Points with the same x are averaged; none at all is zero everywhere."""
        array = np.array(points or [(1.0, 0.0)], dtype=np.float64)
        x, place = np.unique(array[:, 0], return_inverse=True)
        return cls(x, np.bincount(place, array[:, 1]) / np.bincount(place))

    def __call__(self, at: npt.ArrayLike) -> Floats:
        place = np.asarray(at, dtype=np.float64)
        values = np.interp(place, self.x, self.y)
        if len(self.x) > 1:
            slope = max((self.y[-1] - self.y[-2]) / (self.x[-1] - self.x[-2]), 0.0)
            values = values + slope * np.maximum(place - self.x[-1], 0.0)
        return np.asarray(values)


@dataclass(frozen=True, slots=True)
class VerifyFit:
    """The coefficients of V. terms: of constant, rows, each hinge, coverage; context_ms: a cached token's reading."""

    assumptions: Assumptions
    knots: Floats
    terms: Floats
    context_ms: float
    stair: Line

    def rows_ms(self, rows: npt.ArrayLike) -> Floats:
        """V without its context term, for any shape of rows."""
        padded = _padded(np.asarray(rows, dtype=np.float64), self.assumptions)
        residual = np.interp(padded, self.stair.x, self.stair.y)
        return np.asarray(_columns(padded, self.knots, self.assumptions) @ self.terms + residual)


def fit_verify(curves: CostCurves) -> VerifyFit:
    rows, context, taken = (
        np.array([getattr(cell, name) for cell in curves.verify], dtype=np.float64)
        for name in ("rows", "context", "verify_ms")
    )
    padded = _padded(rows, curves.assumptions)
    knots = np.unique(np.quantile(np.unique(padded), HINGES))
    shape = _columns(padded, knots, curves.assumptions)
    reads = context * (np.ptp(context) > 0)  # one context level alone says nothing of its price
    solved = nnls(np.column_stack([shape, reads]) / taken[:, None], np.ones(len(taken)))
    rest = taken - shape @ solved[:-1] - reads * solved[-1]
    at, place = np.unique(padded, return_inverse=True)
    weight = taken**-2
    stair = Line(at, np.bincount(place, rest * weight) / np.bincount(place, weight))
    return VerifyFit(curves.assumptions, knots, solved[:-1], float(solved[-1]), stair)


@dataclass(slots=True)
class CostModel:
    """One target, drafter and machine. Every time is in milliseconds; rows and batch are interpolated."""

    verify: VerifyFit
    draft: Line
    overhead: Line
    catch_up: Line
    transport_ms: float = 0.0
    block: bool = False

    @classmethod
    def fit(cls, curves: CostCurves, *, block: bool = False) -> CostModel:
        """block: the drafter drafts all depths in one call."""
        draft = Line.through([(cell.batch, cell.ms) for cell in curves.draft_step_ms])
        missed: list[tuple[float, float]] = [(cell.tokens, cell.ms) for cell in curves.catch_up_ms]
        if not missed:  # rows of a forward like any others
            first = float(draft.y[0])
            missed = [(n, float(draft(n)) - first) for n in (1.0, *draft.x[1:].tolist())]
        overhead = Line.through([(cell.batch, cell.ms) for cell in curves.overhead_ms])
        return cls(fit_verify(curves), draft, overhead, Line.through(missed), curves.transport_ms, block)

    def verify_ms(self, rows: npt.ArrayLike, context: float = 0.0) -> Floats:
        return np.maximum(self.verify.rows_ms(rows) + self.verify.context_ms * context, LEAST_MS)

    def draft_ms(self, batch: npt.ArrayLike, depth: int, width: int = 1) -> Floats:
        """D: levels of `width` nodes for each of the sequences, and the way there and back once. 0 for no depth."""
        rows = np.asarray(batch, dtype=np.float64) * width
        calls = min(depth, 1) if self.block else depth
        return np.where(rows > 0, calls * self.draft(rows) + self.transport_ms * (depth > 0), 0.0)

    def step_ms(self, batch: int, rows: npt.ArrayLike, context: float = 0.0) -> Floats:
        """A step whose drafts are there already: O(B) + V(N, context)."""
        return self.verify_ms(rows, context) + self.overhead(batch)


def held_out_error(curves: CostCurves) -> tuple[float, float]:
    """Median and largest relative error of V at every fifth cell, fitted without them. (0, 0) with too few cells."""
    cells = curves.verify
    out = tuple(range(2, len(cells) - 1, 5))
    if len(cells) - len(out) < 4:
        return 0.0, 0.0
    fit = CostModel.fit(curves.model_copy(update={"verify": tuple(c for i, c in enumerate(cells) if i not in out)}))
    errors = [abs(float(fit.verify_ms(cells[i].rows, cells[i].context)) / cells[i].verify_ms - 1) for i in out]
    return float(np.median(errors)), float(np.max(errors))


@dataclass(frozen=True, slots=True)
class Correction:
    """Live factors on a model's times: a log-ratio for each of CELL_ROWS, linear in log rows between them.

    logs [CELLS]; steps [CELLS]: how many steps each stands on. Where the model is a guess, the first steps are believed
    outright, and a cell that has seen none is taken to be as good as the best that has, so that it is tried.
    """

    logs: Floats
    steps: Floats
    measured: bool = True

    @classmethod
    def none(cls, *, measured: bool = True) -> Correction:
        return cls(np.zeros(CELLS), np.full(CELLS, MEASURED_STEPS if measured else 0.0), measured)

    def factor(self, rows: npt.ArrayLike) -> Floats:
        return np.exp(np.interp(np.log2(np.maximum(rows, 1)), np.log2(CELL_ROWS), self.logs))

    def learned(self, rows: int, predicted_ms: float, taken_ms: float) -> Correction:
        """After one more step. predicted_ms: with the factors of now. One slow step moves a cell by 5 % at most."""
        cell = float(np.interp(np.log2(max(rows, 1)), np.log2(CELL_ROWS), np.arange(CELLS)))
        share = np.maximum(1 - np.abs(np.arange(CELLS) - cell), 0.0)
        steps = (1.0 if self.measured else FADE) * self.steps + share
        logs = self.logs + believed(predicted_ms, taken_ms, max(float(steps @ share), 1.0)) * share
        if not self.measured:
            logs = np.where(steps < 0.5, logs[steps >= 0.5].min(), logs)
        return Correction(logs, steps, self.measured)


def believed(predicted_ms: float, taken_ms: float, steps: float) -> float:
    """What one more step adds to a log-ratio that stands on so many steps, itself included."""
    error = float(np.log(max(taken_ms, LEAST_MS) / max(predicted_ms, LEAST_MS)))
    return max(GAIN, 1 / steps) * (error if steps < 4 else min(max(error, -STEP), STEP))


def nnls(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 of least squared error (Lawson and Hanson's active set). Columns of zeros get 0."""
    scale = np.linalg.norm(matrix, axis=0)
    a = matrix / np.where(scale > 0, scale, 1.0)
    x = np.zeros(a.shape[1])
    free = np.zeros(a.shape[1], dtype=np.bool_)
    for _ in range(3 * a.shape[1]):
        gradient = np.where(free, -np.inf, a.T @ (target - a @ x))
        if gradient.max() <= 1e-10:
            break
        free[int(gradient.argmax())] = True
        while True:
            solution = np.zeros_like(x)
            solution[free] = np.linalg.lstsq(a[:, free], target, rcond=None)[0]
            bad = free & (solution <= 0)
            if not bad.any():
                break
            reach = float((x[bad] / np.maximum(x[bad] - solution[bad], 1e-300)).min())
            x = x + reach * (solution - x)
            free &= x > 1e-12
        x = solution
    return x / np.where(scale > 0, scale, 1.0)


def _padded(rows: Floats, assumptions: Assumptions) -> Floats:
    if not assumptions.captured:
        return rows
    sizes = np.sort(np.array(assumptions.captured, dtype=np.float64))
    return np.where(rows <= sizes[-1], sizes[np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1)], rows)


def _columns(rows: Floats, knots: Floats, assumptions: Assumptions) -> Floats:
    """[..., terms]: constant, rows, hinges, and the experts that so many rows touch."""
    hinges = [np.maximum(rows - knot, 0.0) for knot in knots.tolist()]
    columns = [np.ones_like(rows), rows, *hinges]
    if assumptions.experts and assumptions.active:
        missed = 1 - min(assumptions.active / assumptions.experts, 1.0)
        columns.append(assumptions.experts * (1 - missed ** (rows**assumptions.rho)))
    return np.stack(columns, axis=-1)
