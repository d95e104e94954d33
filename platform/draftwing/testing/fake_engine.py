"""An engine without a model, for tests of everything around one: it echoes the prompt, at a given pace.

It keeps the engine's contract: one owner, `add` refuses or queues, one step moves every running request, the last
emission carries the finish reason. What it should do wrong is set beforehand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from draftwing.core import AcceptanceSummary, Emission, EngineCounters, PolicyStatus, Request
from draftwing.errors import ConfigError, OverloadedError, RequestError, SetupError


@dataclass(frozen=True, slots=True)
class FakeScript:
    """How the fake behaves. Times in seconds; step counts from 1.

    tokens_per_step: committed by each request in a step (a draft's length plus one). sequences: running at once.
    queue: waiting at most. context: prompt and new tokens at most. vocab: ids below it are valid. fail_at_step: that
    step raises. hang_at_step: that step never returns. error_token: a request whose prompt holds it ends with finish
    reason "error". text_repeat: each token's text is repeated so often. load_s: loading takes so long. load_error:
    loading raises that error.
    """

    tokens_per_step: int = 1
    step_s: float = 0.0
    sequences: int = 8
    queue: int = 64
    context: int = 4096
    vocab: int = 2**20
    fail_at_step: int | None = None
    hang_at_step: int | None = None
    error_token: int | None = None
    text_repeat: int = 1
    load_s: float = 0.0
    load_error: str | None = None


class FakeEngine:
    """Echoes each request's prompt over and over until max_tokens; output token i is prompt token i mod its length."""

    def __init__(self, script: FakeScript = FakeScript()) -> None:
        self.script = script
        self.counters = EngineCounters()
        self.cancelled: list[str] = []
        self._waiting: dict[str, Request] = {}
        self._running: dict[str, Request] = {}

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def kv_use(self) -> float:
        return self.running / self.script.sequences

    def add(self, request: Request) -> None:
        script = self.script
        if request.id in self._waiting or request.id in self._running:
            raise RequestError(f"request id {request.id!r} is in use", param="id")
        if not request.prompt_ids or not all(0 <= token < script.vocab for token in request.prompt_ids):
            raise RequestError(f"prompt ids must lie in 0 to {script.vocab - 1} and not be empty", param="prompt")
        if len(request.prompt_ids) + request.params.max_tokens > script.context:
            raise RequestError(
                f"prompt of {len(request.prompt_ids)} tokens and max_tokens {request.params.max_tokens} exceed the "
                f"context of {script.context}",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if len(self._waiting) >= script.queue:
            raise OverloadedError(f"the queue is full ({script.queue} requests)")
        self._waiting[request.id] = request
        self.counters.prompt_tokens += len(request.prompt_ids)

    def cancel(self, request_id: str) -> None:
        if self._waiting.pop(request_id, None) or self._running.pop(request_id, None):
            self.cancelled.append(request_id)
            self._count_finish("cancelled")

    def policy_status(self) -> PolicyStatus | None:
        return None

    def step(self) -> list[Emission]:
        if not self.busy:
            return []
        self.counters.steps += 1
        if self.counters.steps == self.script.fail_at_step:
            raise RuntimeError("planted failure of a forward step")
        while self.counters.steps == self.script.hang_at_step:
            time.sleep(1)
        if self.script.step_s:
            time.sleep(self.script.step_s)
        while self._waiting and len(self._running) < self.script.sequences:
            request_id = next(iter(self._waiting))
            self._running[request_id] = self._waiting.pop(request_id)
        return [self._advance(request) for request in list(self._running.values())]

    def _advance(self, request: Request) -> Emission:
        if self.script.error_token in request.prompt_ids:
            del self._running[request.id]
            self._count_finish("error")
            return Emission(request.id, [], finish_reason="error", error="the logits of this request are not finite")
        done = len(request.generated_ids)
        count = min(self.script.tokens_per_step, request.params.max_tokens - done)
        tokens = [request.prompt_ids[i % len(request.prompt_ids)] for i in range(done, done + count)]
        request.generated_ids.extend(tokens)
        self.counters.generated_tokens += count
        emission = Emission(request.id, tokens, "".join(map(text_of, tokens)) * self.script.text_repeat)
        if len(request.generated_ids) >= request.params.max_tokens:
            del self._running[request.id]
            self._count_finish("length")
            emission.finish_reason = "length"
            emission.summary = AcceptanceSummary(verifies=-(-request.params.max_tokens // self.script.tokens_per_step))
        return emission

    def _count_finish(self, reason: str) -> None:
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1


def text_of(token: int) -> str:
    """A printable ASCII code is its character; any other id is <id>."""
    return chr(token) if 32 <= token < 127 else f"<{token}>"


def build_fake_engine(config_json: str, progress: Callable[[str], None]) -> FakeEngine:
    """A fake as `FakeScript` fields in JSON say; after its load time, or its load error (kind:message).

    As a rank's factory: `draftwing.testing.fake_engine:build_fake_engine`.
    """
    script = FakeScript(**json.loads(config_json or "{}"))
    progress("loading the fake")
    time.sleep(script.load_s)
    if script.load_error is not None:
        kind, _, message = script.load_error.partition(":")
        raise {"config": ConfigError, "setup": SetupError}.get(kind, RuntimeError)(message)
    return FakeEngine(script)
