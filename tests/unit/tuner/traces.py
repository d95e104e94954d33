"""Made-up traces, and a policy that uses everything a policy may."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from hashlib import blake2b

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import BoolArray, Controller
from draftwing.policy.base import PlanInputs, Policy, StepResult
from draftwing_tuner.trace import Proposals, Trace, TraceRequest

VOCABULARY = 50


def made_up_trace(seed: int, answers: int = 6, accuracy: float = 0.7) -> Trace:
    """Short answers with trees, up to 3 wide and 5 deep, that hold the right next token as often as told."""
    draw = random.Random(seed)
    requests, proposals = [], []
    for number in range(answers):
        prompt = tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 30)))
        output = tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 25)))
        requests.append(TraceRequest(f"{'ab'[number % 2]}{number}", "ab"[number % 2], len(prompt), output, prompt))
        trees = [_tree(draw, output[at:], accuracy) for at in range(len(output))]
        proposals.append(Proposals.of([DraftTree.empty(), *trees[1:]]))
    return Trace(tuple(requests), {"made": tuple(proposals)})


def _tree(draw: random.Random, text: Seq[int], accuracy: float) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    level = [-1]
    for depth in range(draw.randint(0, 5)):
        grown: list[int] = []
        for parent in level[:2]:
            siblings = draw.sample(range(VOCABULARY), draw.randint(1, 3))
            if depth < len(text) and draw.random() < accuracy and text[depth] not in siblings:
                siblings[draw.randrange(len(siblings))] = text[depth]
            grown += range(len(tokens), len(tokens) + len(siblings))
            tokens += siblings
            parents += [parent] * len(siblings)
        level = grown
    confidences = np.array([draw.randint(0, 1024) for _ in tokens]) / 1024
    return DraftTree(
        np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64), confidences.astype(np.float32)
    )


class RestlessPolicy:
    """Plans, stops and cuts by a hash of all it has seen, times included: one bit apart, and it goes another way."""

    drafter = "made"
    largest = DraftShape((3, 3, 2, 1, 1), 20)

    def __init__(self) -> None:
        self.seen = b""

    def decide(self, inputs: PlanInputs) -> StepPlan:
        left = np.minimum(inputs.tokens_left - 1, 5)
        shapes = tuple(
            self.largest.cut(min(depth, self._draw("depth", i, 6)), min(nodes, self._draw("nodes", i, 20)))
            for i, (depth, nodes) in enumerate(zip(left.tolist(), inputs.nodes_left.tolist(), strict=True))
        )
        return StepPlan(self.drafter, shapes, "restless")

    def controller(self, inputs: PlanInputs, plan: StepPlan) -> Controller:
        return _Restless(self)

    def cut(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> list[IntArray] | None:
        if self._draw("cut", 0, 3) == 0:
            return None
        kept: list[IntArray] = []
        for i, draft in enumerate(drafts):
            alive: set[int] = {-1}
            for node, parent in enumerate(draft.parents.tolist()):
                sure = 1.0 if draft.confidences is None else float(draft.confidences[node])
                if parent in alive and sure * 4 > self._draw("node", i, 4):
                    alive.add(node)
            kept.append(np.array(sorted(alive - {-1}), dtype=np.int64))
        return kept

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        entry = (_plain(inputs), _plain(plan.shapes), _plain(result))
        self.seen = blake2b(self.seen + repr(entry).encode(), digest_size=16).digest()

    def _draw(self, what: str, index: int, below: int) -> int:
        digest = blake2b(self.seen + f"{what} {index}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") % below


class _Restless:
    def __init__(self, policy: RestlessPolicy) -> None:
        self._policy = policy

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        draw = self._policy._draw
        return [
            np.array([draw(f"go {depth} {len(draft)} {node}", i, 4) > 0 for node in range(len(draft) + 1)])
            for i, draft in enumerate(drafts)
        ]


class Logged:
    """A policy that keeps what it was asked and told."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.drafter, self.largest = policy.drafter, policy.largest
        self.decide, self.controller, self.cut = policy.decide, policy.controller, policy.cut
        self.log: list[tuple[PlanInputs, StepPlan, StepResult]] = []

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        self.log.append((inputs, plan, result))
        self.policy.observe(inputs, plan, result)

    @property
    def steps(self) -> list[object]:
        """The log as plain values, which compare bit for bit."""
        return [_plain(entry) for entry in self.log]


def _plain(value: object) -> object:
    """Arrays as lists, deeply, so that logs compare bit for bit."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "__slots__"):
        return {name: _plain(getattr(value, name)) for name in value.__slots__}
    return value
