"""The loop of drafters that recycle their own hidden state: EAGLE in all its versions, and MTP modules.

Such a drafter is a small head over the target's hidden states. Slot t of its pages, which lie parallel to the target's,
holds the pair (token t, feature t - 1), so that it depends on tokens up to t alone and a shared block stays valid. The
last pair, that of the root, gives the first draft token; deeper ones are paired with what the head itself gave out.
Rows of a draft are never kept: the next step runs accepted tokens again, with their true features.

A head of several modules in a row (MTP) gives out several states a row, and a committed row takes its feature beside
those that the slot before handed on, all but the last.

Shapes: B sequences of a call, N rows of a forward, M frontier nodes, H hidden size of the head, W width of what a row
takes and gives out (H for one module), V vocabulary of the target, V_d of the head.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import Accepted, Controller, DrafterTraits, FeatureRows, SequenceView, TargetInfo
from draftwing.drafters.children import children
from draftwing.drafters.dynamic_growth import DynamicGrowth
from draftwing.drafters.filled_blocks import FilledBlocks
from draftwing.drafters.growth import Growth, level_by_level, level_rows, most_children, share
from draftwing.drafters.sampled import Sampled
from draftwing.engine import attention
from draftwing.engine.attention import AttentionContext, KVShape
from draftwing.engine.batch import SequenceRows, build, chain_parents
from draftwing.engine.processors import SamplerState
from draftwing.engine.runner import kv_bytes_per_slot

LAG = 512  # rows of one sequence that wait for the next draft before they are run anyway
SCRATCH = 4096  # rows of drafts in one forward, over all sequences


@dataclass(frozen=True, slots=True)
class HeadRows:
    """The rows of one forward, all committed or all drafted.

    tokens, positions [N]. depths [N]: how far a drafted row lies below the root, 0 for committed ones. before [N]: the
    row with the token before a committed one, -1 where none is in this forward.
    """

    tokens: Tensor
    positions: Tensor
    depths: Tensor
    before: Tensor
    drafted: bool
    ctx: AttentionContext


class Head(Protocol):
    """What a method brings. hidden_layers: see `DrafterTraits`. kv: its attention layers, in order of `layer_idx`.

    hidden_size: H. width: W. target_ids [V_d]: the target's id of each column of `logits`, None where it is the same.
    """

    hidden_layers: tuple[int, ...]
    hidden_size: int
    width: int
    kv: list[KVShape]
    dtype: torch.dtype
    device: torch.device
    target_ids: Tensor | None

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        """[N, H of the target] each -> [N, H]"""
        ...

    def forward(self, rows: HeadRows, hidden: Tensor) -> Tensor:
        """hidden [N, W] -> what is recycled [N, W]"""
        ...

    def logits(self, recycled: Tensor) -> Tensor:
        """[M, W] -> [M, V_d]"""
        ...


@dataclass(slots=True)
class State:
    """What the drafter keeps of a sequence. next: first slot not run yet. first: first slot that was ever run, 1 where
    nothing is missing. handed [W - H]: what slot next - 1 handed on. pending: features from index next - 1 on.
    recycled [W]: what the newest slot gave out."""

    next: int
    first: int
    handed: Tensor
    pending: list[Tensor] = field(default_factory=list)
    recycled: Tensor | None = None
    filled: int = 0
    sampled: Sampled | None = None

    @property
    def waiting(self) -> int:
        return sum(len(part) for part in self.pending)

    @property
    def known(self) -> int:
        """Features so far, from index 0 on, holes included."""
        return self.next - 1 + self.waiting


@dataclass(slots=True)
class Growing:
    """A draft while it grows, after `length` tokens, the last of them hypothetical ones in base.

    run_*: nodes that went or go through the head, those of base first.

    hidden [M, W]: what the frontier gave out, the root's or the last base token's at first. kept: slots of a chain's
    rows, which stay in scratch pages from level to level; None: the draft runs whole in each.
    """

    state: State
    sampler: SamplerState
    length: int
    base: Seq[int]
    slots: IntArray
    growth: Growth | DynamicGrowth
    hidden: Tensor
    last: bool = False
    kept: IntArray | None = None
    run_tokens: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    run_parents: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    run_hidden: list[Tensor] = field(default_factory=list)

    def add_run(self, tokens: IntArray, parents: IntArray, hidden: Tensor) -> None:
        self.run_tokens = np.concatenate([self.run_tokens, tokens])
        self.run_parents = np.concatenate([self.run_parents, parents])
        self.run_hidden.append(hidden)


class FeatureDrafter:
    """Drafts with a head. Subclasses set `head` and `dynamic` (trees by confidence) in `bind` and call `ready`."""

    head: Head
    traits: DrafterTraits

    def ready(self, head: Head, target: TargetInfo, *, dynamic: bool, max_depth: int = 64) -> None:
        self.head = head
        self._target = target
        # Whether a node is verified must not depend on what was drawn where drafts are accepted by rejection.
        self._dynamic = dynamic and not target.rejection
        self._states: dict[str, State] = {}
        self._filled = FilledBlocks()
        self._kept = 0  # scratch slots of the chains of a call
        self.caught_up = 0  # rows run for committed tokens, prompts included
        self.holes = 0  # sequences whose beginning the drafter never saw
        self._handed = head.width - head.hidden_size
        edge = head.width * head.dtype.itemsize // 8  # each block's last feature, see `reserve`
        self.traits = DrafterTraits(
            kind="feature",
            stop="incremental",
            hidden_layers=head.hidden_layers,
            kv_bytes_per_token=kv_bytes_per_slot(head.kv, head.dtype) + edge,
            max_depth=max_depth,
            trees=True,
            confidence=True,
        )

    def reserve(self, blocks: int, block_tokens: int) -> None:
        head, self._block_tokens, self._scratch = self.head, block_tokens, blocks * block_tokens
        slots = self._scratch + SCRATCH
        self._pages = [
            tuple(
                torch.zeros(slots, shape.heads, size, device=head.device, dtype=head.dtype)
                for size in (shape.key_size, shape.value_size)
            )
            for shape in head.kv
        ]
        self._edges = torch.zeros(blocks, head.width, device=head.device, dtype=head.dtype)

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        self._take(sequences, features)

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        self._take(sequences, features)

    def release(self, sequence: SequenceView) -> None:
        self._states.pop(sequence.id, None)

    @torch.inference_mode()
    def propose(
        self, sequences: Seq[SequenceView], plan: StepPlan, controller: Controller, base: Seq[Seq[int]] | None = None
    ) -> list[DraftTree]:
        wanted = [s for s, shape in zip(sequences, plan.shapes, strict=True) if shape.nodes and shape.depth]
        self._extend([s for s in {s.id: s for s in wanted}.values() if s.id in self._states])
        bases = [()] * len(sequences) if base is None else base
        drafts = [self._start(s, shape, more) for s, shape, more in zip(sequences, plan.shapes, bases, strict=True)]
        live = [draft for draft in drafts if draft is not None]
        self._keep_chains(live)
        self._run_bases(live)
        return level_by_level(drafts, controller, self._grow)

    @torch.inference_mode()
    def _take(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None) -> None:
        """Fuse the features of committed tokens and keep them until the next draft."""
        if not sequences or features is None:
            return
        parts = zip(*(rows.hidden for rows in features), strict=True)
        fused = self.head.fuse(tuple(torch.cat(part).to(self.head.dtype) for part in parts))
        split = torch.split(fused, [len(rows.hidden[0]) for rows in features])
        for sequence, rows, own in zip(sequences, features, split, strict=True):
            state = self._states.get(sequence.id)
            if state is None or state.known != rows.start:
                state = self._states[sequence.id] = self._begin(sequence, rows.start)
            state.pending.append(own[: max(len(sequence.tokens) - 1 - rows.start, 0)])
            state.recycled = None
            self._keep_edges(sequence, rows.start, own, slice(self.head.hidden_size))
        self._extend([s for s in sequences if self._states[s.id].waiting > LAG])

    def _begin(self, sequence: SequenceView, start: int) -> State:
        """A sequence whose first features are those of token `start`: what lies before is found in shared blocks, or
        stays a hole."""
        size = self._block_tokens
        found = self._filled.run(sequence.table, sequence.chain)
        if start and start % size == 0 and found * size >= start:
            edge = self._edges[sequence.table[start // size - 1]].clone()
            feature, handed = edge[None, : self.head.hidden_size], edge[self.head.hidden_size :]
            return State(next=start, first=1, handed=handed, pending=[feature], filled=start // size)
        self.holes += start > 0
        return State(next=start + 1, first=start + 1, handed=self._edges.new_zeros(self._handed))

    def _keep_edges(self, sequence: SequenceView, start: int, rows: Tensor, part: slice) -> None:
        """What the first slot after a prefix hit takes from each block's last token. rows: of tokens from start on."""
        size, stop = self._block_tokens, start + len(rows)
        for end in range((start // size + 1) * size, stop + 1, size):
            if end <= len(sequence.table) * size:
                self._edges[sequence.table[end // size - 1], part] = rows[end - 1 - start]

    def _slots(self, table: Seq[int]) -> IntArray:
        first = np.array(table, dtype=np.int64)[:, None] * self._block_tokens
        return (first + np.arange(self._block_tokens)).reshape(-1)

    def _extend(self, sequences: Seq[SequenceView]) -> None:
        """Run the pairs that wait, and note which blocks are full of such rows."""
        behind = [(s, self._states[s.id]) for s in sequences if self._states[s.id].waiting]
        if not behind:
            return
        rows, hidden = [], []
        for sequence, state in behind:
            count, slots = state.waiting, self._slots(sequence.table)
            self._filled.spoil(sequence.table[state.next // self._block_tokens :])
            tokens = np.array(sequence.tokens[state.next : state.next + count], dtype=np.int64)
            own = slots[state.first : state.next + count]
            rows.append(SequenceRows(tokens, chain_parents(count), own, state.next - state.first, count))
            hidden.append(pad(torch.cat(state.pending), (0, self._handed)))
            hidden[-1][0, self.head.hidden_size :] = state.handed
            self.caught_up += count - 1
        out = self._forward(rows, [state.first - 1 for _, state in behind], torch.cat(hidden))
        for (sequence, state), given in zip(behind, torch.split(out, [len(r.tokens) for r in rows]), strict=True):
            if self._handed:
                self._keep_edges(sequence, state.next, given[:, : self._handed], slice(self.head.hidden_size, None))
            state.next, state.pending, state.recycled = state.next + state.waiting, [], given[-1].clone()
            state.handed = state.recycled[: self._handed]
            whole = min(state.next, state.known) // self._block_tokens
            if state.first == 1:
                self._filled.fill(sequence.table, sequence.chain, state.filled, whole)
                state.filled = min(whole, len(sequence.chain))

    def _forward(
        self, rows: list[SequenceRows], shifts: list[int], hidden: Tensor, drafted_from: list[int] | None = None
    ) -> Tensor:
        """What the wanted rows give out, [M, W]. shifts: positions of each sequence that lie before its first slot.

        drafted_from: committed slots of each, where the rows are drafted.
        """
        batch = build(rows)
        counts = [len(r.tokens) for r in rows]
        positions = batch.positions + np.repeat(shifts, counts)
        depths = np.zeros_like(positions)
        if drafted_from is not None:
            depths = batch.positions + 1 - np.repeat(drafted_from, counts)
        begins = np.concatenate([r.parents for r in rows]) < 0
        before = np.where(begins, -1, np.arange(len(begins)) - 1)
        pages: Any = self._pages
        ctx = attention.prepare(batch, pages, self.head.device)
        tokens, where, deep, chain, wanted = (
            torch.from_numpy(x).to(self.head.device) for x in (batch.tokens, positions, depths, before, batch.wanted)
        )
        return self.head.forward(HeadRows(tokens, where, deep, chain, drafted_from is not None, ctx), hidden)[wanted]

    def _start(self, sequence: SequenceView, shape: DraftShape, base: Seq[int]) -> Growing | None:
        """None where nothing may be drafted, or the root's features never came."""
        state = self._states.get(sequence.id)
        if not shape.nodes or not shape.depth or state is None or state.recycled is None:
            return None
        if state.next != len(sequence.tokens):
            return None
        if state.sampled is None:
            state.sampled = Sampled.of(sequence, self._target.eos_token_ids)
        sampler = state.sampled.follow(sequence)
        growth = DynamicGrowth(shape) if self._dynamic else Growth(shape)
        length = len(sequence.tokens) + len(base)
        return Growing(state, sampler, length, base, self._slots(sequence.table), growth, state.recycled[None])

    def _run_bases(self, drafts: list[Growing]) -> None:
        """Hypothetical tokens have no features: they are paired with what the head gives out, one after another."""
        for step in range(max((len(draft.base) for draft in drafts), default=0)):
            going = [draft for draft in drafts if len(draft.base) > step]
            for draft in going:
                token, above = np.array([draft.base[step]], dtype=np.int64), np.array([step - 1], dtype=np.int64)
                draft.add_run(token, above, draft.hidden)
            self._run(going, [1] * len(going))

    def _keep_chains(self, drafts: list[Growing]) -> None:
        """Give chains slots of their own, as far as half of the scratch pages goes."""
        self._kept = 0
        for draft in drafts:
            if max(draft.growth.shape.branching) == 1:
                count = len(draft.base) + draft.growth.shape.depth
                if self._kept + count <= SCRATCH // 2:
                    draft.kept = np.arange(count) + self._scratch + self._kept
                    self._kept += count

    def _run(self, drafts: list[Growing], widths: list[int]) -> None:
        """Run the drafts' nodes and set `hidden` to what the newest `widths` of each give out.

        A tree runs whole, because only rows of one forward can be told apart; its rows lie in scratch pages. A chain
        runs its newest node.
        """
        at = self._kept
        group: list[tuple[Growing, int, IntArray]] = []
        for draft, width in zip(drafts, widths, strict=True):
            count = len(draft.run_tokens)
            if draft.kept is not None:
                group.append((draft, width, draft.kept[:count]))
                continue
            if at + count > SCRATCH:
                self._run_group(group)
                at, group = self._kept, []
            group.append((draft, width, np.arange(self._scratch + at, self._scratch + at + count)))
            at += count
        self._run_group(group)

    def _run_group(self, group: list[tuple[Growing, int, IntArray]]) -> None:
        if not group:
            return
        rows, hidden, committed = [], [], []
        for draft, width, scratch in group:
            context = draft.slots[draft.state.first : draft.state.next]
            slots = np.concatenate([context, scratch])
            whole = draft.kept is None
            tokens, parents = draft.run_tokens[-1:], chain_parents(1)
            if whole:
                tokens, parents = draft.run_tokens, draft.run_parents
            rows.append(SequenceRows(tokens, parents, slots, len(slots) - len(tokens), width))
            hidden += draft.run_hidden if whole else draft.run_hidden[-1:]
            committed.append(len(context))
        out = self._forward(rows, [draft.state.first - 1 for draft, _, _ in group], torch.cat(hidden), committed)
        for (draft, _, _), own in zip(group, torch.split(out, [width for _, width, _ in group]), strict=True):
            draft.hidden = own

    def _grow(self, level: list[Growing], depth: int) -> None:
        """One level deeper: run the frontier, and give each of its nodes its children."""
        growths = [draft.growth for draft in level]
        if depth:
            for draft in level:
                _queue_frontier(draft)
            self._run(level, [len(growth.frontier) for growth in growths])
        logits = self.head.logits(torch.cat([draft.hidden for draft in level]))
        rows = level_rows(growths, [draft.sampler for draft in level], [draft.length for draft in level])
        ids, vocabulary = self.head.target_ids, self._target.vocab_size
        found = children(logits, rows, most_children(growths), ids, vocabulary, sources=self._target.rejection)
        share(growths, found, vocabulary)
        for draft in level:
            draft.last = draft.growth.ended


def _queue_frontier(draft: Growing) -> None:
    """The newest nodes are to be run next, each paired with what its parent gave out."""
    above, given = draft.growth.above, draft.hidden
    parents = above + (len(draft.run_tokens) - len(given))
    if len(above) > 1 or len(given) > 1:
        given = given[torch.from_numpy(above).to(given.device)]
    draft.add_run(draft.growth.paths[:, -1], parents, given)
