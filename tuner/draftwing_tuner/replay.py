"""A drafter that proposes what a trace holds, at whatever place a request is."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters.base import Controller, DrafterTraits, SequenceView, TokenDrafter
from draftwing.drafters.tree import depths, kept, truncated
from draftwing.errors import ConfigError
from draftwing_tuner.trace import Trace

MARK = "#"  # a request's id is that of its answer in the trace, the mark, and anything


def answer_of(request: str) -> str:
    """The id, in the trace, of a request's answer."""
    return request.partition(MARK)[0]


class Levels:
    """A stored tree within some branching, and where each level of it ends."""

    def __init__(self, stored: DraftTree, branching: tuple[int, ...]) -> None:
        self.tree = within(stored, branching)
        self.ends = np.bincount(depths(self.tree.parents), minlength=1).cumsum().tolist()  # ends[d]: nodes to depth d
        self._cut: dict[int, DraftTree] = {}

    def upto(self, depth: int, nodes: int) -> DraftTree:
        """Its first levels, within a node budget."""
        count = min(self.ends[min(depth, len(self.ends) - 1)], nodes)
        if count not in self._cut:
            self._cut[count] = truncated(self.tree, count)
        return self._cut[count]


class ReplayDrafter(TokenDrafter):
    """Stored trees are as wide and as deep as they are; no plan gets more. stop: see `DrafterTraits`."""

    def __init__(self, trace: Trace, name: str, stop: Literal["incremental", "block"] = "incremental") -> None:
        if name not in trace.proposals:
            raise ConfigError(f"drafter {name!r} is not in the trace; it holds {', '.join(sorted(trace.proposals))}")
        self._proposals = {
            request.id: proposals for request, proposals in zip(trace.requests, trace.proposals[name], strict=True)
        }
        self._found: dict[tuple[str, int, tuple[int, ...]], Levels] = {}
        sure = all(one.parts is not None for one in trace.proposals[name])
        self._traits = DrafterTraits(stop=stop, trees=True, confidence=sure)

    @property
    def traits(self) -> DrafterTraits:  # type: ignore[override]
        return self._traits

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        empty = DraftTree.empty()
        drafts = [empty] * len(sequences)
        growing = {
            i: (self._levels(sequence, shape.branching, base[i] if base is not None else ()), shape)
            for i, (sequence, shape) in enumerate(zip(sequences, plan.shapes, strict=True))
            if shape.nodes
        }
        depth = 0
        while growing:
            go = controller.deeper(depth, drafts)
            depth += 1
            for i, (levels, shape) in list(growing.items()):
                if go[i]:
                    drafts[i] = levels.upto(depth, shape.nodes)
                if not go[i] or depth >= min(shape.depth, len(levels.ends) - 1) or len(drafts[i]) >= shape.nodes:
                    del growing[i]
        return drafts

    def _levels(self, sequence: SequenceView, branching: tuple[int, ...], base: Seq[int]) -> Levels:
        answer, position = answer_of(sequence.id), len(sequence.tokens) + len(base) - sequence.prompt_len
        key = (answer, position, branching)
        if (found := self._found.get(key)) is None:
            found = self._found[key] = Levels(self._proposals[answer].at(position), branching)
        return found


def within(tree: DraftTree, branching: Seq[int]) -> DraftTree:
    """The nodes that a branching leaves of a tree in level order: the first children of those it leaves."""
    seen: dict[int, int] = {}
    level: dict[int, int] = {-1: 0}
    for node, parent in enumerate(tree.parents.tolist()):
        rank = seen.get(parent, 0)
        seen[parent] = rank + 1
        if parent in level and level[parent] < len(branching) and rank < branching[level[parent]]:
            level[node] = level[parent] + 1
    return tree if len(level) == len(tree) + 1 else kept(tree, [node for node in level if node >= 0])


def largest_shape(trace: Trace, name: str) -> DraftShape:
    """The branching of the widest stored tree, by depth, and its nodes."""
    widths: list[int] = []
    most = 0
    for proposals in trace.proposals[name]:
        for position in range(len(proposals.starts) - 1):
            tree = proposals.at(position)
            most = max(most, len(tree))
            at = depths(tree.parents)
            family = np.unique(tree.parents, return_counts=True)
            for parent, count in zip(*(column.tolist() for column in family), strict=True):
                depth = 0 if parent < 0 else int(at[parent])
                widths += [0] * (depth + 1 - len(widths))
                widths[depth] = max(widths[depth], count)
    return DraftShape(tuple(widths), most)
