"""Messages as bytes: msgpack, decoded strictly. No pickle, no code, no names of types on the wire (rule R5).

A frame is the array [protocol, kind, fields]. A dataclass travels as the array of its fields, in order; its readers are
made once from its type hints. The protocol name contains a digest of all those fields and types, so two versions of
the software that differ in any of them refuse each other by name instead of misreading each other.

Every way in which bytes can be wrong ends in WireError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack
import numpy as np

from draftwing.core import (
    AcceptanceSummary,
    Emission,
    EngineCounters,
    PolicyStatus,
    Request,
    SamplingParams,
    TokenLogprob,
)
from draftwing.errors import DraftwingError
from draftwing.parallel import messages
from draftwing.parallel.messages import Message

MAX_FRAME_BYTES = 32 * 2**20
MAX_ID_CHARS = 512
_MAX_MAP = 2**18
_ERROR_CHARS = 60

Reader = Callable[[Any], Any]


class WireError(DraftwingError):
    """Bytes that are no message of this protocol, or a value that can't be sent."""


class ProtocolMismatch(WireError):
    """The other side speaks another protocol: another version of Draftwing."""


# The order is the wire format: a kind is its index.
_MESSAGES: tuple[type, ...] = (
    messages.Submit,
    messages.Cancel,
    messages.Ping,
    messages.Drain,
    messages.Shutdown,
    messages.Events,
    messages.Refused,
    messages.Lost,
    messages.Beat,
    messages.Pong,
    messages.DraftWork,
    messages.DraftsMade,
)
_PARTS: tuple[type, ...] = (
    Request,
    SamplingParams,
    Emission,
    TokenLogprob,
    AcceptanceSummary,
    EngineCounters,
    PolicyStatus,
    messages.RankStats,
    messages.Opened,
    messages.Committed,
    messages.Wanted,
    messages.RemoteDraft,
)
_KIND_OF = {cls: kind for kind, cls in enumerate(_MESSAGES)}


def encode(message: Message) -> bytes:
    """The frame of a message. Raises WireError for values that no reader would take (too long, no 64-bit integer)."""
    try:
        frame: bytes = msgpack.packb((PROTOCOL, _KIND_OF[type(message)], message), default=_plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"can't encode {type(message).__name__}: {error}") from error
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"{type(message).__name__} has {len(frame)} bytes; at most {MAX_FRAME_BYTES} can be sent")
    return frame


def decode(frame: bytes) -> Message:
    """The message in a frame. Raises ProtocolMismatch or WireError, nothing else."""
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes; at most {MAX_FRAME_BYTES} are taken")
    try:
        envelope = msgpack.unpackb(frame, strict_map_key=False, max_map_len=_MAX_MAP, max_ext_len=0, max_bin_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"not a msgpack frame: {error}"[:200]) from error
    if type(envelope) is not list or len(envelope) != 3:
        raise WireError(f"a frame is [protocol, kind, fields], not {_show(envelope)}")
    protocol, kind, values = envelope
    if protocol != PROTOCOL:
        raise ProtocolMismatch(
            f"the other side speaks {_show(protocol)}, this side {PROTOCOL!r}; run the same draftwing on both"
        )
    if type(kind) is not int or not 0 <= kind < len(_MESSAGES):
        raise WireError(f"unknown kind of message {_show(kind)}; kinds are 0 to {len(_MESSAGES) - 1}")
    message: Message = _READERS[_MESSAGES[kind]](values)
    return message


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}... ({type(value).__name__})"


# --- writing: msgpack does it in C, and asks here for what it doesn't know


