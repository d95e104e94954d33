"""Method `medusa`: one hidden state of the target gives a token of every depth, and a static tree combines them.

The heads see the state of the last token that was run, the one before the root, so head d drafts depth d + 1. Where
that state lies further back (a hypothetical base, a step whose features never came), later heads take over.

Shapes: B sequences of a call, E drafted (sequence, depth) pairs, H hidden size, V vocabulary, K depth.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

from draftwing.core import DraftShape, DraftSources, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import (
    ALONE,
    Accepted,
    CheckpointReader,
    Controller,
    DrafterTraits,
    FeatureRows,
    Mesh,
    SequenceView,
    TargetInfo,
)
from draftwing.drafters.children import children
from draftwing.drafters.medusa import Choices, MedusaOptions
from draftwing.drafters.medusa_heads import MedusaHeads, read_heads
from draftwing.drafters.sampled import Sampled
from draftwing.engine.processors import SampleRows
from draftwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StaticTree:
    """Nodes level by level. depths [n]: 0 below the root. ranks [n]: which child of its parent. parents [n]."""

    depths: IntArray
    ranks: IntArray
    parents: IntArray


@lru_cache(maxsize=1024)
def static_tree(shape: DraftShape, choices: Choices | None) -> StaticTree:
    """The shape's own paths, else those of `choices` that fit into it, else all of it; the first of too many."""
    choices = shape.paths or choices
    paths: list[tuple[int, ...]] = []
    for depth in range(1, shape.depth + 1):
        room = shape.nodes - len(paths)
        level = (
            product(*(range(width) for width in shape.branching[:depth]))
            if choices is None
            else (path for path in choices if len(path) == depth and _within(path, shape.branching))
        )
        paths += [path for _, path in zip(range(room), level, strict=False)]
    place = {path: node for node, path in enumerate(paths)} | {(): -1}
    return StaticTree(
        np.array([len(path) - 1 for path in paths], dtype=np.int64),
        np.array([path[-1] for path in paths], dtype=np.int64),
        np.array([place[path[:-1]] for path in paths], dtype=np.int64),
    )


def _within(path: Seq[int], branching: Seq[int]) -> bool:
    return all(rank < width for rank, width in zip(path, branching, strict=False))


@dataclass(slots=True)
class State:
    """hidden [H]: of the token at index seen - 1, the newest whose state is known."""

    sampled: Sampled
    hidden: Tensor | None = None
    seen: int = 0


class MedusaDrafter:
    """traits are final after `bind`."""

    def __init__(self, options: MedusaOptions) -> None:
        self._choices = options.tree
        self._states: dict[str, State] = {}
        self._heads: MedusaHeads
        self._target: TargetInfo
        self.traits = DrafterTraits(trees=True, confidence=True)

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        if checkpoint is None:
            raise ConfigError("method medusa needs a checkpoint with the heads; set path to a folder or hub id")
        if target.rejection and self._choices and not _gapless(self._choices):
            raise ConfigError(
                "choices leave out a rank before a later one, which sampling: rejection can't verify exactly; "
                "give every node its children from rank 0 on, or use sampling: invariant"
            )
        self._target, self._heads = target, read_heads(checkpoint, target)
        count = len(self._heads.heads)
        self.traits = DrafterTraits(
            kind="feature", hidden_layers=(target.layers,), max_depth=count, trees=True, confidence=True
        )

    def reserve(self, blocks: int, block_tokens: int) -> None:
        pass

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        for sequence, rows in zip(sequences, features or (), strict=False):
            if len(hidden := rows.hidden[0]):
                state = self._state(sequence)
                state.hidden, state.seen = hidden[-1].clone(), rows.start + len(hidden)

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        self.prefill(sequences, features)

    def release(self, sequence: SequenceView) -> None:
        self._states.pop(sequence.id, None)

    @torch.inference_mode()
    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        bases = [()] * len(sequences) if base is None else base
        drafts = [DraftTree.empty()] * len(sequences)
        going, trees, lengths, lags = [], [], [], []
        for place, (sequence, shape, more) in enumerate(zip(sequences, plan.shapes, bases, strict=True)):
            state, length = self._states.get(sequence.id), len(sequence.tokens) + len(more)
            if state is None or state.hidden is None:
                continue
            lag = length - 1 - state.seen  # the last of `length` tokens is the root, which was not run yet
            widths = tuple(min(width, self._target.vocab_size) for width in shape.branching)
            tree = static_tree(
                DraftShape(widths, shape.nodes, shape.paths).cut(self.traits.max_depth - lag, shape.nodes),
                self._choices,
            )
            if lag >= 0 and len(tree.ranks):
                state.sampled.follow(sequence)
                going.append((place, state))
                trees.append(tree)
                lengths.append(length)
                lags.append(lag)
        if going:
            found = self._draft([state for _, state in going], trees, lengths, lags)
            for (place, _), draft in zip(going, found, strict=True):
                drafts[place] = draft
        return drafts

    def _draft(self, states: Seq[State], trees: Seq[StaticTree], lengths: Seq[int], lags: Seq[int]) -> list[DraftTree]:
        """All depths of all sequences in one go: a head's tokens are the same for every node of a depth."""
        depths = [int(tree.depths[-1]) + 1 for tree in trees]
        owner = np.repeat(np.arange(len(trees)), depths)  # [E]
        depth = np.concatenate([np.arange(count) for count in depths])  # [E]
        hidden = torch.stack([state.hidden for state in states if state.hidden is not None])
        device = hidden.device
        logits = self._heads.logits(
            hidden[torch.from_numpy(owner).to(device)], torch.from_numpy(np.array(lags)[owner] + depth).to(device)
        )
        samples = SampleRows([state.sampled.state for state in states], owner, np.array(lengths)[owner] + depth)
        width = 1 + max(int(tree.ranks.max()) for tree in trees)
        found = children(
            logits, samples, width, self._heads.token_map, self._target.vocab_size, sources=self._target.rejection
        )
        drafts, first = [], 0
        for tree, count in zip(trees, depths, strict=True):
            rows = first + tree.depths
            sources = None
            if found.sources is not None:
                below = first + np.concatenate([[0], tree.depths[tree.depths < count - 1] + 1])
                sources = DraftSources(found.sources.ids[below], found.sources.weights[below])
            drafts.append(
                DraftTree(found.tokens[rows, tree.ranks], tree.parents, found.confidences[rows, tree.ranks], sources)
            )
            first += count
        return drafts

    def _state(self, sequence: SequenceView) -> State:
        state = self._states.get(sequence.id)
        if state is None:
            state = self._states[sequence.id] = State(Sampled.of(sequence, self._target.eos_token_ids))
        return state


def _gapless(choices: Choices) -> bool:
    known = set(choices)
    return all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in known for path in choices)
