"""Random traffic for an engine on the mock target, with an oracle for every token and every cached token."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from draftwing.core import IntArray, Request, SamplingParams
from draftwing.drafters.base import SequenceView
from draftwing.engine.batch import SequenceRows
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.sequence import Sequence
from draftwing.engine.step import Engine
from draftwing.testing.drafters import OracleDrafter
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.plain_loop import PlainOutput, plain_decode
from draftwing.testing.run_engine import Received, assert_idle, make_engine

VOCAB = 24
EOS = 0
SALTS = ("", "a", "b")


class WatchedTarget(MockTarget):
    """A target that notices writes into blocks that are shared, or could be."""

    pool: BlockPool

    def forward(self, sequences: Seq[SequenceRows]) -> Tensor:
        for sequence in sequences:
            self._check_blocks(sequence.slots[sequence.kv_len :])
        return super().forward(sequences)

    def move(self, source: IntArray, target: IntArray) -> None:
        self._check_blocks(target)
        super().move(source, target)

    def _check_blocks(self, slots: IntArray) -> None:
        self.pool.check_writable(np.unique(slots // self.pool.block_tokens).tolist())


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine and its traffic. blocks: of the cache. branching: of the drafts, () for none. load: arrivals a step."""

    seed: int
    blocks: int = 24
    block_tokens: int = 4
    sequences: int = 6
    batch_tokens: int = 64
    chunk: int = 16
    branching: tuple[int, ...] = (2, 2, 1)
    accuracy: float = 0.7
    load: float = 0.3
    cancel: float = 0.05


@dataclass(slots=True)
class Traffic:
    """Sends requests, cancels some, and checks whatever comes back."""

    setting: Setting
    engine: Engine = field(init=False)
    target: WatchedTarget = field(init=False)
    draw: np.random.Generator = field(init=False)
    live: dict[str, Request] = field(default_factory=dict)
    received: dict[str, Received] = field(default_factory=dict)
    finished: int = 0
    cancelled: int = 0
    texts: list[list[int]] = field(default_factory=list)  # what later prompts begin with
    ran: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)  # salt and every beginning that was run
    _plain: dict[str, PlainOutput] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.setting
        self.draw = np.random.default_rng(s.seed)
        behaviour = MockBehaviour(vocab_size=VOCAB, order=2, seed=s.seed, eos_id=EOS, eos_rate=0.02)
        self.target = WatchedTarget(behaviour, slots=s.blocks * s.block_tokens)
        self.engine = make_engine(
            self.target,
            drafter=OracleDrafter(self._rest, s.accuracy, s.seed),
            branching=s.branching,
            blocks=s.blocks,
            block_tokens=s.block_tokens,
            sequences=s.sequences,
            batch_tokens=s.batch_tokens,
            prefill_chunk=s.chunk,
            eos_token_ids=(EOS,),
        )
        self.target.pool = self.engine.pool
        self.texts = [self._tokens(20) for _ in range(3)]

    def run(self, steps: int) -> None:
        """That many steps with arrivals, then on until nothing is left."""
        for _ in range(steps):
            for _ in range(self.draw.poisson(self.setting.load)):
                self._arrive()
            if self.live and self.draw.random() < self.setting.cancel:
                self._cancel()
            self._step()
        for _ in range(10_000):
            if not self.engine.busy:
                break
            self._step()
        assert not self.live, f"{len(self.live)} requests never ended"
        assert_idle(self.engine)

    def _step(self) -> None:
        before = self._oldest()
        progress = 0 if before is None else before.kv_len + len(before.tokens)
        for emission in self.engine.step():
            received = self.received[emission.request_id]
            received.take(emission)
            if received.finish_reason is not None:
                self._end(emission.request_id)
        self.engine.check()
        if before is not None and before.id in self.live:
            assert before.kv_len + len(before.tokens) > progress, "the oldest request waits: others may starve it"

    def _oldest(self) -> Sequence | None:
        scheduler = self.engine.scheduler
        return min((*scheduler.running, *scheduler.waiting), key=lambda s: s.arrival, default=None)

    def _arrive(self) -> None:
        salt = str(self.draw.choice(SALTS, p=(0.6, 0.3, 0.1)))
        text = self.texts[self.draw.integers(len(self.texts))]
        prompt = [*text[: self.draw.integers(len(text) + 1)], *self._tokens(int(self.draw.integers(1, 6)))]
        room = self.engine.pool.tokens - len(prompt)
        if room < 1 or len(self.engine.scheduler.waiting) >= 20:
            return
        params = SamplingParams(
            max_tokens=min(int(self.draw.integers(1, 24)), room),
            temperature=float(self.draw.choice([0.0, 0.8])),
            seed=int(self.draw.integers(4)),
            ignore_eos=bool(self.draw.integers(2)),
        )
        request = Request(f"request {len(self.received)}", prompt, params, choice=int(self.draw.integers(2)), salt=salt)
        self.live[request.id] = request
        self.received[request.id] = Received()
        self._plain[request.id] = plain_decode(
            self.target, prompt, params, choice=request.choice, eos_token_ids=() if params.ignore_eos else (EOS,)
        )
        self.engine.add(request)

    def _cancel(self) -> None:
        name = str(self.draw.choice(sorted(self.live)))
        self.engine.cancel(name)
        self._remember(self.live.pop(name), self.received[name].tokens)
        self.cancelled += 1

    def _end(self, name: str) -> None:
        request, received, plain = self.live.pop(name), self.received[name], self._plain.pop(name)
        assert received.tokens == plain.tokens, f"{request} with {self.setting}"
        assert received.finish_reason == plain.finish_reason
        self._check_found(request, received.cached_tokens)
        self._remember(request, received.tokens)
        self.finished += 1

    def _check_found(self, request: Request, cached: int) -> None:
        """What came from the cache was run before, under the same salt."""
        found = tuple(request.prompt_ids[:cached])
        for other in self.live.values():
            text = [*other.prompt_ids, *self.received[other.id].tokens]
            if other.salt == request.salt and tuple(text[:cached]) == found:
                return
        assert not found or (request.salt, found) in self.ran, f"{request.id}: {found} never ran under its salt"

    def _remember(self, request: Request, output: list[int]) -> None:
        """Later prompts continue this text under any salt, as the next turn of a chat does, within half the cache."""
        text = [*request.prompt_ids, *output]
        self.ran |= {(request.salt, tuple(text[:length])) for length in range(1, len(text) + 1)}
        text = text[: self.engine.pool.tokens // 2]
        if len(self.texts) < 7:
            self.texts.append(text)
        else:
            self.texts[int(self.draw.integers(3, 7))] = text

    def _rest(self, sequence: SequenceView) -> list[int]:
        return self._plain[sequence.id].tokens

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self.draw.integers(1, VOCAB, count).tolist()
        return tokens
