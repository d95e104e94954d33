"""Names, types and shapes of the tensors in a torch archive (`.bin`, `.pt`), told without torch and without unpickling.

The archive is a zip file whose `data.pkl` is a program for a stack machine. It is read here as data: the few operations
that a dictionary of tensors is written with are followed, no name in it is ever looked up or called, and anything else
is refused.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwing.checkpoints.weight_files import MAX_HEADER_BYTES, StoredTensor
from draftwing.errors import ConfigError

STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
DTYPES = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bfloat16": "BF16", "float16": "F16", "float32": "F32"}
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how archives of before torch 1.6 begin: a number
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
CONTAINERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
LITERALS = ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE")
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class _Global:
    """Something of Python that the program names; only compared by name."""

    name: str


class _Mark:
    """Where on the stack a group of values begins."""


class _Strange(Exception):
    """What the program holds beside tensors."""


def read_archive_header(path: Path) -> dict[str, StoredTensor] | None:
    """The tensors of an archive; None where it has the form of before torch 1.6. ConfigError if it holds other things.

    A single tensor has the file's name. Reads the archive's program alone, kilobytes of any size of file.
    """
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                if file.read(len(OLD)) == OLD:
                    return None
            raise _Strange("it is no zip file")
        with zipfile.ZipFile(path) as archive:
            inside = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
            if len(inside) != 1 or inside[0].file_size > MAX_HEADER_BYTES:
                raise _Strange("it has no data.pkl of a usual size")
            held = _Machine().run(archive.read(inside[0]))
    except (_Strange, zipfile.BadZipFile, ValueError, IndexError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} can't be read as tensors alone ({error}); it is damaged or holds Python objects, which are "
            "never loaded: take a revision with safetensors"
        ) from error
    if isinstance(held, StoredTensor):
        return {path.stem: held}
    if not isinstance(held, dict) or not all(isinstance(value, StoredTensor) for value in held.values()):
        raise ConfigError(f"{path} holds a {type(held).__name__} of other things than tensors; expected tensors")
    return {str(name): value for name, value in held.items()}


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name == "STOP":
                return self.stack.pop()
            self._do(opcode.name, argument)
        raise _Strange("its program has no end")

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in LITERALS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in CONTAINERS:
            stack.append(CONTAINERS[name]())
        elif name == "MARK":
            stack.append(_Mark)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in TUPLES:
            parts = stack[-TUPLES[name] :]
            del stack[-TUPLES[name] :]
            stack.append(tuple(parts))
        elif name == "TUPLE":
            stack.append(tuple(self._group()))
        elif name == "GLOBAL":
            stack.append(_Global(argument))
        elif name == "STACK_GLOBAL":
            module, what = stack[-2:]
            stack[-2:] = [_Global(f"{module} {what}")]
        elif name == "BINPERSID":
            stack.append(_storage_type(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_made(stack.pop(), arguments))
        elif name in ("SETITEM", "SETITEMS"):
            parts = self._group() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update(zip(parts[::2], parts[1::2], strict=True))
        elif name == "BUILD" and isinstance(stack[-2], dict):
            stack.pop()  # attributes of an OrderedDict: versions of modules
        else:
            raise _Strange(f"it has the operation {name}")

    def _group(self) -> list[Any]:
        """What lies above the latest mark, taken off with it."""
        at = len(self.stack) - 1 - self.stack[::-1].index(_Mark)
        parts = self.stack[at + 1 :]
        del self.stack[at:]
        return parts


def _storage_type(reference: Any) -> str:
    """The type of the storage that ("storage", type, key, device, elements) refers to; "" where only a tensor knows."""
    kind, storage = reference[:2]
    if kind != "storage" or not isinstance(storage, _Global):
        raise _Strange(f"it refers to a {kind!r}")
    return STORAGES.get(storage.name.rpartition(" ")[2], "")


def _made(what: Any, arguments: Any) -> Any:
    name = what.name if isinstance(what, _Global) else repr(what)
    match name:
        case "collections OrderedDict":
            return {}
        case "torch._utils _rebuild_parameter":
            return arguments[0]
        case "torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor_v3":
            dtype = arguments[0]
            if name.endswith("v3") and isinstance(arguments[6], _Global):
                dtype = DTYPES.get(arguments[6].name.rpartition(" ")[2], "")
            if not dtype:
                raise _Strange("a tensor has a type that isn't known")
            shape = tuple(int(size) for size in arguments[2])
            return StoredTensor(dtype, shape, math.prod(shape))
        case _:
            raise _Strange(f"it calls {name}")
