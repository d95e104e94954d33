"""Traces: what requests were answered by plain decoding, and what a drafter proposed at every place of every answer.

By rule R1 the answer is the same whatever is drafted, so a trace replays any policy exactly, as long as a proposal
depends on nothing but the tokens before it.

A trace is a folder of Parquet files: `requests.parquet` and one `proposals-NAME.parquet` for each drafter. Position i
of an answer follows the prompt and the answer's first i tokens; position 0 is never drafted, because the prompt's last
row brings its token. A proposal is the largest tree that was asked for, its nodes in the order of levels and siblings
best first, so that any smaller shape is a part of it. Confidences are kept in parts of 1/1024, as policies use them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftwing.core import DraftTree, IntArray
from draftwing.drafters.tree import depths
from draftwing.errors import ConfigError, SetupError

SCHEMA = 1
PARTS = 1024
REQUESTS, PROPOSALS = "requests.parquet", "proposals-"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One answer. kind: code, chat, summary or any other word. prompt: None where it isn't ours to pass on.

    output: all of plain decoding's tokens. temperature, seed: how they were chosen.
    """

    id: str
    kind: str
    prompt_len: int
    output: tuple[int, ...]
    prompt: tuple[int, ...] | None = None
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Proposals:
    """One drafter's trees at the positions of one answer, laid end to end.

    starts [T + 1]: where each position's nodes begin. parents: index into the position's own nodes, -1 below the root.
    parts: confidences times 1024; None where the drafter gives none.
    """

    starts: IntArray
    tokens: IntArray
    parents: IntArray
    parts: IntArray | None = None

    @classmethod
    def of(cls, drafts: Seq[DraftTree]) -> Proposals:
        """drafts: one a position, in any order of nodes that puts parents first."""
        ordered = [level_order(draft) for draft in drafts]
        empty = np.empty(0, dtype=np.int64)
        parts = [np.rint(d.confidences.astype(np.float64) * PARTS) for d in ordered if d.confidences is not None]
        complete = len(parts) == sum(len(d) > 0 or d.confidences is not None for d in ordered)
        return cls(
            np.cumsum([0, *map(len, ordered)]),
            np.concatenate([empty, *(d.tokens for d in ordered)]),
            np.concatenate([empty, *(d.parents for d in ordered)]),
            np.concatenate([empty, *parts]).astype(np.int64) if parts and complete else None,
        )

    def at(self, position: int) -> DraftTree:
        """The whole tree of a position; past the last one, nothing."""
        if position + 1 >= len(self.starts):
            return DraftTree.empty()
        part = slice(int(self.starts[position]), int(self.starts[position + 1]))
        confidences = None if self.parts is None else (self.parts[part] / PARTS).astype(np.float32)
        return DraftTree(self.tokens[part], self.parents[part], confidences)


@dataclass(frozen=True, slots=True)
class Trace:
    """proposals: by drafter, one for each request, in order. about: model, drafters, origin: whatever explains it."""

    requests: tuple[TraceRequest, ...]
    proposals: Mapping[str, tuple[Proposals, ...]]
    about: Mapping[str, Any] = field(default_factory=dict)


def level_order(draft: DraftTree) -> DraftTree:
    """The same tree, level by level; siblings keep their order."""
    order = np.argsort(depths(draft.parents), kind="stable")
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    confidences = None if draft.confidences is None else draft.confidences[order]
    return DraftTree(draft.tokens[order], place[draft.parents[order]], confidences)


