"""The rules that others choose draft lengths by, as policies, to stand beside ours in `replay_day.py`.

ema      a moving average of the accepted length moves one length for all between tiers (SGLang's adaptive steps)
goodput  one length for the batch, of the most expected tokens per time, by each request's own acceptance and a cost
         that is linear in rows (SmartSpec, TurboSpec: arXiv 2406.14066)
trim     the same length is drafted for all, and what is verified is the best prefix by survival (vLLM's adaptive
         verification); the drafter never stops early

Each is written anew from its description. What they learn, they learn from the step's result alone.

B sequences of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from functools import cache

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.policy.acceptance import AcceptanceModel
from draftwing.policy.base import PlanInputs, StepResult, UncutPolicy
from draftwing.policy.cost import CostModel, Floats
from draftwing.policy.modes import FixedPolicy
from draftwing.policy.nodes import side_by_side
from draftwing.policy.solver import path_keys, survival

DRAFTER = "thin"
MOST = 8
PROBED, GAPS = 3, (4, 32)  # as `adaptive`: sequences of a probe; steps without a draft before one, doubled each time


@cache
def chain(length: int) -> FixedPolicy:
    """Plans of one length for all."""
    return FixedPolicy(DRAFTER, DraftShape((1,) * length, length))


class Probes:
    """When a rule that drafts nothing tries again, so that it learns of better times."""

    def __init__(self) -> None:
        self.steps = self.idle = 0
        self.gap = GAPS[0]

    @property
    def due(self) -> bool:
        return self.idle >= self.gap

    def count(self, *, drafted: bool) -> None:
        if drafted and self.idle:
            self.gap = min(2 * self.gap, GAPS[1])
        elif drafted:
            self.gap = GAPS[0]
        self.idle = 0 if drafted else self.idle + 1
        self.steps += 1


class EmaRule(UncutPolicy):
    """up, down: how far over or under the present tier's length the average must lie to leave it."""

    drafter = DRAFTER
    largest = DraftShape((1,) * 7, 7)
    TIERS = (1, 3, 5, 7)
    FACTOR, EVERY, WARM = 0.2, 5, 10

    def __init__(self, up: float = 0.0, down: float = 0.0, first: int = 1) -> None:
        self._up, self._down = up, down
        self._tier = first
        self._average: float | None = None
        self._batches = 0

    def decide(self, inputs: PlanInputs) -> StepPlan:
        return chain(self.TIERS[self._tier]).decide(inputs)

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        lengths = [len(nodes) for nodes, draft in zip(result.accepted, result.drafts, strict=True) if len(draft)]
        if not lengths:
            return
        mean = float(np.mean(lengths))
        self._average = mean if self._average is None else self._average + self.FACTOR * (mean - self._average)
        self._batches += 1
        if self._batches >= self.WARM and self._batches % self.EVERY == 0:
            self._move(self._average)

    def _move(self, average: float) -> None:
        if average > self.TIERS[self._tier] - 0.5 + self._up:
            self._tier = min(self._tier + 1, len(self.TIERS) - 1)
        elif self._tier and average < self.TIERS[self._tier - 1] - 0.5 + self._down:
            self._tier -= 1


