"""Request bodies from bytes: strict JSON, with every refusal one clear line.

Python's reader takes more than JSON (NaN, repeated keys, numbers without bound), and what it takes may hurt later: a
lone surrogate can't be encoded again, deep nesting overflows whoever walks it recursively.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from draftwing.errors import RequestError

MAX_DIGITS = 20  # enough for any 64-bit integer with its sign


def read_json_object(data: bytes, max_depth: int) -> dict[str, Any]:
    """The body as a JSON object of at most max_depth levels; RequestError for anything else."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 (byte {error.start}); send JSON encoded as UTF-8") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except json.JSONDecodeError as error:
        raise RequestError(
            f"the body is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, got {_kind(value)}")
    _check_tree(value, max_depth)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RequestError(f"the key {key[:64]!r} appears twice in one object; send it once", param=key[:64])
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"{name} is not JSON; numbers must be finite")


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise RequestError(f"an integer of {len(digits)} digits is out of range; at most 64 bits are accepted")
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise RequestError(f"the number {digits[:32]} is out of range; numbers must be finite")
    return value


def _check_tree(root: Any, max_depth: int) -> None:
    """Depth, and strings that can't be written as UTF-8 or hold NUL. Iterative: the depth isn't known yet."""
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > max_depth:
            raise _too_deep(max_depth)
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                for key in node:
                    _check_text(key)
                children = node.values()
            else:
                children = node
            for child in children:
                if isinstance(child, str):
                    _check_text(child)
                elif isinstance(child, (dict, list)):
                    below.append(child)
        level = below


def _check_text(text: str) -> None:
    if text.isascii():
        if "\0" not in text:
            return
        raise RequestError("a string contains the character U+0000, which is not accepted")
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"a string contains a lone surrogate (U+{ord(text[error.start]):04X}), which is not valid Unicode text"
        ) from None
    if b"\0" in encoded:
        raise RequestError("a string contains the character U+0000, which is not accepted")


def _too_deep(max_depth: int) -> RequestError:
    return RequestError(f"the body is nested more than {max_depth} levels deep")


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "an array"
    return {str: "a string", bool: "a boolean", int: "a number", float: "a number"}.get(type(value), "null")
