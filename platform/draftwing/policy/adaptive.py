"""Mode `adaptive`: every step drafts and verifies what is worth its time at the present load.

decide      who drafts: look ahead with the chances of undrafted nodes
controller  before each further depth: who goes on, with the confidences of what is drafted
cut         which nodes are verified: the exact choice of `solver`
observe     costs, acceptance, the price of time and the guard learn from the step

Shapes: B sequences, E of them that may draft, M nodes of all drafts, h levels ahead.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import Controller, DrafterTraits, NullController
from draftwing.policy.acceptance import AcceptanceModel
from draftwing.policy.base import BoolArray, PlanInputs, StepResult
from draftwing.policy.cost import Floats
from draftwing.policy.guard import Guard, Speculated
from draftwing.policy.live_costs import LiveCosts
from draftwing.policy.nodes import Nodes, grown_from, may_grow, side_by_side
from draftwing.policy.profile import Profile
from draftwing.policy.rates import Rates
from draftwing.policy.solver import Admitted, Ahead, admit, look_ahead, path_keys, survival
from draftwing.policy.table import cut_to_room

LOOK_AHEAD = 5  # levels: over a stair of the verify curve
CHEAP = 0.01  # of a step: drafting that costs less is always done, and the confidences decide
AMORTISE = 16.0  # steps over which catching up must pay
PROBED = 3  # sequences of a probe
DRAFTING = (4, 32)  # least and most steps without a draft after which one is tried
VERIFYING, CONFIDENT = (4, 40), (8, 128)  # without a verified node; where confidences tell much beforehand
PLAIN = (16, 256)  # speculating steps after which one is plain, so that its time stays known
CHANCE_WORTH = 0.1  # a latency target doesn't ask for nodes less likely than this
KEEP_WORTH = 0.9
MOSTLY_PROMPTS = 0.13  # of a plain step's time: a step with more says little of decoding's own rate


@dataclass(slots=True)
class Turn:
    """Something done now and then for what it teaches: once it wasn't done for `gap` steps, which a loss doubles."""

    gap: int
    most: int
    idle: int = 0

    @property
    def due(self) -> bool:
        return self.idle >= self.gap

    def count(self, *, possible: bool, done: bool, paid: bool = False) -> None:
        if done and self.idle:
            self.gap = 1 if paid else min(2 * self.gap, self.most)
        self.idle = 0 if done else self.idle + possible


@dataclass(frozen=True, slots=True)
class Choice:
    """What a cut rests on. price: tokens per ms. step_ms [M + 1]: with 0, 1, ... nodes. admitted: the choice."""

    nodes: Nodes
    keys: IntArray
    price: float
    step_ms: Floats
    admitted: Admitted


