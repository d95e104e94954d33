"""What steps cost here and now: a fitted model, and factors on it that are learned from the steps that were run.

Without a measured model the shape is a guess (`guessed`), and the factors, which then follow the very first steps,
bring the scale and whatever the guess got wrong at the row counts that occur.

Shapes: B sequences, h levels of a draft.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from draftwing.policy.base import PlanInputs, StepResult
from draftwing.policy.cost import LEAST_MS, MEASURED_STEPS, Correction, CostModel, Floats, believed
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell

GUESSED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
GUESSED_MS, GUESSED_SLOPE = 10.0, 0.06  # of one row, and of each further one, as a share


def guessed(level: float) -> CostModel:
    """Where nothing was measured. level: a draft level's time as a share of a plain step's."""
    verify = [
        VerifyCell(batch=1, rows=n, context=0, verify_ms=GUESSED_MS * (1 + GUESSED_SLOPE * (n - 1)))
        for n in GUESSED_ROWS
    ]
    draft = (BatchCell(batch=1, ms=GUESSED_MS * level), BatchCell(batch=64, ms=2 * GUESSED_MS * level))
    return CostModel.fit(CostCurves(name="guessed", verify=tuple(verify), draft_step_ms=draft))


@dataclass(slots=True)
class LiveCosts:
    """block: the drafter drafts all depths in one call. measured: model is no guess.

    frozen: all factors but plain_log stay as they are. correction: of steps by rows. draft_log: of drafting. plain_log:
    of plain steps, on top of the other factors; it follows them fast, since they are what the guard compares with.
    """

    model: CostModel
    block: bool = False
    measured: bool = True
    frozen: bool = False
    correction: Correction = field(init=False)
    draft_log: float = 0.0
    plain_log: float = 0.0
    _drafts: float = field(init=False)
    _base: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.model.block = self.block
        self.correction = Correction.none(measured=self.measured)
        self._drafts = MEASURED_STEPS if self.measured else 0.0
        self._base = self.model.verify.rows_ms(np.arange(1, 1025))

    def step_ms(self, inputs: PlanInputs, most: int) -> Floats:
        """[most + 1]: a step, its drafts made, that verifies 0, 1, ... nodes beside the roots and prompt rows."""
        first = len(inputs) + inputs.prefill_rows
        if first + most > len(self._base):
            self._base = self.model.verify.rows_ms(np.arange(1, 2 * (first + most)))
        fixed = self.model.verify.context_ms * inputs.context + float(self.model.overhead(len(inputs)))
        times = np.maximum(self._base[first - 1 : first + most] + fixed, LEAST_MS)
        return np.asarray(times * self.correction.factor(np.arange(first, first + most + 1)))

    def plain_ms(self, inputs: PlanInputs) -> float:
        """The step without drafts, as the latest plain steps tell."""
        return float(self.step_ms(inputs, 0)[0] * np.exp(self.plain_log))

    def levels_ms(self, batch: int, levels: int) -> Floats:
        """[h, B + 1]: drafting 1, 2, ... levels that grow from 0, 1, ... nodes each."""
        some = np.arange(batch + 1) > 0
        once = np.where(some, self.model.draft(np.arange(batch + 1)), 0.0)
        spent = once * np.ones((levels, 1)) if self.block else np.cumsum(np.tile(once, (levels, 1)), axis=0)
        return np.asarray((spent + self.model.transport_ms * some) * np.exp(self.draft_log))

    def catch_up_ms(self, tokens: Floats) -> Floats:
        """Of a drafter that missed so many tokens; 0 for none."""
        return np.where(tokens > 0, self.model.catch_up(tokens) * np.exp(self.draft_log), 0.0)

    def draft_ms(self, grown: Floats, behind: float) -> float:
        """What the model expects of drafting. grown [h]: nodes each level grew from. behind: tokens caught up."""
        if not len(grown):
            return 0.0
        drafted = float(self.model.draft(grown).sum()) + self.model.transport_ms
        return float((drafted + self.model.catch_up(behind) * (behind > 0)) * np.exp(self.draft_log))

    def learn(self, inputs: PlanInputs, result: StepResult, grown: Floats) -> None:
        """From one step's times. grown [h]: nodes that each level of drafts grew from."""
        if result.rows < 1:
            return
        taken = max(result.step_ms - result.draft_ms, LEAST_MS)
        nodes = result.rows - len(inputs) - inputs.prefill_rows
        expected = float(self.step_ms(inputs, max(nodes, 0))[-1])
        if not nodes and not result.levels and not inputs.prefill_rows:
            error = np.log(taken / (expected * np.exp(self.plain_log)))
            self.plain_log += 0.25 * float(np.clip(error, -1.0, 1.0))
        if self.frozen:
            return
        self.correction = self.correction.learned(result.rows, expected, taken)
        if result.levels:
            self._drafts += 1
            predicted = self.draft_ms(grown, float(inputs.behind[result.levels[0]].sum()))
            self.draft_log += believed(predicted, result.draft_ms, self._drafts)
