"""A world without engine or tokens for a policy to act in, where tests set and change accuracy and costs.

It calls a policy as the engine does, and spends virtual time by a cost model.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray
from draftwing.drafters.base import BoolArray, DrafterTraits
from draftwing.policy.base import PlanInputs, Policy, StepResult
from draftwing.policy.cost import CostModel, Floats
from draftwing.policy.curves import BatchCell, CostCurves, VerifyCell
from draftwing.policy.modes import FixedPolicy, OffPolicy
from draftwing.testing.policies import plan_inputs_of

SPREAD = 1.5  # of the log-odds of single tokens around the accuracy


def costs_of(verify: dict[int, float], draft: dict[int, float] | None = None) -> CostModel:
    """verify: ms by rows. draft: ms of a level by sequences."""
    cells = tuple(VerifyCell(batch=1, rows=n, context=0, verify_ms=ms) for n, ms in verify.items())
    levels = tuple(BatchCell(batch=n, ms=ms) for n, ms in (draft or {1: 0.5, 64: 1.0}).items())
    return CostModel.fit(CostCurves(name="planted", verify=cells, draft_step_ms=levels))


RISING = costs_of({1: 10.0, 2: 11.0, 4: 12.5, 8: 15.0, 16: 20.0, 32: 32.0, 64: 60.0, 128: 120.0})


def traits_of(confidence: bool, block: bool) -> DrafterTraits:
    return DrafterTraits(stop="block" if block else "incremental", confidence=confidence)


class World:
    """Requests that never end. A token's drafts are right with chance sigmoid(logit accuracy + SPREAD z), z and the
    outcome a function of its request and position; with confidence the drafter says that chance."""

    def __init__(
        self,
        policy: Policy,
        costs: CostModel = RISING,
        *,
        accuracy: float = 0.7,
        batch: int = 1,
        confidence: bool = True,
        block: bool = False,
    ) -> None:
        self.policy, self.costs, self.accuracy, self.batch = policy, costs, accuracy, batch
        self.traits = traits_of(confidence, block)
        self.distorted = False
        self.ended: tuple[str, ...] = ()
        self.verified_nodes = 0
        self.speculating = 0  # steps with a verified node
        draw = np.random.default_rng(0)
        self._z, self._u = draw.normal(size=(64, 8192)), draw.random((64, 8192))
        self._at = np.zeros(64, dtype=np.int64)
        self._behind = np.full(64, 8)

    def rate(self, steps: int) -> float:
        """Tokens per ms over the next steps."""
        results = [self.step() for _ in range(steps)]
        return float(sum(r.committed.sum() for r in results) / sum(r.step_ms for r in results))

    def step(self) -> StepResult:
        batch, policy = self.batch, self.policy
        inputs = plan_inputs_of(batch, behind=self._behind[:batch], distorted=self.distorted)
        plan = policy.decide(inputs)
        depths = np.array([shape.depth if shape.nodes else 0 for shape in plan.shapes], dtype=np.int64)
        levels = self._levels(inputs, depths, [self._chain(i, 0) for i in range(batch)])
        grown = depths if self.traits.stop == "block" else np.sum(levels, axis=0, dtype=np.int64) + 0 * depths
        drafts = [self._chain(i, int(depth)) for i, depth in enumerate(grown.tolist())]
        chosen = policy.cut(inputs, plan, drafts)
        cut = [np.arange(len(draft)) for draft in drafts] if chosen is None else chosen
        accepted = [nodes[: self._right(i, len(nodes))] for i, nodes in enumerate(cut)]
        committed = np.array([len(nodes) + 1 for nodes in accepted])
        rows = batch + sum(map(len, cut))
        counts = [int(level.sum()) for level in levels]
        draft_ms = float(sum(self.costs.draft(n) for n in counts))
        step_ms = draft_ms + float(self.costs.step_ms(batch, rows, inputs.context))
        drafted, ran, right = tuple(drafts), tuple(cut), tuple(accepted)
        result = StepResult(drafted, ran, right, committed, tuple(levels), rows, draft_ms, step_ms, self.ended)
        policy.observe(inputs, plan, result)
        served = levels[0] if levels else np.zeros(batch, dtype=np.bool_)
        self._behind[:batch] = np.where(served, 0, self._behind[:batch] + committed)
        self._at[:batch] += committed
        self.verified_nodes += rows - batch
        self.speculating += rows > batch
        return result

    def _levels(self, inputs: PlanInputs, depths: IntArray, drafts: list[DraftTree]) -> list[BoolArray]:
        if not depths.any():
            return []
        if self.traits.stop == "block":
            return [depths > 0]
        controller, levels = self.policy.controller(inputs, self.policy.decide(inputs)), []
        for depth in range(int(depths.max())):
            go = np.array([nodes.any() for nodes in controller.deeper(depth, drafts)]) & (depths > depth)
            if not go.any():
                break
            levels.append(go)
            drafts = [self._chain(i, len(draft) + int(go[i])) for i, draft in enumerate(drafts)]
        return levels

    def _chances(self, i: int, count: int) -> Floats:
        at = int(self._at[i])
        odds = np.log(self.accuracy / (1 - self.accuracy)) + SPREAD * self._z[i, at : at + count]
        return np.asarray(1 / (1 + np.exp(-odds)))

    def _chain(self, i: int, count: int) -> DraftTree:
        tree = DraftTree.chain(list(range(count)))
        confidences = np.array(self._chances(i, count), dtype=np.float32) if self.traits.confidence else None
        return DraftTree(tree.tokens, tree.parents, confidences)

    def _right(self, i: int, count: int) -> int:
        at = int(self._at[i])
        return int(np.cumprod(self._u[i, at : at + count] < self._chances(i, count)).sum())


def best_fixed(world: World, steps: int) -> tuple[int, float]:
    """The draft length that makes the most of this world's next steps, and its rate; the world stays where it is."""
    rates = {}
    for k in range(6):
        fixed = copy(world)
        fixed._at, fixed._behind = world._at.copy(), world._behind.copy()
        fixed.policy = FixedPolicy("planted", DraftShape((1,) * k, k)) if k else OffPolicy()
        rates[k] = fixed.rate(steps)
    best = max(rates, key=lambda k: rates[k])
    return best, rates[best]