def write_trace(trace: Trace, folder: Path) -> None:
    """ConfigError where the folder can't be written."""
    requests = {
        name: [getattr(request, name) for request in trace.requests]
        for name in ("id", "kind", "temperature", "seed", "prompt_len", "prompt", "output")
    }
    ids = requests["id"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(requests, _request_fields(), trace.about, folder / REQUESTS)
        for name, proposals in trace.proposals.items():
            columns = {
                "id": ids,
                "nodes": [np.diff(one.starts) for one in proposals],
                "tokens": [one.tokens for one in proposals],
                "parents": [one.parents for one in proposals],
                "confidences": [one.parts for one in proposals],
            }
            _write(columns, _proposal_fields(), trace.about, folder / f"{PROPOSALS}{name}.parquet")
    except OSError as error:
        raise ConfigError(f"trace {folder} can't be written: {error}") from None


def read_trace(folder: Path) -> Trace:
    """ConfigError names the file and what is wrong with it."""
    table, about = _read(folder / REQUESTS, _request_fields())
    requests = tuple(_request(row) for row in table)
    proposals = {}
    for path in sorted(folder.glob(f"{PROPOSALS}*.parquet")):
        rows, _ = _read(path, _proposal_fields())
        if [row["id"] for row in rows] != [request.id for request in requests]:
            raise ConfigError(f"trace {path}: its ids are not those of {REQUESTS}, in the same order")
        proposals[path.stem.removeprefix(PROPOSALS)] = tuple(
            _checked(row, len(request.output), path) for row, request in zip(rows, requests, strict=True)
        )
    return Trace(requests, proposals, about)


def _request(row: Mapping[str, Any]) -> TraceRequest:
    columns: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return TraceRequest(**columns)


def _checked(row: Mapping[str, Any], positions: int, path: Path) -> Proposals:
    counts, tokens, parents = (np.array(row[name], dtype=np.int64) for name in ("nodes", "tokens", "parents"))
    parts = None if row["confidences"] is None else np.array(row["confidences"], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    own = np.arange(len(tokens)) - np.repeat(starts[:-1], counts)
    fits = len(counts) == positions and starts[-1] == len(tokens) == len(parents)
    if not fits or (parts is not None and len(parts) != len(tokens)):
        raise ConfigError(f"trace {path}: the proposals of {row['id']!r} have columns that don't fit together")
    if (parents < -1).any() or (parents >= own).any():
        raise ConfigError(f"trace {path}: {row['id']!r} has a node that comes before its parent")
    return Proposals(starts, tokens, parents, parts)


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as _parquet  # noqa: F401  reached as pa.parquet
    except ImportError as error:
        raise SetupError("traces are Parquet files, which need pyarrow; install draftwing[tune]") from error
    return pa


def _request_fields() -> list[tuple[str, Any]]:
    pa = _arrow()
    ids = pa.list_(pa.int32())
    return [
        ("id", pa.string()),
        ("kind", pa.string()),
        ("temperature", pa.float64()),
        ("seed", pa.uint64()),
        ("prompt_len", pa.int32()),
        ("prompt", ids),
        ("output", ids),
    ]


def _proposal_fields() -> list[tuple[str, Any]]:
    pa = _arrow()
    small = pa.list_(pa.int16())
    return [
        ("id", pa.string()),
        ("nodes", small),
        ("tokens", pa.list_(pa.int32())),
        ("parents", small),
        ("confidences", small),
    ]


def _write(columns: Mapping[str, Any], fields: list[tuple[str, Any]], about: Mapping[str, Any], path: Path) -> None:
    pa = _arrow()
    metadata = {"draftwing_trace": str(SCHEMA), "about": json.dumps(dict(about), sort_keys=True)}
    table = pa.table(columns, schema=pa.schema(fields, metadata=metadata))
    pa.parquet.write_table(table, path, compression="zstd", compression_level=19)


def _read(path: Path, fields: list[tuple[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    pa = _arrow()
    try:
        table = pa.parquet.read_table(path)
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} holds no trace; expected what `draftwing tune collect` wrote") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"trace {path} can't be read: {error}") from None
    metadata = table.schema.metadata or {}
    version = metadata.get(b"draftwing_trace", b"none").decode()
    if version != str(SCHEMA):
        raise ConfigError(f"trace {path} has schema version {version}; this version of draftwing reads {SCHEMA}")
    expected = pa.schema(fields)
    if not table.schema.equals(expected):
        raise ConfigError(f"trace {path} has columns {table.schema.names}; expected {expected.names} with their types")
    return table.to_pylist(), json.loads(metadata[b"about"])
