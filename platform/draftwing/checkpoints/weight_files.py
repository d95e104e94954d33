"""What a folder's safetensors files hold, by their headers alone: a damaged file is found in milliseconds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwing.errors import ConfigError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit

# Bits an element takes, by the format's dtype names.
DTYPE_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    dtype: str
    shape: tuple[int, ...]
    elements: int


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """files in loading order; headers: the raw header bytes of each, held: the tensors it names, tensors: all."""

    files: tuple[Path, ...]
    headers: tuple[bytes, ...]
    held: tuple[dict[str, StoredTensor], ...]
    tensors: dict[str, StoredTensor]

    def bytes_as(self, float_bytes: int) -> int:
        """Memory of all tensors when the floating ones are held in float_bytes each."""
        bits = (8 * float_bytes if t.dtype in FLOAT_DTYPES else DTYPE_BITS[t.dtype] for t in self.tensors.values())
        return sum(b * t.elements for b, t in zip(bits, self.tensors.values(), strict=True)) // 8

    @property
    def float_dtypes(self) -> frozenset[str]:
        return frozenset(t.dtype for t in self.tensors.values()) & FLOAT_DTYPES


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is not a whole safetensors file: {why}; download or copy it again")


def _tensor(path: Path, name: str, entry: Any) -> tuple[StoredTensor, int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        bits = DTYPE_BITS[dtype]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError("not a size")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"the entry of tensor {name} has no valid dtype, shape and data_offsets") from error
    elements = 1
    for size in shape:
        elements *= size
    if end - begin != (bits * elements + 7) // 8:
        raise _damaged(path, f"tensor {name} of {dtype} {list(shape)} is stored in {end - begin} bytes")
    return StoredTensor(dtype, shape, elements), begin, end


def read_header(path: Path) -> tuple[bytes, dict[str, StoredTensor]]:
    """Raw header and tensors of one safetensors file; ConfigError when it is truncated or damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
            raise _damaged(path, "it does not start with a header length")
        header = file.read(length)
    if len(header) < length:
        raise _damaged(path, f"it ends inside its header ({size} bytes)")
    try:
        entries = json.loads(header)
    except ValueError:
        entries = None
    if not isinstance(entries, dict):
        raise _damaged(path, "its header is not a JSON object")
    entries.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    spans = []
    for name, entry in entries.items():
        tensors[name], begin, end = _tensor(path, name, entry)
        spans.append((begin, end))
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise _damaged(path, f"its tensors leave a gap or overlap at byte {at}")
        at = end
    if size != 8 + length + at:
        raise _damaged(path, f"it has {size} bytes where its header describes {8 + length + at}")
    return header, tensors


def _shards(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Files to read and, with an index, the file each tensor should be in."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE], {}
    index = folder / INDEX
    if index.is_file():
        try:
            placed: dict[str, str] = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{index} is not a weight index (JSON with weight_map); download it again") from error
        names = sorted(set(placed.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ConfigError(
                f"{folder} lacks {len(missing)} of the {len(names)} weight files its index names "
                f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}); download the model again"
            )
        return [folder / name for name in names], placed
    if any(folder.glob("pytorch_model*.bin")):
        raise ConfigError(
            f"{folder} has its weights only as pytorch_model.bin (pickle); Draftwing reads safetensors: "
            "take a revision that has them, or load the model with transformers once and save_pretrained() it"
        )
    raise ConfigError(f"{folder} has no weights: neither {SINGLE} nor {INDEX} is there")


def read_weight_files(folder: Path) -> WeightFiles:
    """Check every weight file of a model folder without reading the weights; ConfigError names the first fault."""
    files, placed = _shards(folder)
    headers, held = [], []
    tensors: dict[str, StoredTensor] = {}
    where: dict[str, str] = {}
    for path in files:
        header, found = read_header(path)
        headers.append(header)
        held.append(found)
        tensors.update(found)
        where.update(dict.fromkeys(found, path.name))
    astray = [name for name, file in placed.items() if where.get(name) != file]
    if astray:
        raise ConfigError(
            f"{folder}: {INDEX} places tensor {astray[0]} in {placed[astray[0]]}, which does not hold it; "
            "files of two revisions are mixed, download the model again"
        )
    return WeightFiles(tuple(files), tuple(headers), tuple(held), tensors)
