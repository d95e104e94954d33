"""Commit: the target's tokens along the accepted path become output, until one of them ends the request."""

from __future__ import annotations

from dataclasses import dataclass

from draftwing.core import Emission, FinishReason, TokenLogprob
from draftwing.engine.sequence import Sequence

NOT_FINITE = "the model's logits were not finite; this request was stopped, others go on"


@dataclass(slots=True)
class Outcome:
    """What one verify gave one sequence. committed: tokens that became output. accepted: how many were drafted."""

    committed: list[int]
    accepted: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


def append(sequence: Sequence, tokens: list[int], finite: list[bool], eos_token_ids: tuple[int, ...]) -> Outcome:
    """Append the target's tokens along the accepted path until one ends the request; later ones are dropped.

    tokens: the target's token at the root and at each accepted node. finite: whether the logits there were.
    """
    outcome = Outcome([], 0)
    for token, sound in zip(tokens, finite, strict=True):
        if not sound:
            outcome.finish_reason, outcome.error = "error", NOT_FINITE
            break
        sequence.tokens.append(token)
        outcome.committed.append(token)
        outcome.finish_reason, outcome.stop_reason = _ending(sequence, token, eos_token_ids)
        if outcome.finish_reason is not None:
            break
    sequence.sampler.commit(outcome.committed)
    outcome.accepted = min(len(outcome.committed), len(tokens) - 1)
    return outcome


def _ending(
    sequence: Sequence, token: int, eos_token_ids: tuple[int, ...]
) -> tuple[FinishReason | None, str | int | None]:
    params = sequence.params
    may_stop = sequence.output_len >= params.min_tokens
    if may_stop and not params.ignore_eos and token in eos_token_ids:
        return "stop", None
    if may_stop and token in params.stop_token_ids:
        return "stop", token
    if (stop := sequence.text.push(token, may_stop=may_stop)) is not None:
        return "stop", stop
    return ("length", None) if sequence.tokens_left <= 0 else (None, None)


def emission(sequence: Sequence, outcome: Outcome, logprobs: list[TokenLogprob] | None) -> Emission:
    """The stream event of one step for one request."""
    if outcome.finish_reason is not None:
        sequence.text.finish()
    return Emission(
        request_id=sequence.id,
        token_ids=outcome.committed,
        text=sequence.text.take(),
        logprobs=logprobs,
        finish_reason=outcome.finish_reason,
        stop_reason=outcome.stop_reason,
        error=outcome.error,
        summary=sequence.summary if outcome.finish_reason is not None else None,
        cached_tokens=sequence.cached_tokens or 0,
    )
