"""Method `auto`: gives each sequence the configured drafter whose drafts were accepted furthest of late.

Greedy and sampled requests are judged apart, and nothing else about a request is looked at (rule R5). Every drafter is
tried a few times first; then one draft in `explore_every` goes round the others, so that a drafter which has become
better is found again. The choice follows from the drafts so far alone. What a draft costs is not weighed.

A drafter that raises is judged as one whose drafts were refused; the others go on (rule R3).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from pydantic import Field

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters.base import (
    ALONE,
    Accepted,
    BoolArray,
    CheckpointReader,
    Controller,
    Drafter,
    DrafterMethod,
    DrafterOptions,
    DrafterTraits,
    FeatureRows,
    Mesh,
    MethodFacts,
    SequenceView,
    TargetInfo,
)
from draftwing.drafters.tree import full_size

log = logging.getLogger(__name__)
NO_NODES = np.empty(0, dtype=np.int64)


class AutoOptions(DrafterOptions):
    """Counts of drafts. trials: of each drafter before any is preferred. memory: over how many a mean is taken."""

    explore_every: int = Field(default=16, ge=2, le=65536)
    trials: int = Field(default=4, ge=1, le=1024)
    memory: int = Field(default=64, ge=1, le=65536)


@dataclass(slots=True)
class _Class:
    """What is known of one class of requests. means, counts: per drafter, accepted tokens a draft, and drafts."""

    means: list[float]
    counts: list[int]
    drafts: int = 0

    def best(self, ahead: int, options: AutoOptions) -> int:
        """The drafter of the draft after `ahead` more."""
        turn, least = self.drafts + ahead, min(self.counts)
        if least < options.trials:
            return turn % len(self.counts)
        if turn % options.explore_every == 0:
            return turn // options.explore_every % len(self.counts)
        return max(range(len(self.means)), key=lambda i: self.means[i])

    def learn(self, drafter: int, accepted: int, memory: int) -> None:
        self.drafts += 1
        self.counts[drafter] += 1
        self.means[drafter] += (accepted - self.means[drafter]) / min(self.counts[drafter], memory)


@dataclass(slots=True)
class AutoDrafter:
    """drafters: by name, bound already unless `bind` is called; none until the registry or the engine sets them."""

    options: AutoOptions = field(default_factory=AutoOptions)
    drafters: Mapping[str, Drafter] = field(default_factory=dict)
    _classes: dict[str, _Class] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)  # the drafter of each draft that is out
    _failed: set[int] = field(default_factory=set)

    @property
    def traits(self) -> DrafterTraits:
        """What the drafters need together, and the most any of them can do."""
        all_traits = [drafter.traits for drafter in self.drafters.values()]
        layers = tuple(sorted({layer for traits in all_traits for layer in traits.hidden_layers}))
        return DrafterTraits(
            kind="feature" if layers else "token",
            stop="incremental" if any(traits.stop == "incremental" for traits in all_traits) else "block",
            hidden_layers=layers,
            kv_bytes_per_token=sum(traits.kv_bytes_per_token for traits in all_traits),
            max_depth=max((traits.max_depth for traits in all_traits), default=0),
            trees=any(traits.trees for traits in all_traits),
            stateful_across_requests=True,
            sharding="target" if any(traits.sharding == "target" for traits in all_traits) else "rank0",
        )

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        for drafter in self.drafters.values():
            drafter.bind(target, None, mesh)

    def reserve(self, blocks: int, block_tokens: int) -> None:
        for drafter in self.drafters.values():
            drafter.reserve(blocks, block_tokens)

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        for index, drafter in enumerate(self.drafters.values()):
            self._try(index, "prefill", drafter.prefill, sequences, self._features(drafter, features))

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        chosen = self._choose(sequences, plan)
        drafts = [DraftTree.empty()] * len(sequences)
        for index, drafter in enumerate(self.drafters.values()):
            mine = [i for i, one in enumerate(chosen) if one == index]
            if not mine:
                continue
            shapes = tuple(_within(plan.shapes[i], drafter.traits) for i in mine)
            found = self._try(
                index,
                "propose",
                drafter.propose,
                [sequences[i] for i in mine],
                replace(plan, shapes=shapes),
                _Part(controller, mine, len(sequences)),
                None if base is None else [base[i] for i in mine],
            )
            if not isinstance(found, list | tuple) or len(found) != len(mine):
                found = [None] * len(mine)  # no draft: whoever checks drafts refuses and counts it
            for i, draft in zip(mine, found, strict=True):
                drafts[i] = _uniform(draft)
        if base is None:
            self._asked = {sequences[i].id: one for i, one in enumerate(chosen) if one is not None}
        return drafts

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        owners = [self._asked.get(sequence.id) for sequence in sequences]
        self._asked = {}
        for index, drafter in enumerate(self.drafters.values()):
            told = [
                verified if owner == index else Accepted(NO_NODES, verified.count)
                for verified, owner in zip(accepted, owners, strict=True)
            ]
            self._try(index, "commit", drafter.commit, sequences, told, self._features(drafter, features))
        for sequence, verified, owner in zip(sequences, accepted, owners, strict=True):
            if owner is not None:
                self._class_of(sequence).learn(owner, len(verified.nodes), self.options.memory)

    def release(self, sequence: SequenceView) -> None:
        self._asked.pop(sequence.id, None)
        for index, drafter in enumerate(self.drafters.values()):
            self._try(index, "release", drafter.release, sequence)

    def _choose(self, sequences: Seq[SequenceView], plan: StepPlan) -> list[int | None]:
        """The drafter of each sequence, None where nothing is to be drafted."""
        ahead: dict[str, int] = {}
        chosen: list[int | None] = []
        for sequence, shape in zip(sequences, plan.shapes, strict=True):
            if shape.depth == 0 or shape.nodes == 0 or not self.drafters:
                chosen.append(None)
                continue
            kind = _kind(sequence)
            chosen.append(self._class_of(sequence).best(ahead.get(kind, 0), self.options))
            ahead[kind] = ahead.get(kind, 0) + 1
        return chosen

    def _class_of(self, sequence: SequenceView) -> _Class:
        count = len(self.drafters)
        return self._classes.setdefault(_kind(sequence), _Class([0.0] * count, [0] * count))

    def _features(self, drafter: Drafter, features: Seq[FeatureRows] | None) -> Seq[FeatureRows] | None:
        """The layers this drafter declared, of those that all declared."""
        if features is None or not drafter.traits.hidden_layers:
            return None
        places = [self.traits.hidden_layers.index(layer) for layer in drafter.traits.hidden_layers]
        return [FeatureRows(rows.start, tuple(rows.hidden[place] for place in places)) for rows in features]

    def _try(self, index: int, what: str, call: Any, *args: Any) -> Any:
        """The call's result, None if it raised: one drafter may be anyone's plug-in and must not cost the others."""
        try:
            return call(*args)
        except Exception as error:
            name = list(self.drafters)[index]
            if index not in self._failed:
                self._failed.add(index)
                log.exception("%s of drafter %s failed; the others go on", what, name)
            else:
                log.debug("%s of drafter %s failed again: %r", what, name, error)
            return None


class _Part:
    """A controller for some of the batch, by their indexes in it."""

    def __init__(self, controller: Controller, mine: list[int], batch: int) -> None:
        self._controller, self._mine, self._batch = controller, mine, batch

    def deeper(self, depth: int, drafts: Seq[DraftTree]) -> list[BoolArray]:
        every = [DraftTree.empty()] * self._batch
        for place, draft in zip(self._mine, drafts, strict=True):
            every[place] = draft
        found = self._controller.deeper(depth, every)
        return [found[place] for place in self._mine]


def _kind(sequence: SequenceView) -> str:
    return "greedy" if sequence.params.temperature == 0 else "sampled"


def _within(shape: DraftShape, traits: DrafterTraits) -> DraftShape:
    """The shape as far as a drafter of these traits can fill it."""
    branching = shape.branching if traits.trees else (1,) * shape.depth
    paths = shape.paths if traits.trees else ()
    cut = DraftShape(branching, shape.nodes, paths).cut(traits.max_depth, shape.nodes)
    return DraftShape(cut.branching, min(cut.nodes, full_size(cut.branching)), cut.paths)


def _uniform(draft: object) -> DraftTree:
    """Without confidences: those of different drafters don't mean the same. Anything else passes, to be refused."""
    if isinstance(draft, DraftTree) and draft.confidences is not None:
        return DraftTree(draft.tokens, draft.parents, sources=draft.sources)
    return cast("DraftTree", draft)


METHOD = DrafterMethod(
    AutoOptions,
    AutoDrafter,
    MethodFacts("chooses among the other drafters configured", trees=True, stateful_across_requests=True),
)
