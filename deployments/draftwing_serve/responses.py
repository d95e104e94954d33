"""Answers as OpenAI's clients expect them: whole bodies, and chunks of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draftwing.core import AcceptanceSummary, Emission, TokenLogprob
from draftwing_serve.prepare import Job, Tokenizer
from draftwing_serve.speculation import speculation_object

LOWEST_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(slots=True)
class ChoiceSoFar:
    """What one choice has sent."""

    text: str = ""
    started: bool = False
    cached_tokens: int | None = None  # of the prompt, on the replica that began
    offset: int = 0  # characters before the next token's text, for text_offset
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    summary: AcceptanceSummary | None = None


class Answer:
    """Builds one request's answer from its emissions. id: with its prefix. created: unix seconds."""

    def __init__(self, job: Job, request_id: str, created: int, tokenizer: Tokenizer | None) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._choices = [ChoiceSoFar() for _ in job.choices]
        for choice, echo in zip(self._choices, job.echoes or [], strict=False):
            choice.offset = len(echo)
        self._head = {
            "id": ("chatcmpl-" if job.chat else "cmpl-") + request_id,
            "object": "",
            "created": created,
            "model": job.model,
        }

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self._choices)

    def add(self, index: int, emission: Emission) -> None:
        """Take an emission into the whole body."""
        choice = self._choices[index]
        choice.text += emission.text
        choice.logprobs += emission.logprobs or []
        self._note(choice, emission)

    def chunk(self, index: int, emission: Emission) -> dict[str, Any]:
        """An emission as one chunk of the stream."""
        choice = self._choices[index]
        text = emission.text
        first = not choice.started
        choice.started = True
        if first and self._job.echoes is not None:
            text = self._job.echoes[index] + text
        body: dict[str, Any] = {"index": index}
        if self._job.chat:
            delta = {"role": "assistant", "content": text} if first else {"content": text}
            body["delta"] = delta
        else:
            body["text"] = text
        body["logprobs"] = self._logprobs(emission.logprobs or [], choice)
        self._note(choice, emission)
        body["finish_reason"] = choice.finish_reason
        body["stop_reason"] = choice.stop_reason
        if self._job.return_token_ids:
            body["token_ids"] = emission.token_ids
            if first:
                body["prompt_token_ids"] = self._job.choices[index].prompt_ids
        chunk = self._named("chat.completion.chunk" if self._job.chat else "text_completion", [body])
        if self._job.continuous_usage:
            chunk["usage"] = self.usage()
        elif self._job.include_usage:
            chunk["usage"] = None
        return chunk

    def last_chunk(self, timings: dict[str, float]) -> dict[str, Any]:
        """The chunk after all choices: usage and metrics."""
        chunk = self._named("chat.completion.chunk" if self._job.chat else "text_completion", [])
        return chunk | {"usage": self.usage(), "seed": self._job.seed, "metrics": self._metrics(timings)}

    def whole(self, timings: dict[str, float]) -> dict[str, Any]:
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]
        body = self._named("chat.completion" if self._job.chat else "text_completion", choices)
        return body | {"usage": self.usage(), "seed": self._job.seed, "metrics": self._metrics(timings)}

    def usage(self) -> dict[str, Any]:
        prompt, completion = self._job.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens()},
        }

    def _cached_tokens(self) -> int:
        """Prompts count once, whatever n is: as their first choice found them."""
        pairs = zip(self._choices, self._job.choices, strict=True)
        return sum(choice.cached_tokens or 0 for choice, state in pairs if state.choice == 0)

    def _note(self, choice: ChoiceSoFar, emission: Emission) -> None:
        choice.token_ids += emission.token_ids
        if choice.cached_tokens is None:
            choice.cached_tokens = emission.cached_tokens
        if emission.finish_reason is not None:
            choice.finish_reason = emission.finish_reason
            choice.stop_reason = emission.stop_reason
            choice.summary = emission.summary

    def _named(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": kind, "choices": choices}

    def _whole_choice(self, index: int, choice: ChoiceSoFar) -> dict[str, Any]:
        echo = self._job.echoes[index] if self._job.echoes is not None else ""
        body: dict[str, Any] = {"index": index}
        if self._job.chat:
            body["message"] = {"role": "assistant", "content": choice.text, "refusal": None}
        else:
            body["text"] = echo + choice.text
        body["logprobs"] = self._logprobs(choice.logprobs, choice)
        body["finish_reason"] = choice.finish_reason
        body["stop_reason"] = choice.stop_reason
        if self._job.return_token_ids:
            body["token_ids"] = choice.token_ids
            body["prompt_token_ids"] = self._job.choices[index].prompt_ids
        return body

    def _metrics(self, timings: dict[str, float]) -> dict[str, Any]:
        metrics: dict[str, Any] = dict(timings)
        summaries = [choice.summary for choice in self._choices if choice.summary is not None]
        if summaries and self._job.speculation:
            metrics["speculative_decoding"] = speculation_object(summaries)
        return metrics

    def _logprobs(self, tokens: list[TokenLogprob], choice: ChoiceSoFar) -> dict[str, Any] | None:
        if self._job.logprobs is None:
            return None
        if self._job.chat:
            return {"content": [self._chat_logprob(token) for token in tokens], "refusal": None}
        return self._completion_logprobs(tokens, choice)

    def _chat_logprob(self, token: TokenLogprob) -> dict[str, Any]:
        top = [self._named_logprob(other, logprob) for other, logprob in token.alternatives]
        return self._named_logprob(token.token, token.logprob) | {"top_logprobs": top}

    def _named_logprob(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._token_text(token)
        return {"token": text, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(text.encode())}

    def _completion_logprobs(self, tokens: list[TokenLogprob], choice: ChoiceSoFar) -> dict[str, Any]:
        texts = [self._token_text(token.token) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(choice.offset)
            choice.offset += len(text)
        tops = []
        for token, own in zip(tokens, texts, strict=True):
            top = {self._token_text(other): max(logprob, LOWEST_LOGPROB) for other, logprob in token.alternatives}
            top.setdefault(own, max(token.logprob, LOWEST_LOGPROB))
            tops.append(top)
        return {
            "tokens": texts,
            "token_logprobs": [max(token.logprob, LOWEST_LOGPROB) for token in tokens],
            "top_logprobs": tops if self._job.logprobs else None,
            "text_offset": offsets,
        }

    def _token_text(self, token: int) -> str:
        return self._tokenizer.token_text(token) if self._tokenizer is not None else f"token_id:{token}"