def _plain(value: object) -> object:
    if (values_of := _VALUES_OF.get(type(value))) is not None:
        return values_of(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no type of the wire")


def _values_of(cls: type) -> Callable[[Any], tuple[object, ...]]:
    names = [f.name for f in fields(cls)]
    if len(names) < 2:
        return lambda value: tuple(getattr(value, name) for name in names)
    getter: Callable[[Any], tuple[object, ...]] = attrgetter(*names)
    return getter


# --- reading: one function per type hint, which returns the value or raises WireError


def _read_none(value: Any) -> None:
    if value is not None:
        raise WireError(f"expected null, got {_show(value)}")


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise WireError(f"expected a boolean, got {_show(value)}")
    return value


def _read_int(value: Any) -> int:
    if type(value) is not int or value >= 2**63:
        raise WireError(f"expected a signed 64-bit integer, got {_show(value)}")
    return value


def _read_u64(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise WireError(f"expected an unsigned 64-bit integer, got {_show(value)}")
    return value


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise WireError(f"expected a number, got {_show(value)}")


def _read_str(value: Any) -> str:
    if type(value) is not str:
        raise WireError(f"expected text, got {_show(value)}")
    return value


def _read_id(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_ID_CHARS:
        raise WireError(f"expected an id of 1 to {MAX_ID_CHARS} characters, got {_show(value)}")
    return value


def _read_ints(value: Any) -> list[int]:
    """Token ids, mostly: checked without a Python call per element."""
    if type(value) is not list:
        raise WireError(f"expected a list, got {_show(value)}")
    if value and (set(map(type, value)) != {int} or max(value) >= 2**63):
        raise WireError(f"expected signed 64-bit integers, got {_show(value)}")
    return value


def _literal(choices: tuple[Any, ...]) -> Reader:
    allowed = frozenset(choices)

    def read(value: Any) -> Any:
        if type(value) is not str or value not in allowed:
            raise WireError(f"expected one of {', '.join(map(str, choices))}, got {_show(value)}")
        return value

    return read


def _sequence(item: Any, make: type) -> Reader:
    if item is int:
        return _read_ints if make is list else lambda value: tuple(_read_ints(value))
    read_item = _reader(item)

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise WireError(f"expected a list, got {_show(value)}")
        return make(map(read_item, value))

    return read


def _pair(items: tuple[Any, ...]) -> Reader:
    readers = [_reader(item) for item in items]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise WireError(f"expected {len(readers)} values, got {_show(value)}")
        return tuple(reader(v) for reader, v in zip(readers, value, strict=True))

    return read


def _mapping(key: Any, item: Any) -> Reader:
    read_key, read_item = _reader(key), _reader(item)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise WireError(f"expected a map, got {_show(value)}")
        return {read_key(k): read_item(v) for k, v in value.items()}

    return read


def _union(options: tuple[Any, ...]) -> Reader:
    """At most one option that isn't a plain str, int or None."""
    plain = {option: _SCALARS[option] for option in options if option in (str, int, NoneType)}
    rest = [option for option in options if option not in plain]
    assert len(rest) <= 1, options
    read_rest = _reader(rest[0]) if rest else None

    def read(value: Any) -> Any:
        if (reader := plain.get(type(value))) is not None:
            return reader(value)
        if read_rest is None:
            names = ", ".join(option.__name__ for option in plain)
            raise WireError(f"expected one of {names}, got {_show(value)}")
        return read_rest(value)

    return read


def _dataclass(cls: type) -> Reader:
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    readers = [_FIELD_READERS.get((cls, name)) or _reader(hints[name]) for name in names]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise WireError(f"{cls.__name__} is a list of {len(readers)} fields, not {_show(value)}")
        try:
            return cls(*[reader(v) for reader, v in zip(readers, value, strict=True)])
        except WireError as error:
            raise WireError(f"{cls.__name__}.{_culprit(names, readers, value)}: {error}") from error

    return read


def _culprit(names: list[str], readers: list[Reader], values: list[Any]) -> str:
    """The field that was refused, found by reading again: the good path pays nothing for the message."""
    for name, reader, value in zip(names, readers, values, strict=True):
        try:
            reader(value)
        except WireError:
            return name
    raise AssertionError("a second reading found no fault")


def _reader(hint: Any) -> Reader:
    """The reader of a type hint. TypeError for a hint that the wire has no rule for: add one."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hint in _READERS:
        return _READERS[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _literal(args)
    if origin in (Union, UnionType):
        return _union(args)
    if origin is list:
        return _sequence(args[0], list)
    if origin is tuple:
        return _sequence(args[0], tuple) if args[1:] == (...,) else _pair(args)
    if origin in (dict, Mapping):
        return _mapping(*args)
    if isinstance(hint, type) and is_dataclass(hint):
        return _READERS.setdefault(hint, _dataclass(hint))
    raise TypeError(f"the wire has no rule for {hint}")


def _protocol() -> str:
    schema = [(cls.__name__, [(f.name, str(f.type)) for f in fields(cls)]) for cls in (*_MESSAGES, *_PARTS)]
    return f"draftwing-rank/1-{hashlib.sha256(repr(schema).encode()).hexdigest()[:8]}"


_SCALARS: dict[Any, Reader] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
    NoneType: _read_none,
}
_FIELD_READERS: dict[tuple[type, str], Reader] = {
    (SamplingParams, "seed"): _read_u64,
    (Request, "id"): _read_id,
    (Emission, "request_id"): _read_id,
    (messages.Cancel, "request_id"): _read_id,
    (messages.Refused, "request_id"): _read_id,
}
_READERS: dict[type, Reader] = {}
for _cls in (*_MESSAGES, *_PARTS):
    _reader(_cls)
_VALUES_OF = {cls: _values_of(cls) for cls in (*_MESSAGES, *_PARTS)}
PROTOCOL = _protocol()
"""Name of the protocol this side speaks."""
