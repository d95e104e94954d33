"""From a request body to work for the engine: checked, templated, tokenized, one `ResumeState` a choice.

All of it is synchronous and may take long for a long prompt, so the gateway runs it in a thread.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from draftwing.core import SamplingParams
from draftwing.errors import RequestError
from draftwing.limits import RequestLimits, check_params
from draftwing_serve.errors import context_length_exceeded, from_validation, unsupported
from draftwing_serve.json_body import read_json_object
from draftwing_serve.protocol import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    PromptInput,
    Received,
    TokenizeRequest,
)
from draftwing_serve.resume import ResumeState
from draftwing_serve.unsupported import refuse_unsupported

DEFAULT_COMPLETION_TOKENS = 16
SEED_BITS = 53  # what every JSON reader gives back unchanged; sent as an integer like any client's seed
R = TypeVar("R", bound=Received)


class Tokenizer(Protocol):
    """What the gateway needs of the target's tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...
    def token_text(self, token: int) -> str: ...
    def chat(self, messages: list[dict[str, str]]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the gateway knows of the target. context: most tokens of prompt and output together."""

    name: str
    aliases: tuple[str, ...]
    context: int
    vocab_size: int
    digest: str
    created: int


@dataclass(slots=True)
class Job:
    """One HTTP request, ready to run: its choices in the order of the answer (prompt by prompt)."""

    chat: bool
    model: str
    request_id: str | None
    seed: int
    choices: list[ResumeState]
    prompt_tokens: int
    echoes: list[str] | None = None  # per choice: text to send before the output
    logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    speculation: bool = True
    ignored: list[str] = field(default_factory=list)


def salt_of(outer: str, secret: str) -> str:
    """A salt inside the outer one: requests share cached state only where all that went into their salts is equal."""
    return hashlib.blake2b(secret.encode(), key=outer.encode(), digest_size=16).hexdigest()


class Preparer:
    """salt: of the client's key; what one request leaves in caches is found only under the same salt."""

    def __init__(self, facts: ModelFacts, tokenizer: Tokenizer | None, limits: RequestLimits) -> None:
        self.facts = facts
        self.tokenizer = tokenizer
        self.limits = limits

    def completion(self, body: bytes, salt: str = "") -> Job:
        request = _read(CompletionRequest, body, self.limits.json_depth)
        ignored = refuse_unsupported(request.unknown, chat=False)
        self._check_model(request.model)
        if len(request.prompt) > self.limits.prompts:
            raise RequestError(
                f"prompt holds {len(request.prompt)} prompts; at most {self.limits.prompts} are accepted",
                param="prompt",
            )
        if request.echo and request.logprobs is not None:
            raise unsupported("echo", True, "echo without logprobs (log-probabilities of the prompt are not available)")
        params = self._params(request, request.logprobs, {})
        prompts = [self._prompt_ids(prompt) for prompt in request.prompt]
        default = DEFAULT_COMPLETION_TOKENS
        job = self._job(request, ignored, params, prompts, salt=salt, default=default, param="prompt")
        if request.echo:
            texts = [self._prompt_text(prompt) for prompt in request.prompt]
            job.echoes = [text for text in texts for _ in range(request.n or 1)]
        return job

    def chat(self, body: bytes, salt: str = "") -> Job:
        request = _read(ChatRequest, body, self.limits.json_depth)
        ignored = refuse_unsupported(request.unknown, chat=True)
        self._check_model(request.model)
        logprobs = _chat_logprobs(request)
        names = {"logprobs": "top_logprobs"}
        if request.max_completion_tokens is not None:
            request.max_tokens = request.max_completion_tokens
            names["max_tokens"] = "max_completion_tokens"
        params = self._params(request, logprobs, names)
        prompt, unknown = self._chat_ids(request.messages)
        job = self._job(request, ignored + unknown, params, [prompt], salt=salt, default=None, param="messages")
        job.chat = True
        return job

    def tokenize(self, body: bytes) -> dict[str, Any]:
        request = _read(TokenizeRequest, body, self.limits.json_depth)
        self._check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise RequestError("send either prompt or messages", param="prompt")
        if request.messages is not None:
            ids, _ = self._chat_ids(request.messages)
        else:
            ids = self._tokens("prompt").encode(request.prompt or "", special=request.add_special_tokens)
        return {"tokens": ids, "count": len(ids), "max_model_len": self.facts.context}

    def detokenize(self, body: bytes) -> dict[str, Any]:
        request = _read(DetokenizeRequest, body, self.limits.json_depth)
        self._check_model(request.model)
        self._check_ids(request.tokens, "tokens")
        return {"prompt": self._tokens("tokens").decode(request.tokens)}

    def _check_model(self, name: str | None) -> None:
        served = (self.facts.name, *self.facts.aliases)
        if name is not None and name not in served:
            raise RequestError(
                f"the model {name[:128]!r} is not served here; served: {', '.join(served)}",
                param="model",
                code="model_not_found",
            )

    def _tokens(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer: send token ids, and no stop strings", param=param)
        return self.tokenizer

    def _params(self, request: GenerationRequest, logprobs: int | None, names: Mapping[str, str]) -> SamplingParams:
        """Checked parameters; max_tokens is provisional where none was given, until the prompt's length is known.

        names: what the client calls a parameter, where that differs.
        """
        if request.stop:
            self._tokens("stop")
        given = {
            name: value
            for name in (
                "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
                "presence_penalty", "ignore_eos",
            )
            if (value := getattr(request, name)) is not None
        }  # fmt: skip
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        params = SamplingParams(
            max_tokens=max(1, request.min_tokens or 1) if request.max_tokens is None else request.max_tokens,
            logit_bias=request.logit_bias,
            seed=seed + 2**64 if -(2**63) <= seed < 0 else seed,
            stop=request.stop,
            stop_token_ids=tuple(request.stop_token_ids or ()),
            logprobs=logprobs,
            speculate=request.speculation != "off",
            **given,
        )
        try:
            check_params(params, self.facts.vocab_size, self.limits)
        except RequestError as error:
            name = error.param or ""
            theirs = names.get(name, name)
            raise RequestError(str(error).replace(name, theirs, 1), param=theirs, code=error.code) from None
        n = request.n
        if n is not None and not 1 <= n <= self.limits.n:
            raise RequestError(f"n = {n} is out of range; accepted: 1 to {self.limits.n}", param="n")
        if n is not None and n > 1 and params.temperature == 0:
            raise RequestError(
                f"n = {n} at temperature 0 would give {n} equal choices; use n = 1 or a temperature above 0", param="n"
            )
        return params

    def _job(
        self,
        request: GenerationRequest,
        ignored: list[str],
        params: SamplingParams,
        prompts: list[list[int]],
        *,
        salt: str,
        default: int | None,
        param: str,
    ) -> Job:
        asked = request.max_tokens
        options = request.stream_options
        if options is not None:
            if not request.stream:
                raise RequestError("stream_options is only accepted with stream = true", param="stream_options")
            ignored = ignored + [f"stream_options.{name}" for name in options.unknown]
        if request.request_id is not None and not 0 < len(request.request_id) <= self.limits.request_id_chars:
            raise RequestError(
                f"request_id must have 1 to {self.limits.request_id_chars} characters", param="request_id"
            )
        if request.cache_salt is not None:
            salt = salt_of(salt, request.cache_salt)
        choices = []
        for ids in prompts:
            fitted = self._fit(params, ids, asked, default, param)
            for choice in range(request.n or 1):
                choices.append(ResumeState(ids, fitted, choice, self.facts.digest, salt))
        return Job(
            chat=False,
            model=request.model or self.facts.name,
            request_id=request.request_id,
            seed=params.seed if request.seed is None else request.seed,
            choices=choices,
            prompt_tokens=sum(map(len, prompts)),
            logprobs=params.logprobs,
            stream=bool(request.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            return_token_ids=bool(request.return_token_ids),
            speculation=params.speculate,
            ignored=ignored,
        )

    def _fit(
        self, params: SamplingParams, ids: list[int], asked: int | None, default: int | None, param: str
    ) -> SamplingParams:
        """max_tokens within the context: what was asked for must fit, a default is cut to fit."""
        room = self.facts.context - len(ids)
        if room < 1 or (asked is not None and asked > room):
            raise context_length_exceeded(self.facts.context, len(ids), asked, param)
        if asked is not None:
            return params
        max_tokens = room if default is None else min(default, room)
        if params.min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens = {params.min_tokens} is more than max_tokens, which is {max_tokens} here by default; "
                "send a larger max_tokens",
                param="min_tokens",
            )
        return replace(params, max_tokens=max_tokens)

    def _prompt_ids(self, prompt: PromptInput) -> list[int]:
        if not prompt:
            raise RequestError("prompt is empty; send at least one character or token id", param="prompt")
        if isinstance(prompt, str):
            return self._tokens("prompt").encode(prompt)
        self._check_ids(prompt, "prompt")
        return prompt

    def _prompt_text(self, prompt: PromptInput) -> str:
        return prompt if isinstance(prompt, str) else self._tokens("echo").decode(prompt)

    def _check_ids(self, ids: list[int], param: str) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self.facts.vocab_size):
            worst = next(token for token in ids if not 0 <= token < self.facts.vocab_size)
            raise RequestError(
                f"{param} holds the token id {worst}; accepted: 0 to {self.facts.vocab_size - 1}", param=param
            )

    def _chat_ids(self, messages: list[ChatMessage]) -> tuple[list[int], list[str]]:
        if len(messages) > self.limits.messages:
            raise RequestError(
                f"{len(messages)} messages; at most {self.limits.messages} are accepted", param="messages"
            )
        ignored: set[str] = set()
        turns = []
        for message in messages:
            for name, value in message.unknown.items():
                if name in ("tool_calls", "function_call", "audio", "refusal") and value:
                    raise unsupported(f"messages.{name}", value, "leaving it out")
                ignored.add(f"messages.{name}")
            role = "system" if message.role == "developer" else message.role
            turns.append({"role": role, "content": message.content})
        return self._tokens("messages").chat(turns), sorted(ignored)


def _read(model: type[R], body: bytes, depth: int) -> R:
    value = read_json_object(body, depth)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise from_validation(error) from None


def _chat_logprobs(request: ChatRequest) -> int | None:
    if not request.logprobs:
        if request.top_logprobs:
            raise RequestError("top_logprobs is only accepted with logprobs = true", param="top_logprobs")
        return None
    return request.top_logprobs or 0
