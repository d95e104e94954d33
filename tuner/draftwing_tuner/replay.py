"""A drafter that proposes what a trace holds, at whatever place a request is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters.base import BoolArray, Controller, DrafterTraits, SequenceView, TokenDrafter
from draftwing.drafters.tree import children, full_size, kept, shape_of
from draftwing.errors import ConfigError
from draftwing_tuner.trace import Trace

MARK = "#"  # a request's id is that of its answer in the trace, the mark, and anything


def answer_of(request: str) -> str:
    """The id, in the trace, of a request's answer."""
    return request.partition(MARK)[0]


class Stored:
    """A stored tree within some branching, and its parts."""

    def __init__(self, stored: DraftTree, branching: tuple[int, ...]) -> None:
        self.tree = within(stored, branching)
        self.below = children(self.tree.parents)
        self._parts: dict[tuple[int, ...], DraftTree] = {}

    def part(self, nodes: tuple[int, ...]) -> DraftTree:
        """nodes: ascending, parents among them."""
        if (found := self._parts.get(nodes)) is None:
            found = self._parts[nodes] = self.tree if len(nodes) == len(self.tree) else kept(self.tree, nodes)
        return found


@dataclass(slots=True)
class Growing:
    """nodes: of the stored tree, that are drafted. newest: those of them, or the root, that may get children."""

    stored: Stored
    shape: DraftShape
    nodes: tuple[int, ...] = ()
    newest: tuple[int, ...] = (-1,)

    @property
    def ended(self) -> bool:
        full = len(self.nodes) >= self.shape.nodes
        return full or not any(self.stored.below[node] for node in self.newest)

    def grow(self, chosen: BoolArray) -> None:
        """One level, below the chosen of the root and the nodes."""
        mine = chosen[1 + len(self.nodes) - len(self.newest) :].tolist()
        below = [self.stored.below[node] for node, may in zip(self.newest, mine, strict=True) if may]
        room = self.shape.nodes - len(self.nodes)
        self.newest = tuple(sorted(itertools.chain(*below))[:room])
        self.nodes += self.newest


class ReplayDrafter(TokenDrafter):
    """Stored trees are as wide and as deep as they are; no plan gets more. stop: see `DrafterTraits`."""

    def __init__(self, trace: Trace, name: str, stop: Literal["incremental", "block"] = "incremental") -> None:
        if name not in trace.proposals:
            raise ConfigError(f"drafter {name!r} is not in the trace; it holds {', '.join(sorted(trace.proposals))}")
        self._proposals = {
            request.id: proposals for request, proposals in zip(trace.requests, trace.proposals[name], strict=True)
        }
        self._found: dict[tuple[str, int, tuple[int, ...]], Stored] = {}
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
            i: Growing(self._stored(sequence, shape.branching, base[i] if base is not None else ()), shape)
            for i, (sequence, shape) in enumerate(zip(sequences, plan.shapes, strict=True))
            if shape.nodes
        }
        depth = 0
        while growing:
            chosen = controller.deeper(depth, drafts)
            depth += 1
            for i, draft in list(growing.items()):
                draft.grow(chosen[i])
                drafts[i] = draft.stored.part(draft.nodes)
                if depth >= draft.shape.depth or draft.ended:
                    del growing[i]
        return drafts

    def _stored(self, sequence: SequenceView, branching: tuple[int, ...], base: Seq[int]) -> Stored:
        answer, position = answer_of(sequence.id), len(sequence.tokens) + len(base) - sequence.prompt_len
        key = (answer, position, branching)
        if (found := self._found.get(key)) is None:
            found = self._found[key] = Stored(self._proposals[answer].at(position), branching)
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
    """The nodes that stored trees have: a static tree, if all are parts of the largest one, else their widths."""
    seen: set[tuple[int, ...]] = set()
    most = 0
    for proposals in trace.proposals[name]:
        for position in range(len(proposals.starts) - 1):
            tree = proposals.at(position)
            most = max(most, len(tree))
            seen.update(rank_paths(tree))
    shape = shape_of(seen)
    named = len(seen) == most < full_size(shape.branching)
    return shape if named else DraftShape(shape.branching, min(most, full_size(shape.branching)))


def rank_paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Each node as the ranks of itself and of those above it."""
    found: list[tuple[int, ...]] = []
    born: dict[int, int] = {}
    for parent in tree.parents.tolist():
        born[parent] = rank = born.get(parent, -1) + 1
        found.append((*(found[parent] if parent >= 0 else ()), rank))
    return found
