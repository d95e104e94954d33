"""The header of a GGUF file: checked against the file's size, and written again without the vocabulary.

Arrays are skipped, not kept: a vocabulary of 262,144 strings is most of a header and all of the time it takes to read.
"""

from __future__ import annotations

import math
import mmap
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from draftwing.errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# Value types of the format: struct code by type number. String and array are of variable size.
FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# llama.cpp's names for arrays that only the tokenizer reads.
VOCABULARY = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges"))

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape: outputs first, as torch has it. bytes: stored."""

    name: str
    elements: int
    type: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """metadata: scalars and strings by key; arrays: their lengths by key.

    spans: the bytes of each key with its value. table: the bytes of the tensor table. data: first byte of the weights.
    """

    path: Path
    version: int
    metadata: dict[str, Scalar]
    arrays: dict[str, int]
    tensors: tuple[GgufTensor, ...]
    spans: dict[str, tuple[int, int]]
    table: tuple[int, int]
    data: int
    alignment: int

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)


class _Damage(Exception):
    """What is wrong with the file, in words."""


class _Reader:
    """A cursor over the mapped file that never reads past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def skip(self, count: int) -> int:
        """Move on by count bytes; where they start."""
        start = self.at
        if count < 0 or start + count > len(self.data):
            raise _Damage(f"it ends inside its header ({len(self.data)} bytes)")
        self.at = start + count
        return start

    def number(self, code: str) -> int | float | bool:
        start = self.skip(struct.calcsize("<" + code))
        value: int | float | bool = struct.unpack_from("<" + code, self.data, start)[0]
        return value

    def count(self, code: str = "Q") -> int:
        return int(self.number(code))

    def string(self) -> str:
        length = self.count()
        start = self.skip(length)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise _Damage(f"the text at byte {start} is not UTF-8") from error

    def array(self) -> int:
        """Skip an array; its length."""
        kind, length = self.count("I"), self.count()
        if kind in FIXED:
            self.skip(struct.calcsize("<" + FIXED[kind]) * length)
        elif kind == STRING:
            for _ in range(length):
                self.skip(self.count())
        else:
            raise _Damage(f"it holds an array of unknown type {kind}")
        return length


def _metadata(reader: _Reader, count: int) -> tuple[dict[str, Scalar], dict[str, int], dict[str, tuple[int, int]]]:
    metadata: dict[str, Scalar] = {}
    arrays: dict[str, int] = {}
    spans = {}
    for _ in range(count):
        start = reader.at
        key, kind = reader.string(), reader.count("I")
        if kind == ARRAY:
            arrays[key] = reader.array()
        elif kind == STRING:
            metadata[key] = reader.string()
        elif kind in FIXED:
            metadata[key] = reader.number(FIXED[kind])
        else:
            raise _Damage(f"its key {key!r} has a value of unknown type {kind}")
        spans[key] = (start, reader.at)
    return metadata, arrays, spans


def _tensors(reader: _Reader, count: int) -> tuple[tuple[GgufTensor, ...], list[tuple[str, int, int]]]:
    """The tensors, and (name, offset, bytes) of each in the data section."""
    tensors = []
    extents = []
    for _ in range(count):
        name, dimensions = reader.string(), reader.count("I")
        if dimensions > 8:
            raise _Damage(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reader.count() for _ in range(dimensions))[::-1]
        elements = math.prod(shape)
        number, offset = reader.count("I"), reader.count()
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise _Damage(f"tensor {name!r} has the unknown type {number}") from error
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        if elements % per_block:
            raise _Damage(f"tensor {name!r} has {elements} elements, not whole blocks of {kind.name}")
        size = elements // per_block * block_bytes
        tensors.append(GgufTensor(name, elements, kind.name, shape, size))
        extents.append((name, offset, size))
    return tuple(tensors), extents


def _read(path: Path, data: mmap.mmap) -> GgufHeader:
    reader = _Reader(data)
    if data[:4] != MAGIC:
        raise _Damage("it does not start with the letters GGUF")
    reader.skip(4)
    version = reader.count("I")
    if version not in VERSIONS:
        raise _Damage(f"its version is {version}; versions 2 and 3 can be read")
    tensor_count, key_count = reader.count(), reader.count()
    metadata, arrays, spans = _metadata(reader, key_count)
    if "general.architecture" not in metadata:
        raise _Damage("its metadata names no general.architecture")
    start = reader.at
    tensors, extents = _tensors(reader, tensor_count)
    table = (start, reader.at)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damage(f"its general.alignment is {alignment!r}")
    begin = -(-reader.at // alignment) * alignment
    for name, offset, size in extents:
        if begin + offset + size > len(data):
            raise _Damage(f"tensor {name!r} ends at byte {begin + offset + size}, the file at byte {len(data)}")
    return GgufHeader(path, version, metadata, arrays, tensors, spans, table, begin, alignment)


def read_gguf(path: Path) -> GgufHeader:
    """The header of a GGUF file; ConfigError when the file is damaged or its tensors are not all there."""
    if path.stat().st_size < 24:
        raise ConfigError(f"{path} is not a whole GGUF file: it has only {path.stat().st_size} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _read(path, data)
        except _Damage as damage:
            raise ConfigError(f"{path} is not a whole GGUF file: {damage}; download or copy it again") from damage


def write_without_vocabulary(header: GgufHeader, target: Path) -> None:
    """The same GGUF file without the arrays that only a tokenizer reads."""
    kept = [span for key, span in header.spans.items() if key not in VOCABULARY]
    with header.path.open("rb") as source, target.open("wb") as out:
        out.write(MAGIC + struct.pack("<IQQ", header.version, len(header.tensors), len(kept)))
        for start, end in [*kept, header.table]:
            source.seek(start)
            out.write(source.read(end - start))
        out.write(bytes(-out.tell() % header.alignment))
        source.seek(header.data)
        shutil.copyfileobj(source, out, 1 << 20)
