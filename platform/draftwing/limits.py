"""What one request may ask for at most, and the check of its sampling parameters. All request limits live here.

The sizes are defaults: an operator changes them under `limits:` in the config. A value outside is refused with the
field's name, the value (shortened) and what would be accepted; nothing is clamped.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, NoReturn

from draftwing.core import SamplingParams
from draftwing.errors import RequestError

MIN_TEMPERATURE = 1e-6  # above 0: below it, logits divided by it overflow float32 and ties decide
MAX_TEMPERATURE = 2.0
MAX_PENALTY = 2.0  # frequency and presence, either sign
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
MAX_LOGIT_BIAS = 100.0  # either sign
MAX_SEED = 2**64 - 1
MAX_TOKENS = 2**31 - 1  # a sanity bound: the context length is checked where the model is known
SHOWN_CHARS = 80  # of a refused value, so that a bad request can't make a large answer


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes of one request. `check_params` checks those of the sampling parameters, the HTTP layer the others."""

    body_bytes: int = 4 * 2**20
    json_depth: int = 64
    prompts: int = 64  # prompts in one completions request
    n: int = 16  # choices of one prompt
    messages: int = 1024  # messages of one chat
    stop: int = 4  # stop strings
    stop_chars: int = 256  # characters of one stop string
    stop_token_ids: int = 64
    logprobs: int = 20  # alternatives per token
    logit_bias: int = 1024  # entries
    request_id_chars: int = 128


DEFAULT_LIMITS = RequestLimits()

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = SHOWN_CHARS - 20
_repr.maxlevel = 3


def shown(value: object) -> str:
    """A refused value on one line, at most SHOWN_CHARS long, whatever it holds."""
    try:
        text = _repr.repr(value)
    except ValueError:  # an integer with more digits than Python writes
        text = f"a {type(value).__name__} with too many digits"
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def check_params(params: SamplingParams, vocab_size: int, limits: RequestLimits = DEFAULT_LIMITS) -> None:
    """RequestError for the first parameter that is out of range, of a wrong type, NaN or infinite."""
    _check_integer("max_tokens", params.max_tokens, 1, MAX_TOKENS)
    _check_integer("min_tokens", params.min_tokens, 0, params.max_tokens, "max_tokens")
    _check_integer("seed", params.seed, 0, MAX_SEED)
    _check_integer("top_k", params.top_k, 0, MAX_TOKENS)
    if params.temperature != 0:
        _check_number("temperature", params.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE, "0 or ")
    _check_number("min_p", params.min_p, 0, 1)
    _check_number("top_p", params.top_p, 0, 1)
    if params.top_p == 0:
        _refuse("top_p", params.top_p, "a number above 0, at most 1")
    _check_number("frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_number("presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_number("repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
    if params.logprobs is not None:
        _check_integer("logprobs", params.logprobs, 0, limits.logprobs)
    _check_stops(params, vocab_size, limits)
    _check_count("logit_bias", len(params.logit_bias), limits.logit_bias)
    for token, bias in params.logit_bias.items():
        _check_token("logit_bias", token, vocab_size)
        _check_number(f"logit_bias.{token}", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)


def _check_stops(params: SamplingParams, vocab_size: int, limits: RequestLimits) -> None:
    _check_count("stop", len(params.stop), limits.stop)
    for i, text in enumerate(params.stop):
        if not isinstance(text, str) or not 1 <= len(text) <= limits.stop_chars:
            _refuse(f"stop.{i}", text, f"text of 1 to {limits.stop_chars} characters")
    _check_count("stop_token_ids", len(params.stop_token_ids), limits.stop_token_ids)
    for i, token in enumerate(params.stop_token_ids):
        _check_token(f"stop_token_ids.{i}", token, vocab_size)


def _refuse(field: str, value: object, expected: str) -> NoReturn:
    raise RequestError(f"{field} is {shown(value)}; expected {expected}", param=field)


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise RequestError(f"{field} has {count} entries; expected at most {most}", param=field)


def _check_token(field: str, token: Any, vocab_size: int) -> None:
    if type(token) is not int or not 0 <= token < vocab_size:
        _refuse(field, token, f"token ids from 0 to {vocab_size - 1}")


def _check_integer(field: str, value: Any, low: int, high: int, high_name: str = "") -> None:
    if type(value) is not int or not low <= value <= high:
        _refuse(field, value, f"a whole number from {low} to {f'{high_name}, ' if high_name else ''}{high}")


def _check_number(field: str, value: Any, low: float, high: float, also: str = "") -> None:
    if type(value) not in (int, float) or not low <= value <= high:
        _refuse(field, value, f"{also}a number from {low:g} to {high:g}")
