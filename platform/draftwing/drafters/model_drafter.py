"""A small model of the target's vocabulary drafts token by token, or level by level for trees.

Its keys and values lie in pages of its own, parallel to the target's: the same block numbers, so that the engine's
tables serve both. It runs nothing until it is asked: what was committed since then is caught up in the next `propose`,
less what another sequence with the same beginning has filled.

Shapes: B sequences of a call, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
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
from draftwing.drafters.draft_model import DraftModelOptions
from draftwing.drafters.filled_blocks import FilledBlocks
from draftwing.drafters.growth import Growth, level_by_level, level_rows, most_children, share
from draftwing.drafters.sampled import Sampled
from draftwing.drafters.small_model import SmallModel, load_small_model
from draftwing.drafters.tree import kept, with_ancestors
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.errors import ConfigError

CHUNK = 256  # rows of one sequence caught up in one forward


@dataclass(slots=True)
class State:
    """What the drafter keeps of a sequence. kv_len: committed tokens in its pages.

    filled: its first blocks, full of such rows and noted as filled. chained: nodes of the last draft whose rows follow
    the committed ones in the pages (a chain's all but the last).
    """

    sampled: Sampled
    kv_len: int = 0
    filled: int = 0
    chained: int = 0


@dataclass(slots=True)
class Growing:
    """A draft while it grows. tokens: prompt, output and hypothetical base, the root last. last: it grows no more."""

    sequence: SequenceView
    state: State
    tokens: list[int]
    slots: IntArray
    growth: Growth
    last: bool = False


class ModelDrafter:
    """Method `draft_model`."""

    def __init__(self, options: DraftModelOptions) -> None:
        self._options = options
        self._traits = DrafterTraits(stop="incremental", trees=True, confidence=True)
        self._states: dict[str, State] = {}
        self._filled = FilledBlocks()
        self._block_tokens = 1
        self._model: SmallModel
        self._target: TargetInfo
        self.caught_up = 0  # rows run for tokens that were committed while it did not draft, prompts included

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        self._target = target
        self._model = load_small_model(self._options.path, self._options.revision, self._options.dtype, target)
        if self._model.context < target.context_length:
            raise ConfigError(
                f"draft model {self._options.path} takes {self._model.context} tokens, fewer than the target's "
                f"{target.context_length}; set limits.context to at most {self._model.context}"
            )
        self._traits = DrafterTraits(
            stop="incremental", trees=True, confidence=True, kv_bytes_per_token=self._model.kv_bytes_per_token
        )

    def reserve(self, blocks: int, block_tokens: int) -> None:
        self._model.allocate(blocks, block_tokens)
        self._block_tokens = block_tokens

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        pass

    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        bases = [()] * len(sequences) if base is None else base
        drafts: list[Growing | None] = [
            self._start(sequence, shape, more) if shape.nodes and shape.depth else None
            for sequence, shape, more in zip(sequences, plan.shapes, bases, strict=True)
        ]
        trees = level_by_level(drafts, controller, self._grow)
        for sequence, draft in zip(sequences, drafts, strict=True):
            if draft is not None:
                chain = max(draft.growth.shape.branching) == 1
                draft.state.chained = max(draft.growth.size - 1, 0) if chain and base is None else 0
                draft.state.kv_len = min(draft.state.kv_len, len(sequence.tokens))
        return trees

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        """A chain's accepted rows stay where they are; a tree's are run again, in order, with the next draft."""
        for sequence, outcome in zip(sequences, accepted, strict=True):
            if (state := self._states.get(sequence.id)) is not None:
                state.kv_len = min(state.kv_len + min(state.chained, len(outcome.nodes)), len(sequence.tokens) - 1)
                state.chained = 0
                self._note(sequence, state)

    def release(self, sequence: SequenceView) -> None:
        self._states.pop(sequence.id, None)

    def _start(self, sequence: SequenceView, shape: DraftShape, base: Seq[int]) -> Growing | None:
        """None where the sequence's blocks have no room for the draft."""
        tokens = [*sequence.tokens, *base]
        slots = self._model.slots(sequence.table)
        if len(slots) < len(tokens) + shape.nodes:
            return None
        state = self._states.get(sequence.id)
        if state is None:
            state = self._states[sequence.id] = State(Sampled.of(sequence, self._target.eos_token_ids))
        state.kv_len = min(state.kv_len, len(sequence.tokens) - 1)  # asked again without a commit
        self._skip(sequence, state)
        first = state.kv_len // self._block_tokens
        self._filled.spoil(self._filled.holes(sequence.table[first:], sequence.chain[first:]))
        state.sampled.follow(sequence)
        return Growing(sequence, state, tokens, slots, Growth(shape))

    def _skip(self, sequence: SequenceView, state: State) -> None:
        """Go on behind what another sequence has filled, but for the root, whose row is always run."""
        found = self._filled.run(sequence.table, sequence.chain, state.kv_len // self._block_tokens)
        found = min(found, (len(sequence.tokens) - 1) // self._block_tokens)
        if found * self._block_tokens > state.kv_len:
            state.kv_len, state.filled = found * self._block_tokens, found

    def _note(self, sequence: SequenceView, state: State) -> None:
        """Its full blocks are filled."""
        whole = min(state.kv_len, len(sequence.tokens)) // self._block_tokens
        self._filled.fill(sequence.table, sequence.chain, state.filled, whole)
        state.filled = whole

    def _grow(self, level: list[Growing], depth: int) -> None:
        """One level deeper: run what the frontier needs, and give each of its nodes its children."""
        logits = self._model.forward(self._catch_up(level) if depth == 0 else [_frontier_rows(d) for d in level])
        growths = [draft.growth for draft in level]
        rows = level_rows(growths, [d.state.sampled.state for d in level], [len(d.tokens) for d in level])
        vocabulary = self._target.vocab_size
        found = children(logits[:, :vocabulary], rows, most_children(growths), sources=self._target.rejection)
        share(growths, found, vocabulary)
        for draft in level:
            draft.last = draft.growth.ended

    def _catch_up(self, level: list[Growing]) -> list[SequenceRows]:
        """Run all but the last rows up to each root; the rows that are left, which end with the root.

        Rows that several lack in one block are run by the first of them, and the others go on behind it; as all do
        behind a block that another has filled.
        """
        while parts := self._early(level):
            self._model.forward([self._committed(draft, count, wanted=0) for draft, count in parts])
            for draft, _ in parts:
                self._note(draft.sequence, draft.state)
            for draft in level:
                self._skip(draft.sequence, draft.state)
        return [self._committed(draft, len(draft.tokens) - draft.state.kv_len, wanted=1) for draft in level]

    def _early(self, level: list[Growing]) -> list[tuple[Growing, int]]:
        """Who has rows to run before those that end with the root, and how many: long runs, and blocks others need."""
        size = self._block_tokens
        needs = [self._need(draft) for draft in level]
        askers = Counter(block for need, _ in needs for block in need)
        parts: list[tuple[Growing, int]] = []
        taken: set[int] = set()
        for draft, (need, whole) in zip(level, needs, strict=True):
            mine = need[: next((i for i, block in enumerate(need) if block in taken), len(need))]
            shared = max((i for i, block in enumerate(mine, 1) if askers[block] > 1), default=0)
            if mine == need and not whole:
                shared = len(need)
            start, root = draft.state.kv_len, len(draft.tokens) - 1
            far = root if mine == need and root - start >= CHUNK else start
            stop = min((start // size + shared) * size if shared else far, root, start + CHUNK)
            if stop > start:
                parts.append((draft, stop - start))
                taken |= set(mine[:shared])
        return parts

    def _need(self, draft: Growing) -> tuple[list[int], bool]:
        """Blocks that the draft is to fill up to its root, or before one that is filled; whether that is the root's."""
        size = self._block_tokens
        part = slice(draft.state.kv_len // size, -(-len(draft.tokens) // size))
        table = draft.sequence.table[part]
        holes = set(self._filled.holes(table, draft.sequence.chain[part]))
        need = list(takewhile(holes.__contains__, table))
        return need, len(need) == len(table)

    def _committed(self, draft: Growing, count: int, wanted: int) -> SequenceRows:
        start = draft.state.kv_len
        draft.state.kv_len = start + count
        self.caught_up += count - wanted
        tokens = np.array(draft.tokens[start : start + count], dtype=np.int64)
        return SequenceRows(tokens, chain_parents(count), draft.slots[: start + count], start, wanted)


def _frontier_rows(draft: Growing) -> SequenceRows:
    """A chain runs its newest node, a tree all above its frontier too: only rows of one forward can be told apart."""
    context, tree = len(draft.tokens), draft.growth.tree()
    if max(draft.growth.shape.branching) == 1:
        at = context + len(tree) - 1
        return SequenceRows(tree.tokens[-1:], chain_parents(1), draft.slots[: at + 1], at, 1)
    tree = kept(tree, with_ancestors(tree.parents, draft.growth.frontier))
    slots = draft.slots[: context + len(tree)]
    return SequenceRows(tree.tokens, tree.parents, slots, context, len(draft.growth.frontier))
