"""What drafting costs outside of the network: CPU milliseconds per depth, one thread, the least of all rounds.

Networks are stood in for by stored logits whose look-up is timed and taken off, as forwards and head products would be;
all else is the drafter's own code: catching up, attention's layout, choosing children, growing trees. Lookup methods
have no network; theirs is the whole call. A batch of 8 drafts 4 deep, every method takes its turn in each round.

usage: python benchmarks/draft_overhead.py [--vocab 32000 128256 262144] [--context 512] [--rounds 15] [--json]
Exit code 1: over 1 ms a depth with a draft vocabulary up to 32,768.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwing.core import DraftShape, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, Drafter, FeatureRows, NullController, TargetInfo
from draftwing.drafters.block_drafter import BlockDrafter
from draftwing.drafters.draft_model import DraftModelOptions
from draftwing.drafters.feature_drafter import FeatureDrafter
from draftwing.drafters.lookahead import LookaheadDrafter
from draftwing.drafters.medusa import MedusaOptions
from draftwing.drafters.medusa_drafter import MedusaDrafter
from draftwing.drafters.model_drafter import ModelDrafter
from draftwing.drafters.ngram import NgramDrafter
from draftwing.drafters.suffix import SuffixDrafter
from draftwing.engine.attention import KVShape
from draftwing.testing.drafters import View

BOUND_MS, BOUND_VOCAB = 1.0, 32_768
BATCH, DEPTH, BLOCK_TOKENS, HIDDEN = 8, 4, 16, 64
SHAPES = {"chain": (1,) * DEPTH, "tree": (4, 2, 1, 1)}
TARGET_VOCAB = 128_256  # of a target whose head drafts 32,000 of its tokens


@dataclass(slots=True)
class Stub:
    """Stored logits [rows, V] in the place of a network. spent: seconds that it took."""

    logits: Tensor
    spent: float = 0.0
    at: int = 0

    @classmethod
    def of(cls, vocab: int) -> Stub:
        # Like a language model's: some tokens stand out of a broad mass.
        draw = torch.Generator().manual_seed(0)
        return cls(torch.randn(64, vocab, generator=draw) * 2 + 6 * torch.rand(64, vocab, generator=draw) ** 40)

    def rows(self, count: int) -> Tensor:
        started = thread_time()
        self.at = (self.at + 1) % (len(self.logits) - 1)
        found = self.logits[torch.arange(self.at, self.at + count) % len(self.logits)]
        self.spent += thread_time() - started
        return found


class StubHead:
    """A `Head` without a network. target_ids: those of a draft vocabulary smaller than the target's."""

    hidden_layers, hidden_size, width, dtype, device = (1,), HIDDEN, HIDDEN, torch.float32, torch.device("cpu")
    kv = [KVShape(1, 8, 8)]  # noqa: RUF012

    def __init__(self, stub: Stub, target_vocab: int) -> None:
        self.stub = stub
        size = stub.logits.shape[1]
        self.target_ids = None if size == target_vocab else torch.randperm(target_vocab)[:size].sort().values

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        return features[0]

    def forward(self, rows: Any, hidden: Tensor) -> Tensor:
        return hidden

    def logits(self, recycled: Tensor) -> Tensor:
        return self.stub.rows(len(recycled))


@dataclass(slots=True)
class Subject:
    """A drafter with a batch of sequences that it knows."""

    name: str
    drafter: Drafter
    views: Sequence[View]
    shape: DraftShape
    stub: Stub | None = None
    vocab: int = 0
    best: float = field(default=np.inf)

    def measure(self) -> None:
        plan = StepPlan("it", (self.shape,) * len(self.views))
        before = 0.0 if self.stub is None else self.stub.spent
        started = thread_time()
        drafts = self.drafter.propose(self.views, plan, NullController())
        spent = thread_time() - started - (0.0 if self.stub is None else self.stub.spent - before)
        assert len(drafts) == len(self.views)
        self.best = min(self.best, 1e3 * spent / DEPTH)


