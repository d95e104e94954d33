"""Requests as clients send them: the fields of /v1/completions and /v1/chat/completions, and what each may hold.

Types are strict (a boolean is no integer, a float no token id). Ranges are those of `draftwing.limits`, checked when a
request becomes `SamplingParams`, in `prepare`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

PromptInput: TypeAlias = str | list[int]
"""One prompt: text, or token ids."""


class Received(BaseModel):
    """Part of a request. Unknown fields are kept, to be refused or reported by name."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    @property
    def unknown(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _read_prompts(value: object) -> list[PromptInput]:
    """The four forms of `prompt` as one list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, list) and all(type(token) is int for token in item) for item in value):
            return value
    raise PydanticCustomError(
        "prompt", "must be a non-empty string, list of strings, list of token ids or list of lists of token ids"
    )


def _read_stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise PydanticCustomError("stop", "must be a string or a list of strings")


def _read_logit_bias(value: object) -> dict[int, float]:
    """JSON object keys are strings: token ids in decimal."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PydanticCustomError("logit_bias", "must be an object from token id to bias")
    result: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise PydanticCustomError("logit_bias", "every key must be a token id in decimal digits")
        if type(bias) not in (int, float):
            raise PydanticCustomError("logit_bias", "every value must be a number")
        if int(key) in result:
            raise PydanticCustomError("logit_bias", "the same token id appears twice")
        result[int(key)] = float(bias)
    return result


def _read_content(value: object) -> str:
    """Text, or parts of type text put together."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("content", "must be a string or a non-empty list of parts of type 'text'")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise PydanticCustomError(
                "content", "every part must be an object of type 'text'; this model reads no other"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise PydanticCustomError("content", "a part of type 'text' must have its text as a string")
        texts.append(text)
    return "".join(texts)


_TEXT_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_PROMPT = {"anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}
_BIAS = {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART, "minItems": 1}]}

Prompts = Annotated[list[PromptInput], PlainValidator(_read_prompts), WithJsonSchema(_PROMPT)]
Stop = Annotated[tuple[str, ...], PlainValidator(_read_stop), WithJsonSchema(_TEXT_OR_LIST)]
LogitBias = Annotated[dict[int, float], PlainValidator(_read_logit_bias), WithJsonSchema(_BIAS)]
Content = Annotated[str, PlainValidator(_read_content), WithJsonSchema(_CONTENT)]


class StreamOptions(Received):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(Received):
    """What both endpoints share. None means: not asked for, the default applies."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: LogitBias = Field(default_factory=dict)
    seed: int | None = None
    n: int | None = None
    stop: Stop = ()
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None
    speculation: Literal["on", "off"] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = None


class CompletionRequest(GenerationRequest):
    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = None


class ChatMessage(Received):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class ChatRequest(GenerationRequest):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class TokenizeRequest(Received):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    add_special_tokens: bool = True


class DetokenizeRequest(Received):
    model: str | None = None
    tokens: list[int]