class GoodputRule(UncutPolicy):
    """keep: share of what is known that stays after one more step. prior: labels that the common rate weighs as."""

    drafter = DRAFTER
    largest = DraftShape((1,) * MOST, MOST)

    def __init__(self, costs: CostModel, keep: float = 0.9, prior: float = 4.0) -> None:
        self._costs = costs
        self._line = line(costs)
        self._keep, self._prior = keep, prior
        self._own: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(2))  # accepted, labels
        self._all = np.array([2.0, 3.0])
        self._probes = Probes()

    def decide(self, inputs: PlanInputs) -> StepPlan:
        length = self._best(inputs)
        if length or not self._probes.due:
            return chain(length).decide(inputs)
        shapes = list(chain(0).decide(inputs).shapes)
        probe = chain(1).decide(inputs).shapes
        for i in range(PROBED):
            at = (self._probes.steps + i) % max(len(shapes), 1)
            shapes[at : at + 1] = probe[at : at + 1]
        return StepPlan(DRAFTER, tuple(shapes), "probe")

    def _best(self, inputs: PlanInputs) -> int:
        common = self._all[0] / self._all[1]
        known = np.array([self._own[request] for request in inputs.requests]).reshape(-1, 2)
        rates = (known[:, 0] + self._prior * common) / (known[:, 1] + self._prior)
        lengths = np.arange(MOST + 1)
        reach = np.minimum(lengths[:, None], inputs.tokens_left - 1)
        tokens = ((1 - rates ** (reach + 1)) / (1 - np.minimum(rates, 1 - 1e-9))).sum(axis=1)
        batch, (fixed, per_row) = len(inputs), self._line
        ms = fixed + per_row * (batch * (lengths + 1) + inputs.prefill_rows)
        ms = ms + self._costs.verify.context_ms * inputs.context + lengths * float(self._costs.draft(max(batch, 1)))
        return int((tokens / ms).argmax())

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        found = np.zeros(2)
        for request, draft, nodes in zip(inputs.requests, result.drafts, result.accepted, strict=True):
            if len(draft):
                labels = np.array([len(nodes), min(len(nodes) + 1, len(draft))], dtype=np.float64)
                self._own[request] = self._keep * self._own[request] + labels
                found += labels
        if found[1]:
            self._all = 0.99 * self._all + found
        for request in result.ended:
            self._own.pop(request, None)
        drafted = any(map(len, result.drafts))
        self._probes.count(drafted=drafted)


def line(costs: CostModel, rows: int = 512) -> tuple[float, float]:
    """The cost of a forward as a constant and a price per row: least squares of the relative error, over doublings."""
    at = np.unique(np.round(2.0 ** np.arange(0, np.log2(rows) + 0.25, 0.25)))
    ms = costs.verify_ms(at)
    solved = np.linalg.lstsq(np.column_stack([np.ones_like(at), at]) / ms[:, None], np.ones(len(at)), rcond=None)[0]
    return float(solved[0]), float(solved[1])


class TrimRule:
    """length: what is drafted for all. slope: how far confidences are trusted before anything was seen."""

    drafter = DRAFTER

    def __init__(self, costs: CostModel, length: int = 4, slope: float = 0.5) -> None:
        self._costs = costs
        self._plans = chain(length)
        self.largest = self._plans.largest
        self._model = AcceptanceModel()
        self._model.prior[:, :2] = slope

    def decide(self, inputs: PlanInputs) -> StepPlan:
        return self._plans.decide(inputs)

    controller = UncutPolicy.controller

    def cut(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> list[IntArray] | None:
        nodes = side_by_side(drafts)
        if not len(nodes):
            return None
        chances = self._model.chance(nodes, inputs.classes, inputs.requests)
        keys = path_keys(chances, nodes.parents, int(nodes.depth.max()))
        order = np.argsort(keys)
        tokens = len(inputs) + np.concatenate([[0.0], np.cumsum(survival(keys[order]))])
        rows = len(inputs) + inputs.prefill_rows + np.arange(len(keys) + 1)
        levels = np.bincount(nodes.depth)[1:]
        spent = float(sum(self._costs.draft(count) for count in levels.tolist()))
        ratio = tokens / (self._costs.step_ms(len(inputs), rows, inputs.context) + spent)
        kept = np.sort(order[: int(ratio.argmax())])
        owned = np.split(kept, np.searchsorted(kept, nodes.starts[1:-1]))
        return [mine - start for mine, start in zip(owned, nodes.starts[:-1].tolist(), strict=True)]

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        nodes = side_by_side(result.drafts)
        verified, accepted = np.zeros((2, len(nodes)), dtype=np.bool_)
        for start, ran, right in zip(nodes.starts[:-1].tolist(), result.verified, result.accepted, strict=True):
            verified[start + ran] = True
            accepted[start + right] = True
        labelled = verified & ((nodes.parents < 0) | accepted[nodes.parents])
        if len(nodes):
            self._model.learn(nodes, accepted, labelled, inputs.classes, inputs.requests, ~inputs.distorted)
        self._model.forget(result.ended)