def views(vocab: int, context: int, temperature: float) -> list[View]:
    draw = np.random.default_rng(0)
    phrase = draw.integers(0, vocab, 40)
    found = []
    for i in range(BATCH):
        tokens = np.concatenate([phrase[: 8 + i], draw.integers(0, vocab, context), phrase[: 4 + i]]).tolist()
        blocks = -(-(len(tokens) + 64) // BLOCK_TOKENS)
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=256)
        found.append(View(str(i), tokens, context // 2, params, table=list(range(i * blocks, (i + 1) * blocks))))
    return found


def subjects(vocab: int, context: int, temperature: float) -> list[Subject]:
    """Every method with stored logits of this width."""
    target_vocab = max(vocab, TARGET_VOCAB) if vocab <= BOUND_VOCAB else vocab
    stub, made = Stub.of(vocab), []

    def add(name: str, drafter: Drafter, shape: str, known: int, own: Stub | None = stub) -> None:
        batch = views(known, context, temperature)
        drafter.reserve(BATCH * len(batch[-1].table) + 1, BLOCK_TOKENS)
        features = [FeatureRows(0, (torch.zeros(len(v.tokens) - 1, HIDDEN),)) for v in batch]
        drafter.prefill(batch, features)
        tree = DraftShape(SHAPES[shape], 16 if shape == "tree" else DEPTH)
        made.append(Subject(f"{name} {shape}", drafter, batch, tree, own, vocab))

    for shape in SHAPES:
        for name, dynamic in (("eagle3", False), ("eagle2", True)):
            drafter = FeatureDrafter()
            drafter.ready(StubHead(stub, target_vocab), TargetInfo(target_vocab, 4096), dynamic=dynamic)
            add(name, drafter, shape, target_vocab)
        add("draft_model", stub_model(stub, vocab), shape, vocab)
        add("medusa", stub_medusa(stub, vocab), shape, vocab)
        add("dflash", stub_block(stub, vocab), shape, vocab)
    return made


def stub_model(stub: Stub, vocab: int) -> ModelDrafter:
    class Model:
        kv_bytes_per_token = 1

        def allocate(self, blocks: int, block_tokens: int) -> None:
            self.tokens = block_tokens

        def slots(self, table: Sequence[int]) -> Any:
            return (np.array(table)[:, None] * self.tokens + np.arange(self.tokens)).reshape(-1)

        def forward(self, rows: Any) -> Tensor:
            return stub.rows(sum(r.wanted for r in rows))

    drafter = ModelDrafter(DraftModelOptions(path="stub"))
    drafter._model, drafter._target = Model(), TargetInfo(vocab, 4096)  # type: ignore[assignment]
    return drafter


def stub_medusa(stub: Stub, vocab: int) -> MedusaDrafter:
    class Heads:
        heads, token_map = (None,) * DEPTH, None

        def logits(self, hidden: Tensor, heads: Tensor) -> Tensor:
            return stub.rows(len(hidden))

    drafter = MedusaDrafter(MedusaOptions())
    drafter._heads, drafter._target = Heads(), TargetInfo(vocab, 4096)  # type: ignore[assignment]
    drafter.traits = type(drafter.traits)(kind="feature", hidden_layers=(1,), max_depth=DEPTH, trees=True)
    return drafter


def stub_block(stub: Stub, vocab: int) -> BlockDrafter:
    class Backbone:
        def pages(self, slots: int) -> list[Any]:
            return []

        def write(self, *args: Any) -> None:
            pass

    class Config:
        block_size, depth = DEPTH + 1, DEPTH

    class Model:
        backbone, config, dtype, alone = Backbone(), Config(), torch.float32, True

        def hidden(self, anchors: Any, places: Any, pages: Any) -> Tensor:
            return torch.zeros(len(anchors), DEPTH, HIDDEN)

        def logits(self, hidden: Tensor) -> Tensor:
            return stub.rows(hidden.shape[0] * hidden.shape[1]).view(*hidden.shape[:2], -1)

        def children(self, logits: Tensor, hidden: Tensor, path: Tensor) -> Tensor:
            return logits

        def confidence(self, hidden: Tensor, path: Tensor) -> None:
            return None

    drafter = BlockDrafter("dflash")
    drafter._model, drafter._target = Model(), TargetInfo(vocab, 4096)  # type: ignore[assignment]
    return drafter


def lookups(context: int, temperature: float) -> list[Subject]:
    made = []
    makers: dict[str, Callable[[], Drafter]] = {
        "ngram": NgramDrafter,
        "suffix": SuffixDrafter,
        "lookahead": LookaheadDrafter,
    }
    for shape, branching in SHAPES.items():
        for name, make in makers.items():
            drafter, batch = make(), views(TARGET_VOCAB, context, temperature)
            drafter.bind(TargetInfo(TARGET_VOCAB, 4096))
            drafter.reserve(1, BLOCK_TOKENS)
            drafter.prefill(batch)
            drafter.commit(batch, [Accepted(np.empty(0, dtype=np.int64), 1)] * BATCH)
            nodes = 16 if shape == "tree" else DEPTH
            made.append(Subject(f"{name} {shape}", drafter, batch, DraftShape(branching, nodes)))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 128_256, 262_144])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: list[dict[str, Any]] = []
    for vocab in (0, *args.vocab):
        both = {}
        for temperature in (0.0, 1.0):
            made = subjects(vocab, args.context, temperature) if vocab else lookups(args.context, temperature)
            for _ in range(args.rounds):
                for subject in made:
                    subject.measure()
            both[temperature] = made
        for cold, warm in zip(*both.values(), strict=True):
            times = {"greedy_ms": round(cold.best, 3), "sampled_ms": round(warm.best, 3)}
            table.append({"method": cold.name, "vocab": vocab} | times)
    worst = max(max(row["greedy_ms"], row["sampled_ms"]) for row in table if row["vocab"] <= BOUND_VOCAB)
    if args.json:
        print(json.dumps({"schema": 1, "bound_ms": BOUND_MS, "worst_ms": worst, "rows": table}))
    else:
        print(f"{'method':20}{'vocabulary':>12}{'greedy':>10}{'sampled':>10}   CPU ms per depth, batch {BATCH}")
        for row in table:
            print(f"{row['method']:20}{row['vocab'] or '':>12}{row['greedy_ms']:10.3f}{row['sampled_ms']:10.3f}")
        print(f"worst up to a vocabulary of {BOUND_VOCAB}: {worst:.3f}, bound {BOUND_MS}")
    return int(worst > BOUND_MS)


if __name__ == "__main__":
    sys.exit(main())
