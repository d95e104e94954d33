"""Run requests to their end in this process: for commands, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from draftwing.core import AcceptanceSummary, Emission, FinishReason, Request, TokenLogprob
from draftwing.engine.step import Engine


@dataclass(slots=True)
class Output:
    """Everything one request gave."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    summary: AcceptanceSummary = field(default_factory=AcceptanceSummary)

    def add(self, emission: Emission) -> None:
        self.token_ids += emission.token_ids
        self.text += emission.text
        self.logprobs += emission.logprobs or []
        if emission.finish_reason is not None:
            self.finish_reason, self.stop_reason = emission.finish_reason, emission.stop_reason
            self.error = emission.error
            self.summary = emission.summary or self.summary


def run_all(
    engine: Engine, requests: Iterable[Request], *, on_emission: Callable[[Emission], None] | None = None
) -> list[Output]:
    """Outputs in the order of the requests, all decoded together as far as the engine's limits allow.

    Raises RequestError for a request that can't be served; the others are then cancelled.
    """
    outputs: dict[str, Output] = {}
    try:
        for request in requests:
            engine.add(request)
            outputs[request.id] = Output()
        while engine.busy:
            for emission in engine.step():
                outputs[emission.request_id].add(emission)
                if on_emission is not None:
                    on_emission(emission)
    finally:
        for request_id in outputs:
            engine.cancel(request_id)
    return list(outputs.values())


def acceptance_length(outputs: Iterable[Output]) -> float:
    """Tau: tokens committed per verify, bonus included; 1.0 where nothing was drafted or accepted."""
    verifies = accepted = 0
    for output in outputs:
        verifies += output.summary.verifies
        accepted += sum(output.summary.accepted)
    return 1.0 + accepted / verifies if verifies else 1.0
