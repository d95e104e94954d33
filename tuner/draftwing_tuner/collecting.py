"""`draftwing tune collect`: plain decoding of the user's prompts, with the drafter's full proposal at every position.

The engine runs as it serves, but that no node of any draft is verified: the text is plain decoding's, the drafter lives
through it position by position, and drafters that need the target's features have them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, Request, SamplingParams, StepPlan
from draftwing.drafters.base import Controller, DrafterTraits, NullController
from draftwing.drafters.tree import full_size
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from draftwing.offline import run_all
from draftwing.policy.base import PlanInputs, StepResult
from draftwing_tuner.trace import Proposals, Trace, TraceRequest, read_trace, write_trace

DEPTH = 8
CHAIN, TREE = (1,) * DEPTH, (3, 2) + (1,) * (DEPTH - 2)
PARTS = "parts"


class CollectPolicy:
    """Drafts one shape for everybody, and verifies nothing. drafts: by request and position of its output."""

    def __init__(self, drafter: str, shape: DraftShape) -> None:
        self.drafter, self.largest = drafter, shape
        self.prompts: dict[str, int] = {}
        self.drafts: dict[str, dict[int, DraftTree]] = {}

    def decide(self, inputs: PlanInputs) -> StepPlan:
        shapes = [self.largest.cut(self.largest.depth, nodes) for nodes in inputs.nodes_left.tolist()]
        return StepPlan(self.drafter, tuple(shapes), "collect")

    def controller(self, inputs: PlanInputs, plan: StepPlan) -> Controller:
        return NullController()

    def cut(self, inputs: PlanInputs, plan: StepPlan, drafts: Seq[DraftTree]) -> list[IntArray]:
        return [np.empty(0, dtype=np.int64)] * len(drafts)

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        for request, context, draft in zip(inputs.requests, inputs.contexts.tolist(), result.drafts, strict=True):
            position = context + 1 - self.prompts[request]  # the root is committed, and not in the cache
            self.drafts.setdefault(request, {})[position] = draft


def largest(traits: DrafterTraits) -> DraftShape:
    """The shape to ask for: any that a policy may want of this drafter is a part of it."""
    branching = (TREE if traits.trees else CHAIN)[: traits.max_depth]
    return DraftShape(branching, full_size(branching))


def collect(engine: Engine, drafter: str, requests: Seq[Request]) -> tuple[list[TraceRequest], list[Proposals]]:
    """The engine must be idle; its policy is as before afterwards."""
    policy = CollectPolicy(drafter, largest(engine.drafting.drafter.traits))
    policy.prompts = {request.id: len(request.prompt_ids) for request in requests}
    before, engine.policy = engine.policy, policy
    try:
        outputs = run_all(engine, requests)
    finally:
        engine.policy = before
    answers, proposals = [], []
    for request, output in zip(requests, outputs, strict=True):
        found = policy.drafts.get(request.id, {})
        positions = range(len(output.token_ids))
        proposals.append(Proposals.of([found.get(position, DraftTree.empty()) for position in positions]))
        answers.append(
            TraceRequest(
                id=request.id,
                kind="",
                prompt_len=len(request.prompt_ids),
                output=tuple(output.token_ids),
                prompt=tuple(request.prompt_ids),
                temperature=request.params.temperature,
                seed=request.params.seed,
            )
        )
    return answers, proposals


def collect_all(
    engine: Engine,
    drafter: str,
    prompts: Seq[Seq[int]],
    params: SamplingParams,
    folder: Path,
    about: dict[str, Any],
    *,
    keep_going: Callable[[int], bool] = lambda done: True,
) -> Trace:
    """In parts of as many requests as run together, each kept in the folder as it is done; then all as one trace there.

    keep_going: asked with the answers there are, before each part but the first. ConfigError where the folder holds
    parts of something else.
    """
    together = engine.scheduler.limits.sequences
    about = about | {"prompts": _digest(prompts), "max_tokens": params.max_tokens, "temperature": params.temperature}
    answers: list[TraceRequest] = []
    proposals: list[Proposals] = []
    for start in range(0, len(prompts), together):
        part = folder / PARTS / f"{start:06d}"
        if not part.is_dir():
            if answers and not keep_going(len(answers)):
                break
            requests = [
                Request(f"{start + i}", list(prompt), params, salt="collect")
                for i, prompt in enumerate(prompts[start : start + together])
            ]
            found = collect(engine, drafter, requests)
            work = part.with_name(f".{part.name}")
            write_trace(Trace(tuple(found[0]), {drafter: tuple(found[1])}, about), work)
            work.rename(part)
        kept = read_trace(part)
        _check(kept.about, about, part)
        answers += kept.requests
        proposals += kept.proposals[drafter]
    trace = Trace(tuple(answers), {drafter: tuple(proposals)}, about)
    write_trace(trace, folder)
    return trace


def _digest(prompts: Seq[Seq[int]]) -> str:
    return sha256(json.dumps([list(prompt) for prompt in prompts]).encode()).hexdigest()[:16]


def _check(known: Any, wanted: dict[str, Any], part: Path) -> None:
    wanted = json.loads(json.dumps(wanted))
    for name in sorted({*known, *wanted}):
        if known.get(name) != wanted.get(name):
            raise ConfigError(
                f"{part} was collected with {name} {known.get(name)!r}, now {wanted.get(name)!r}; "
                "use another --out, or remove the folder"
            )
