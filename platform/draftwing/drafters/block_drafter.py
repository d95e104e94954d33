"""Methods `dflash`, `dflash2` and `dspark`: one pass drafts a whole block from the target's hidden states.

Slot t of the drafter's pages holds the context keys and values of the target's feature at t, in blocks parallel to the
target's. Features are kept as they come and written with the next draft, or when a sequence has many; a gap before
them is a hole: the context begins after it. A block's own rows lie in scratch slots that nothing else reads. The anchor
is the root, whose feature isn't known yet; the block is as long as it was trained, and a plan's depth cuts what it
predicts.

Shapes: G blocks of a pass, D depths, M nodes of a level, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from draftwing.core import DraftShape, DraftTree, FloatArray, IntArray, StepPlan
from draftwing.drafters.base import (
    ALONE,
    AS_PUBLISHED,
    Accepted,
    CheckpointReader,
    Controller,
    DrafterTraits,
    FeatureRows,
    LayerOptions,
    Mesh,
    SequenceView,
    TargetInfo,
)
from draftwing.drafters.block_backbone import BlockPlace, Pages
from draftwing.drafters.block_model import BlockModel
from draftwing.drafters.children import Children, children
from draftwing.drafters.dynamic_growth import DynamicGrowth
from draftwing.drafters.filled_blocks import FilledBlocks
from draftwing.drafters.growth import Growth, level_rows, most_children, owners, share
from draftwing.drafters.sampled import Sampled
from draftwing.engine.processors import SampleRows, SamplerState, edited
from draftwing.errors import ConfigError
from draftwing.kernels.speedup import speed_up

PENDING = 256  # feature rows of one sequence that wait for the next draft at most
TOGETHER = 64  # blocks of one pass at most


@dataclass(slots=True)
class State:
    """What the drafter keeps of a sequence. Its pages hold positions `first` to `end`, and `pending` [rows, n * H] the
    features that follow.
    """

    sampled: Sampled
    first: int = 0
    end: int = 0
    pending: list[Tensor] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return sum(len(rows) for rows in self.pending)


@dataclass(slots=True)
class Growing:
    """A draft while it grows. length: tokens of the sequence and its hypothetical base, whose last is the root.

    growth: the likeliest nodes of all, or, for the rules of rejection, nodes level by level with what they were drawn
    from: there, what is verified must not depend on what was drawn.
    """

    sampler: SamplerState
    root: int
    length: int
    place: BlockPlace
    growth: DynamicGrowth | Growth


class BlockDrafter:
    """confidence_threshold: nodes that are predicted to be accepted less often are not drafted. layers: which hidden
    states it takes, where that isn't left to the checkpoint.

    caught_up: feature rows written. holes: positions whose features never came, and so are no context.
    """

    def __init__(self, method: str, confidence_threshold: float = 0.0, layers: LayerOptions = AS_PUBLISHED) -> None:
        self._method, self._layers = method, layers
        self._threshold = confidence_threshold
        self._traits = DrafterTraits(stop="block", trees=True, confidence=True)
        self._states: dict[str, State] = {}
        self._filled = FilledBlocks()
        self._block_tokens = 1
        self._scratch = 0
        self._pages: Pages = []
        self._model: BlockModel
        self._target: TargetInfo
        self.caught_up = 0
        self.holes = 0

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        if checkpoint is None:
            raise ConfigError(f"method {self._method} needs a checkpoint; set path to a folder or hub id")
        self._target = target
        self._model = model = BlockModel(self._method, target, checkpoint, self._layers)
        if self._threshold and not model.predicts_confidence:
            raise ConfigError(
                f"confidence_threshold is {self._threshold}, but the checkpoint has no confidence head; expected 0"
            )
        speed_up(model.backbone, compile_kernel=target.compile)
        self._traits = DrafterTraits(
            kind="feature",
            stop="block",
            hidden_layers=model.config.hidden_layers,
            kv_bytes_per_token=model.backbone.kv_size * model.dtype.itemsize,
            max_depth=model.config.depth,
            trees=True,
            confidence=True,
        )

    def reserve(self, blocks: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._scratch = blocks * block_tokens
        self._pages = self._model.backbone.pages(self._scratch + TOGETHER * self._model.config.block_size)

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        if features is not None:
            self._keep(sequences, features)

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        if features is not None:
            self._keep(sequences, features)

    def release(self, sequence: SequenceView) -> None:
        self._states.pop(sequence.id, None)

    @torch.inference_mode()
    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        bases = [()] * len(sequences) if base is None else base
        wanted = [i for i, s in enumerate(sequences) if plan.shapes[i].nodes and self._ready(s)]
        self._write([sequences[i] for i in wanted])
        trees = [DraftTree.empty()] * len(sequences)
        for start in range(0, len(wanted), TOGETHER):
            part = wanted[start : start + TOGETHER]
            drafts = [self._start(sequences[i], bases[i], plan.shapes[i], place) for place, i in enumerate(part)]
            self._grow(drafts)
            for i, draft in zip(part, drafts, strict=True):
                trees[i] = draft.growth.tree()
        return trees

    @torch.inference_mode()
    def _keep(self, sequences: Seq[SequenceView], features: Seq[FeatureRows]) -> None:
        """Take over new feature rows; whatever is far behind is written now."""
        many = []
        for sequence, rows in zip(sequences, features, strict=True):
            state = self._states.get(sequence.id) or self._begin(sequence)
            known = state.end + state.waiting
            start, hidden = rows.start, torch.cat(rows.hidden, -1)
            if start > known:
                self.holes += start - known
                state.first = state.end = known = start
                state.pending.clear()
            if len(fresh := hidden[known - start :]):
                state.pending.append(fresh)
            if state.waiting >= PENDING:
                many.append(sequence)
        self._write(many)

    def _begin(self, sequence: SequenceView) -> State:
        """A sequence whose first blocks another has filled has them as context."""
        found = self._filled.run(sequence.table, sequence.chain)
        state = State(Sampled.of(sequence, self._target.eos_token_ids), end=found * self._block_tokens)
        self._states[sequence.id] = state
        return state

    def _ready(self, sequence: SequenceView) -> bool:
        """Whether the features of all tokens but the root are there, and are any."""
        state = self._states.get(sequence.id)
        return state is not None and state.first < state.end + state.waiting == len(sequence.tokens) - 1

    def _write(self, sequences: Seq[SequenceView]) -> None:
        """All pending rows of these sequences go to the pages, in one pass."""
        parts, positions, slots = [], [], []
        for sequence in sequences:
            state = self._states[sequence.id]
            if not state.pending:
                continue
            stop = state.end + state.waiting
            where = np.arange(state.end, stop)
            self._filled.spoil(sequence.table[state.end // self._block_tokens : -(-stop // self._block_tokens)])
            parts += state.pending
            positions.append(where)
            slots.append(self._slots(sequence, where))
        if not parts:
            return
        features = torch.cat(parts).to(self._model.dtype)
        self._model.backbone.write(features, np.concatenate(positions), np.concatenate(slots), self._pages)
        self.caught_up += len(features)
        for sequence in sequences:
            state = self._states[sequence.id]
            begun = max(state.end // self._block_tokens, -(-state.first // self._block_tokens))
            state.end += state.waiting
            state.pending.clear()
            self._filled.fill(sequence.table, sequence.chain, begun, state.end // self._block_tokens)

    def _slots(self, sequence: SequenceView, positions: IntArray) -> IntArray:
        table = np.asarray(sequence.table, dtype=np.int64)
        return table[positions // self._block_tokens] * self._block_tokens + positions % self._block_tokens

    def _start(self, sequence: SequenceView, base: Seq[int], shape: DraftShape, place: int) -> Growing:
        state, size = self._states[sequence.id], self._model.config.block_size
        length = len(sequence.tokens) + len(base)
        context = self._slots(sequence, np.arange(state.first, state.end))
        scratch = self._scratch + place * size + np.arange(size)
        root = base[-1] if base else sequence.tokens[-1]
        shape = shape.cut(self._model.config.depth, shape.nodes)
        located = BlockPlace(length - 1, state.first, context, scratch)
        growth = Growth(shape) if self._target.rejection else DynamicGrowth(shape, widest=shape.nodes)
        return Growing(state.sampled.follow(sequence), root, length, located, growth)

    def _grow(self, drafts: Seq[Growing]) -> None:
        roots = np.array([draft.root for draft in drafts], dtype=np.int64)
        depth = max(draft.growth.shape.depth for draft in drafts)
        hidden = self._model.hidden(roots, [draft.place for draft in drafts], self._pages)[:, :depth]
        logits = self._model.logits(hidden)
        for level in range(depth):
            growing = [i for i, d in enumerate(drafts) if len(d.growth.frontier) and level < d.growth.shape.depth]
            if growing:
                self._level([drafts[i] for i in growing], np.array(growing), level, hidden, logits)

    def _level(self, drafts: Seq[Growing], blocks: IntArray, level: int, hidden: Tensor, logits: Tensor) -> None:
        """Give every frontier node of these drafts, whose blocks are given, its children."""
        growths = [draft.growth for draft in drafts]
        owner = owners(growths)
        roots = np.array([draft.root for draft in drafts], dtype=np.int64)[owner]
        drafted = np.concatenate([growth.paths for growth in growths])
        block = torch.from_numpy(blocks[owner]).to(hidden.device)
        path = torch.from_numpy(np.concatenate([roots[:, None], drafted], 1)).to(hidden.device)
        rows = hidden[block, : level + 1]
        sample_rows = level_rows(growths, [draft.sampler for draft in drafts], [draft.length for draft in drafts])
        found = self._children(logits[:, level], block, rows, path, sample_rows, most_children(growths))
        predicted = self._model.confidence(rows, path)
        sure = found.confidences
        if predicted is not None:
            sure = predicted_shares(sure, predicted.cpu().numpy(), self._threshold)
        # What has no probability is no child: ids beyond the vocabulary are left out.
        tokens = np.where(sure > 0, found.tokens, self._target.vocab_size)
        share(growths, Children(tokens, sure, found.sources), self._target.vocab_size)

    def _children(
        self, logits: Tensor, block: Tensor, rows: Tensor, path: Tensor, sampled: SampleRows, width: int
    ) -> Children:
        """Of the frontier's nodes: logits [G, V], block [M]. Where a row alone decides, its nodes have the same."""
        sources = self._target.rejection
        if self._model.alone and not edited(sampled):
            first = np.unique(sampled.seq_of_row, return_index=True)[1]
            once = torch.from_numpy(first).to(block.device)
            values = self._model.children(logits[block[once]], rows[once], path[once])
            return children(values, sampled.take(first), width, sources=sources).take(sampled.seq_of_row)
        return children(self._model.children(logits[block], rows, path), sampled, width, sources=sources)


def predicted_shares(shares: FloatArray, predicted: FloatArray, threshold: float) -> FloatArray:
    """Confidences of children [M, W] where the first's is predicted [M]: the others share what it leaves.

    shares: the drafter's own probabilities. Below the threshold there are none.
    """
    left = (1 - predicted) / np.maximum(1 - shares[:, 0], 1e-6)
    confident = np.concatenate([predicted[:, None], shares[:, 1:] * left[:, None]], axis=1)
    return np.where(predicted[:, None] < threshold, 0, confident).astype(np.float32)
