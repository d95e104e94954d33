"""Collect a trace on the real engine: decode prompts plainly, then ask a drafter at every position of every answer."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from draftwing.core import DraftShape, DraftTree, Request, StepPlan
from draftwing.drafters.base import Accepted, NullController
from draftwing.engine.sequence import Sequence
from draftwing.engine.step import Engine
from draftwing.offline import run_all
from draftwing.policy.modes import OffPolicy
from draftwing_tuner.trace import Proposals, TraceRequest, level_order

TOGETHER = 32  # answers that a drafter works on at a time
NOTHING = Accepted(np.empty(0, dtype=np.int64), 1)

Progress = Callable[[str], None]


def answer(engine: Engine, prompts: Seq[tuple[str, Request]]) -> list[TraceRequest]:
    """Plain decoding of each (kind, request). The engine must be idle; its policy is `off` afterwards."""
    engine.policy = OffPolicy()
    outputs = run_all(engine, [request for _, request in prompts])
    return [
        TraceRequest(
            request.id,
            kind,
            len(request.prompt_ids),
            tuple(output.token_ids),
            tuple(request.prompt_ids),
            request.params.temperature,
            request.params.seed,
        )
        for (kind, request), output in zip(prompts, outputs, strict=True)
    ]


def propose(
    engine: Engine, requests: Seq[Request], outputs: Seq[Seq[int]], shapes: Seq[DraftShape], tell: Progress
) -> list[Proposals]:
    """What the engine's drafter proposes for each request's answer, at every position: the union of all shapes.

    The drafter lives through each answer as if nothing it proposed was ever accepted. The engine must be idle.
    """
    found: list[Proposals] = []
    for start in range(0, len(requests), TOGETHER):
        part = slice(start, start + TOGETHER)
        each = [_lives(engine, requests[part], outputs[part], shape) for shape in shapes]
        found += [
            Proposals.of([_union(trees) for trees in zip(*lives, strict=True)]) for lives in zip(*each, strict=True)
        ]
        tell(f"proposals for {len(found)} of {len(requests)} answers")
    return found


def _lives(engine: Engine, requests: Seq[Request], outputs: Seq[Seq[int]], shape: DraftShape) -> list[list[DraftTree]]:
    """Of one shape: a draft for each position of each answer; position 0 has none."""
    drafter = engine.drafting.drafter
    sequences = [engine.admission.admit(request, i, waiting=0) for i, request in enumerate(requests)]
    drafts: list[list[DraftTree]] = [[DraftTree.empty()] for _ in sequences]
    drafter.prefill(sequences)
    try:
        for position in range(1, max(map(len, outputs))):
            alive = [i for i, output in enumerate(outputs) if position < len(output)]
            for i in alive:
                _advance(engine, sequences[i], outputs[i][position - 1], shape.nodes)
            running = [sequences[i] for i in alive]
            if position > 1:
                drafter.commit(running, [NOTHING] * len(running))
            plan = StepPlan("", (shape,) * len(running), "collect")
            for i, tree in zip(alive, drafter.propose(running, plan, NullController()), strict=True):
                drafts[i].append(tree)
    finally:
        for sequence in sequences:
            drafter.release(sequence)
            engine.pool.release(sequence.table)
    return drafts


def _advance(engine: Engine, sequence: Sequence, token: int, nodes: int) -> None:
    sequence.tokens.append(token)
    if not engine.pool.grow(sequence.table, len(sequence.tokens) + nodes):
        raise RuntimeError(f"the cache of {engine.pool.tokens} tokens is too small for {TOGETHER} answers at a time")


def _union(trees: Seq[DraftTree]) -> DraftTree:
    """One tree of all their nodes; a node has the confidence that the first tree gave it."""
    places: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    confidences: list[float] = []
    sure = all(tree.confidences is not None for tree in trees if len(tree))
    for tree in trees:
        own: list[int] = []
        given = tree.confidences if tree.confidences is not None else np.zeros(len(tree), dtype=np.float32)
        for token, parent, confidence in zip(tree.tokens.tolist(), tree.parents.tolist(), given.tolist(), strict=True):
            above = own[parent] if parent >= 0 else -1
            place = places.setdefault((above, token), len(tokens))
            if place == len(tokens):
                tokens.append(token)
                parents.append(above)
                confidences.append(confidence)
            own.append(place)
    values = np.array(confidences, dtype=np.float32) if sure else None
    return level_order(DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64), values))
