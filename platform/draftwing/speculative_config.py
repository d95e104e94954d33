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
VLLM_TREE_DEPTH = 24
COMMON = ("method", "num_speculative_tokens")
# Keys of vLLM's method `suffix`: our option, and its range.
_SUFFIX: dict[str, tuple[str, float, float]] = {
    "suffix_decoding_max_tree_depth": ("max_depth", 2, 256),
    "suffix_decoding_max_cached_requests": ("max_requests", -1, 2**31 - 1),
    "suffix_decoding_max_spec_factor": ("factor", 0.0, 64.0),
    "suffix_decoding_min_token_prob": ("min_probability", 0.0, 1.0),
}
_CHECKPOINT = ("model", "revision", "draft_tensor_parallel_size")
# Methods by vLLM's names, and their own keys. Its `dflash` is our `dflash` or `dflash2`: the checkpoint says which.
METHODS = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "suffix": tuple(_SUFFIX),
    **dict.fromkeys(("draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"), _CHECKPOINT),
}
TOLD_BY_CHECKPOINT = ("", "dflash")
IN_TARGET = ("mtp", "medusa")  # may lie in the target's own checkpoint
# Options of vLLM that have no equivalent here, and why.
_WITHOUT_EQUIVALENT = {
    "code_revision": "code from a model's repository is not run",
    "quantization": "a draft model is loaded as its checkpoint is",
    "load_format": "weights are safetensors or GGUF, told by the file",
    "attention_backend": "there is one for each device",
    "max_model_len": "drafts may be as long as the context; set limits.context to bound both",
    "disable_by_batch_size": "the policy decides how much to draft",
    "num_speculative_tokens_per_batch_size": "a schedule by batch size is not available in this version",
    "disable_padded_drafter_batch": "drafts are never padded here",
    "parallel_drafting": "a draft model drafts token by token",
    "draft_sample_method": "drafts are drawn under the target's own noise, see the setting `sampling`",
    "rejection_sample_method": "output is always that of plain decoding here, see the setting `sampling`",
    "speculative_token_tree": "set policy.mode, for example fixed:tree=3x2x1",
    "enforce_eager": "nothing is captured in this version",
}


def from_speculative_config(text: str) -> dict[str, Any]:
    """Settings by dotted key: drafters and policy.mode. ConfigError names each key that is wrong, a line each.

    Defaults are vLLM's: both prompt_lookup lengths 5, or equal to the one that is given; for suffix, as many tokens as
    the tree is deep; for mtp, one. With a model and no method, the model's checkpoint says the method.
    """
    data = _parse(text)
    method = _method(data)
    problems = []
    if method not in METHODS and (method or "model" not in data):
        found = f"method is {shown(data['method'])}" if "method" in data else "method is missing"
        problems.append(f"{FLAG}: {found}; this version drafts with {', '.join(map(repr, METHODS))}")
    keys = METHODS.get(method, _CHECKPOINT if "model" in data else sum(METHODS.values(), ()))
    accepted = tuple(dict.fromkeys((*COMMON, *keys)))
    problems = [_unknown(key, method, accepted) for key in data if key not in accepted] + problems
    count = _number(data, "num_speculative_tokens", MOST_DEPTH, problems, needed=method not in ("suffix", "mtp"))
    if method == "suffix":
        drafter = _suffix(data, problems)
        count = count or min(drafter.get("max_depth", VLLM_TREE_DEPTH), MOST_DEPTH)
    elif (method in METHODS and keys == _CHECKPOINT) or (not method and "model" in data):
        drafter = _checkpoint(method, data, problems)
    else:
        drafter = _ngram(data, problems)
    refuse(problems)
    return {"drafters": [drafter], "policy.mode": f"fixed:k={count or 1}"}


def _method(data: dict[str, Any]) -> str:
    """vLLM's name of the method without its variants; "" where there is none."""
    name = data.get("method")
    if not isinstance(name, str):
        return "" if name is None and "method" not in data else "?"
    if name.endswith("_mtp"):  # deepseek_mtp, glm4_moe_mtp, qwen3_next_mtp, mimo_mtp, ...
        return "mtp"
    return "ngram" if name == "ngram_gpu" else name


def _number(data: dict[str, Any], key: str, most: int, problems: list[str], *, needed: bool = False) -> int | None:
    value = data.get(key)
    if type(value) is int and 1 <= value <= most:
        return value
    if key in data or needed:
        found = f"is {shown(value)}" if key in data else "is missing"
        problems.append(f"{FLAG}: {key} {found}; expected a whole number from 1 to {most}")
    return None


def _ngram(data: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    most = _number(data, "prompt_lookup_max", MOST_MATCH, problems)
    least = _number(data, "prompt_lookup_min", MOST_MATCH, problems)
    longest = most or least or 5
    shortest = least or longest
    if shortest > longest:
        problems.append(f"{FLAG}: prompt_lookup_min is {shortest}; expected at most prompt_lookup_max, {longest}")
    return {"name": "ngram", "method": "ngram", "rule": "vllm", "min_match": shortest, "max_match": longest}


def _suffix(data: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    drafter: dict[str, Any] = {"name": "suffix", "method": "suffix"}
    for key, (option, least, most) in _SUFFIX.items():
        if key not in data:
            continue
        value, whole = data[key], isinstance(least, int)
        if type(value) in ((int,) if whole else (int, float)) and least <= value <= most:
            drafter[option] = value if whole else float(value)
        else:
            kind = "whole number" if whole else "number"
            problems.append(f"{FLAG}: {key} is {shown(value)}; expected a {kind} from {least} to {most}")
    return drafter


def _checkpoint(method: str, data: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    drafter = {} if method in TOLD_BY_CHECKPOINT else {"name": method, "method": method}
    for key, ours in (("model", "path"), ("revision", "revision")):
        if isinstance(data.get(key), str) and data[key]:
            drafter[ours] = data[key]
        elif key in data or (key == "model" and method not in IN_TARGET):
            found = f"is {shown(data[key])}" if key in data else "is missing"
            problems.append(f"{FLAG}: {key} {found}; expected a text")
    ranks = data.get("draft_tensor_parallel_size", 1)
    if type(ranks) is not int or ranks != 1:
        problems.append(
            f"{FLAG}: draft_tensor_parallel_size is {shown(ranks)}; expected 1, as a drafter runs on one rank"
        )
    return drafter


def _unknown(key: str, method: str, accepted: tuple[str, ...]) -> str:
    if owners := [name for name, keys in METHODS.items() if key in keys]:
        many = f"methods {', '.join(owners)}" if owners[1:] else f"method {owners[0]}"
        is_now = f", and the method is {method}" if method in METHODS else ""
        return f"{FLAG}: {key} belongs to {many}{is_now}; remove it"
    if reason := _WITHOUT_EQUIVALENT.get(key):
        return f"{FLAG}: {key} has no equivalent: {reason}; remove it"
    meant = closest(key, accepted)
    hint = f"did you mean {meant}?" if meant else f"expected {', '.join(accepted)}"
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
