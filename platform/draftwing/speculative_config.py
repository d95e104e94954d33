"""vLLM's `--speculative-config` JSON as settings of ours, so that a command line carries over."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from draftwing.config_errors import closest, refuse
from draftwing.errors import ConfigError
from draftwing.limits import shown
from draftwing.policy.modes import MOST_DEPTH

FLAG = "--speculative-config"
MOST_MATCH = 64
ACCEPTED = ("method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_NO_WEIGHTS = "the ngram method loads no model"
# Options of vLLM that have no equivalent here, and why.
_WITHOUT_EQUIVALENT = {
    "model": _NO_WEIGHTS,
    "revision": _NO_WEIGHTS,
    "code_revision": _NO_WEIGHTS,
    "quantization": _NO_WEIGHTS,
    "load_format": _NO_WEIGHTS,
    "attention_backend": _NO_WEIGHTS,
    "draft_tensor_parallel_size": _NO_WEIGHTS,
    "max_model_len": "drafts may be as long as the context; set limits.context to bound both",
    "disable_by_batch_size": "the policy decides how much to draft",
    "num_speculative_tokens_per_batch_size": "a schedule by batch size is not available in this version",
    "disable_padded_drafter_batch": "drafts are never padded here",
    "parallel_drafting": _NO_WEIGHTS,
    "draft_sample_method": "an ngram draft is not sampled",
    "rejection_sample_method": "output is always that of plain decoding here, see the setting `sampling`",
    "speculative_token_tree": "set policy.mode, for example fixed:tree=3x2x1",
    "enforce_eager": "nothing is captured in this version",
}


def from_speculative_config(text: str) -> dict[str, Any]:
    """Settings by dotted key: drafters and policy.mode. ConfigError names each key that is wrong, a line each.

    Defaults are vLLM's: both prompt_lookup lengths 5, or equal to the one that is given.
    """
    data = _parse(text)
    problems = [_unknown(key) for key in data if key not in ACCEPTED]
    if data.get("method") != "ngram":
        found = f"method is {shown(data['method'])}" if "method" in data else "method is missing"
        problems.append(f"{FLAG}: {found}; this version drafts with 'ngram'")
    numbers = {}
    for key, most in (
        ("num_speculative_tokens", MOST_DEPTH),
        ("prompt_lookup_max", MOST_MATCH),
        ("prompt_lookup_min", MOST_MATCH),
    ):
        value = data.get(key)
        if type(value) is int and 1 <= value <= most:
            numbers[key] = value
        elif key in data or key == "num_speculative_tokens":
            found = f"is {shown(value)}" if key in data else "is missing"
            problems.append(f"{FLAG}: {key} {found}; expected a whole number from 1 to {most}")
    longest = numbers.get("prompt_lookup_max", numbers.get("prompt_lookup_min", 5))
    shortest = numbers.get("prompt_lookup_min", longest)
    if shortest > longest:
        problems.append(f"{FLAG}: prompt_lookup_min is {shortest}; expected at most prompt_lookup_max, {longest}")
    refuse(problems)
    drafter = {"name": "ngram", "method": "ngram", "rule": "vllm", "min_match": shortest, "max_match": longest}
    return {"drafters": [drafter], "policy.mode": f"fixed:k={numbers['num_speculative_tokens']}"}


def _unknown(key: str) -> str:
    if reason := _WITHOUT_EQUIVALENT.get(key):
        return f"{FLAG}: {key} has no equivalent: {reason}; remove it"
    meant = closest(key, ACCEPTED)
    hint = f"did you mean {meant}?" if meant else f"expected {', '.join(ACCEPTED)}"
    return f"{FLAG}: {shown(key)[1:-1]} is not accepted; {hint}"


def _parse(text: str) -> dict[str, Any]:
    def refuse_constant(name: str) -> NoReturn:
        raise ConfigError(f"{FLAG}: {name} is not JSON")

    try:
        data = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{FLAG}: not valid JSON: {error.msg}, at character {error.pos + 1}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{FLAG}: a number too long, or nested too deep") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{FLAG} is {shown(data)}; expected a JSON object such as {_EXAMPLE}")
    return data


_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"{FLAG}: {shown(twice)[1:-1]} is set twice; keep one")
    return data