@dataclass(slots=True)
class AdaptivePolicy:
    """drafter: name that plans ask for. largest: shape within which it chooses. tpot_ms: target, None: none.

    worth: of late, tokens that drafting for one sequence brought above its costs, as the models saw it.
    """

    drafter: str
    largest: DraftShape
    traits: DrafterTraits
    profile: Profile = field(default_factory=Profile)
    tpot_ms: float | None = None
    costs: LiveCosts = field(init=False)
    acceptance: AcceptanceModel = field(init=False)
    rates: Rates = field(default_factory=Rates)
    guard: Guard = field(default_factory=Guard)
    drafting: Turn = field(default_factory=lambda: Turn(*DRAFTING))
    verifying: Turn = field(init=False)
    plain: Turn = field(default_factory=lambda: Turn(*PLAIN))
    steps: int = 0
    context: int = 0  # cached tokens of a sequence, in the last step that decoded
    worth: float = 0.0

    def __post_init__(self) -> None:
        self.verifying = Turn(*(CONFIDENT if self.traits.confidence else VERIFYING))
        self.costs = self.profile.live_costs(self.traits)
        self.acceptance = deepcopy(self.profile.acceptance)

    # before the step

    def decide(self, inputs: PlanInputs) -> StepPlan:
        depth = np.clip(inputs.tokens_left - 1, 0, self.largest.depth) * inputs.speculate
        able = np.flatnonzero((depth > 0) & (inputs.nodes_left > 0))
        if not len(able):
            return self._plan(inputs, able, "no room")
        if not self.guard.allows():
            return self._plan(inputs, able[:0], "guard")
        if self.plain.due:
            return self._plan(inputs, able[:0], "plain turn")
        chosen = self.worthwhile(inputs, able)
        if self.verifying.due or (self.drafting.due and not len(chosen)):
            return self._plan(inputs, chosen if len(chosen) else self._probed(able), "probe")
        return self._plan(inputs, chosen, "drafts" if len(chosen) else "no gain")

    def worthwhile(self, inputs: PlanInputs, able: IntArray) -> IntArray:
        """The sequences that should draft."""
        spent = self.costs.levels_ms(len(able), 1)[0, -1]
        if spent < CHEAP * self.costs.plain_ms(inputs):
            return able
        ahead, order = self.ahead(inputs, able)
        if not ahead.sequences and self.worth > 0:
            return able
        return np.sort(able[order[: ahead.sequences]])

    def ahead(self, inputs: PlanInputs, able: IntArray) -> tuple[Ahead, IntArray]:
        """What drafting from the roots on promises, and the order in which sequences come into question."""
        levels = self.largest.depth if self.traits.stop == "block" else min(LOOK_AHEAD, self.largest.depth)
        requests = [inputs.requests[i] for i in able.tolist()]
        hopes = self.acceptance.undrafted(1, levels, inputs.classes[able], requests)
        order = np.argsort(-hopes[:, 0], kind="stable")
        spent = self.costs.levels_ms(len(able), levels)
        steps = np.minimum(inputs.tokens_left[able] / 2, AMORTISE)
        spent[:, 1:] += np.cumsum((self.costs.catch_up_ms(inputs.behind[able].astype(np.float64)) / steps)[order])
        step_ms = self.costs.step_ms(inputs, len(able) * levels)
        means = np.concatenate([[1.0], hopes[:, 1:].mean(axis=0)])
        return look_ahead(np.empty(0), hopes[order, 0], means, step_ms, self.price(inputs), spent), order

    def price(self, inputs: PlanInputs) -> float:
        """Tokens per ms; never below plain decoding's, or a policy that lost would draft all the more."""
        alone = without_prompts(inputs)
        return max(self.promise(alone) * self.rates.kept(len(inputs)), len(inputs) / self.costs.plain_ms(alone))

    def promise(self, inputs: PlanInputs) -> float:
        """Tokens per ms of the best single length for all, by the mean chances."""
        batch, levels = len(inputs), self.largest.depth
        hopes = self.acceptance.undrafted(1, levels, inputs.classes, inputs.requests) * inputs.speculate[:, None]
        tokens = batch + np.concatenate([[0.0], np.cumsum(np.cumprod(hopes, axis=1).sum(axis=0))])
        step_ms = self.costs.step_ms(inputs, batch * levels)[::batch]
        step_ms[1:] += self.costs.levels_ms(batch, levels)[:, -1]
        return float((tokens / step_ms).max())

    def _probed(self, able: IntArray) -> IntArray:
        """A few sequences, others each time."""
        count = min(PROBED, len(able))
        return np.sort(able[(self.steps + np.arange(count)) % len(able)])

    def _plan(self, inputs: PlanInputs, chosen: IntArray, reason: str) -> StepPlan:
        speculate = np.zeros(len(inputs), dtype=np.bool_)
        speculate[chosen] = True
        return StepPlan(self.drafter, cut_to_room(self.largest, inputs, speculate), f"adaptive: {reason}")

    # while drafting

    def controller(self, inputs: PlanInputs, plan: StepPlan) -> Controller:
        return _Stop(self, inputs, plan) if self.traits.stop == "incremental" else NullController()

    def cut(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> list[IntArray] | None:
        choice = self.choose(inputs, plan, drafts)
        if choice is None or len(choice.admitted.nodes) == len(choice.nodes):
            return None
        kept, starts = choice.admitted.nodes, choice.nodes.starts
        own = kept - starts[choice.nodes.owner[kept]]
        bounds = np.searchsorted(kept, starts).tolist()
        return [own[first:end] for first, end in pairwise(bounds)]

    def choose(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> Choice | None:
        """None where there are no nodes."""
        nodes = side_by_side(drafts)
        if not len(nodes):
            return None
        chances = self.acceptance.chance(nodes, inputs.classes, inputs.requests)
        keys = path_keys(chances, nodes.parents, int(nodes.depth.max()))
        step_ms = self.costs.step_ms(inputs, len(nodes))
        price = self.price(inputs)
        first = self._probes(nodes, keys) if self.verifying.due else None
        found = admit(keys, step_ms, price, first)
        if self.tpot_ms is not None:
            first = self._needed(nodes, keys, float(step_ms[len(found.nodes)])) | (False if first is None else first)
            found = admit(keys, step_ms, price, first)
        return Choice(nodes, keys, price, step_ms, found)

    def _probes(self, nodes: Nodes, keys: IntArray) -> BoolArray:
        """The likeliest first nodes of a few drafts."""
        first = np.zeros(len(nodes), dtype=np.bool_)
        roots = np.flatnonzero((nodes.depth == 1) & (nodes.rank == 0))
        first[roots[np.argsort(keys[roots])[:PROBED]]] = True
        return first

    def _needed(self, nodes: Nodes, keys: IntArray, step_ms: float) -> BoolArray:
        """Of each draft the best nodes until it may hope for the tokens that its time per token asks of the step."""
        needed = step_ms / (self.tpot_ms or np.inf) - 1
        order = np.lexsort((keys, nodes.owner))
        chances = survival(keys)[order]
        before = np.cumsum(chances) - chances
        before -= before[nodes.starts[nodes.owner]]
        first = np.zeros(len(nodes), dtype=np.bool_)
        first[order] = (before < needed) & (chances >= CHANCE_WORTH)
        return first

    # after the step

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        batch, plain_ms = len(inputs), self.costs.plain_ms(inputs)
        nodes, tokens, hoped = side_by_side(result.drafts), float(result.committed.sum()), 0.0
        verified, accepted = np.zeros((2, len(nodes)), dtype=np.bool_)
        for start, ran, right in zip(nodes.starts[:-1].tolist(), result.verified, result.accepted, strict=True):
            verified[start + ran] = True
            accepted[start + right] = True
        speculated = bool(result.levels) and bool(verified.any() or result.draft_ms > CHEAP * plain_ms)
        behind = float(inputs.behind[result.levels[0]].sum()) if result.levels else 0.0
        grown = grown_from(nodes, result.levels)
        spent = self.costs.draft_ms(grown, behind)
        ms = spent + (float(self.costs.step_ms(inputs, int(verified.sum()))[-1]) if result.rows else 0.0)
        if len(nodes):
            labelled = verified & ((nodes.parents < 0) | accepted[nodes.parents])
            shared = ~inputs.distorted
            alive = self.acceptance.learn(nodes, accepted, labelled, inputs.classes, inputs.requests, shared)
            hoped = float(alive[verified].sum())
        gain = self._learn_worth(inputs, result, hoped, ms) if result.levels else 0.0
        made = Speculated(tokens, batch * result.step_ms / plain_ms, result.step_ms, batch + hoped, ms)
        self.guard.observe(made if speculated else None)
        able = bool((inputs.speculate & (inputs.tokens_left > 1) & (inputs.nodes_left > 0)).any())
        won = tokens * plain_ms > batch * result.step_ms
        self.drafting.count(possible=able, done=bool(result.levels), paid=gain > 0)
        self.verifying.count(possible=able, done=bool(verified.any()), paid=won)
        self.plain.count(possible=speculated, done=able and not result.levels)
        self.steps += 1
        if batch:
            self.context = int(inputs.contexts.mean())
            alone = without_prompts(inputs)
            prompts_ms = plain_ms - self.costs.plain_ms(alone)
            if prompts_ms < MOSTLY_PROMPTS * plain_ms:
                self.rates.learn(batch, tokens, self.promise(alone) * (result.step_ms - prompts_ms))
        self.costs.learn(inputs, result, grown)
        self.acceptance.forget(result.ended)

    def _learn_worth(self, inputs: PlanInputs, result: StepResult, hoped: float, ms: float) -> float:
        """What drafting brought above its costs, in tokens, as the models see it.

        hoped: tokens of the verified nodes. ms: of the step with them, drafting included.
        """
        gain = hoped - self.price(inputs) * (ms - float(self.costs.step_ms(inputs, 0)[0]))
        self.worth = KEEP_WORTH * self.worth + (1 - KEEP_WORTH) * gain / max(int(result.levels[0].sum()), 1)
        return gain


def without_prompts(inputs: PlanInputs) -> PlanInputs:
    """The same step, but for its prompt rows: their time is nothing that drafting could save."""
    return replace(inputs, prefill_rows=0, prefill_context=0) if inputs.prefill_rows else inputs


class _Stop:
    """Asked before each depth of an incremental drafter: which nodes get children."""

    def __init__(self, policy: AdaptivePolicy, inputs: PlanInputs, plan: StepPlan) -> None:
        self._policy, self._inputs = policy, inputs
        self._depths = np.array([shape.depth if shape.nodes else 0 for shape in plan.shapes])
        self._sizes = np.array([shape.nodes for shape in plan.shapes])

    @cached_property
    def _price(self) -> float:
        return self._policy.price(self._inputs)  # nothing is learned while drafting

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        if depth == 0:
            return [np.array([deepest > 0]) for deepest in self._depths.tolist()]
        nodes = side_by_side(drafts)
        chosen = self._chosen(depth, nodes)
        batch = len(drafts)
        grow = np.zeros(len(nodes) + batch, dtype=np.bool_)  # each draft's root before its nodes
        grow[chosen + nodes.owner[chosen] + 1] = True
        return np.split(grow, nodes.starts[1:-1] + np.arange(1, batch))

    def _chosen(self, depth: int, nodes: Nodes) -> IntArray:
        """The newest nodes that should get children."""
        policy, inputs = self._policy, self._inputs
        newest = np.flatnonzero((nodes.depth == depth) & (self._depths[nodes.owner] > depth))
        newest = newest[np.diff(nodes.starts)[nodes.owner[newest]] < self._sizes[nodes.owner[newest]]]
        if paths := policy.largest.paths:
            newest = newest[may_grow(nodes, paths)[newest]]
        if not len(newest):
            return newest
        chances = policy.acceptance.chance(nodes, inputs.classes, inputs.requests)
        survivals = survival(path_keys(chances, nodes.parents, depth))
        owners = nodes.owner[newest]
        requests = [inputs.requests[i] for i in owners.tolist()]
        levels = min(LOOK_AHEAD, policy.largest.depth - depth)
        hopes = policy.acceptance.undrafted(depth + 1, levels, inputs.classes[owners], requests)
        front = survivals[newest] * hopes[:, 0]
        order = np.argsort(-front, kind="stable")
        means = np.concatenate([[1.0], hopes[:, 1:].mean(axis=0)])
        step_ms = policy.costs.step_ms(inputs, len(nodes) + len(newest) * levels)
        spent = policy.costs.levels_ms(len(newest), levels)
        ahead = look_ahead(survivals, front[order], means, step_ms, self._price, spent)
        return np.asarray(newest[order[: ahead.sequences]])
