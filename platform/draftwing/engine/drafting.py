"""The engine's side of a drafter: whatever it raises or returns costs at most that draft (rule R3).

B sequences of a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from draftwing.core import DraftTree, IntArray, StepPlan
from draftwing.drafters.base import Accepted, BoolArray, Controller, Drafter, FeatureRows
from draftwing.drafters.tree import kept
from draftwing.drafters.validate import checked
from draftwing.engine.sequence import Sequence

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Drafts:
    """One draft per sequence [B]. made: sound, as the drafter made them.

    verified: of each, the nodes that a verify runs; trees: those alone, numbered anew. levels: per
    depth that was drafted, whose drafts grew there [B]. refused: drafts that were not sound.
    """

    made: list[DraftTree]
    levels: list[BoolArray] = field(default_factory=list)
    refused: int = 0
    verified: list[IntArray] = field(init=False)
    trees: list[DraftTree] = field(init=False)

    def __post_init__(self) -> None:
        self.trees = self.made
        self.verified = [np.arange(len(tree)) for tree in self.made]

    def cut(self, verified: list[IntArray] | None) -> None:
        """Leave the other nodes out; None: keep all."""
        if verified is not None:
            self.verified = verified
            self.trees = [
                tree if len(nodes) == len(tree) else kept(tree, nodes)
                for tree, nodes in zip(self.made, verified, strict=True)
            ]

    def in_drafters_numbers(self, index: int, nodes: IntArray, count: int, choices: IntArray) -> Accepted:
        """What the drafter is told of a verify of `trees[index]`: it knows the draft that it made."""
        told = np.full(len(self.made[index]) + 1, -1, dtype=np.int64)
        told[0], told[self.verified[index] + 1] = choices[0], choices[1:]
        return Accepted(self.verified[index][nodes], count, told)


class _Asked:
    """Notes whom the controller let draft, at each depth."""

    def __init__(self, controller: Controller, plan: StepPlan) -> None:
        self._controller = controller
        self._depths = np.array([shape.depth if shape.nodes else 0 for shape in plan.shapes])
        self.levels: list[BoolArray] = []

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        found = zip(self._controller.deeper(depth, drafts), (self._depths > depth).tolist(), strict=True)
        grow = [nodes if may else np.zeros_like(nodes) for nodes, may in found]
        go = np.array([nodes.any() for nodes in grow], dtype=np.bool_)
        if depth < len(self.levels):
            self.levels[depth] = self.levels[depth] | go
        elif go.any():
            self.levels.append(go)
        return grow


class Drafting:
    """Calls the drafter and checks its drafts. failures: calls that raised, since the start."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.drafter = drafter
        self.vocab_size = vocab_size
        self.failures = 0

    def propose(self, sequences: Seq[Sequence], plan: StepPlan, controller: Controller) -> Drafts:
        """One sound draft per sequence, empty where nothing good came."""
        nothing = [DraftTree.empty()] * len(sequences)
        if not any(shape.nodes for shape in plan.shapes):
            return Drafts(nothing)
        asked = _Asked(controller, plan)
        trees = self._call("propose", lambda: self.drafter.propose(sequences, plan, asked))
        levels = asked.levels
        if self.drafter.traits.stop == "block" and not levels:
            levels = [np.array([shape.nodes > 0 for shape in plan.shapes])]
        if trees is None:
            return Drafts(nothing, levels, len(sequences))
        made, refused = checked(trees, plan.shapes, self.vocab_size)
        return Drafts(made, levels, refused)

    def prefilled(self, sequences: Seq[Sequence], features: Seq[FeatureRows] | None = None) -> None:
        if sequences:
            self._call("prefill", lambda: self.drafter.prefill(sequences, features))

    def committed(
        self, sequences: Seq[Sequence], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        if sequences:
            self._call("commit", lambda: self.drafter.commit(sequences, accepted, features))

    def release(self, sequence: Sequence) -> None:
        self._call("release", lambda: self.drafter.release(sequence))

    def _call(self, what: str, call: Callable[[], object]) -> object:
        """The call's result, None if it raised: a drafter may be anyone's plug-in and raise anything."""
        try:
            return call()
        except Exception as error:
            self.failures += 1
            if self.failures == 1:
                log.exception("the drafter's %s failed; decoding goes on without its drafts", what)
            else:
                log.debug("the drafter's %s failed again: %r", what, error)
            return None
