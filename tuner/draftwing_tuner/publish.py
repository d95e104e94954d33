"""Writes a profile beside the others, whole and checksummed, and only then points CURRENT at it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pyarrow import Table
from pyarrow.fs import FileSystem, FileType, LocalFileSystem
from pyarrow.parquet import write_table

from draftwing.errors import SetupError
from draftwing.policy.artifact import (
    ACCEPTANCE,
    COST_FIT,
    COSTS,
    CURRENT,
    MANIFEST,
    SCHEDULE,
    SCHEMA,
    AcceptanceRow,
    CostRow,
    Key,
    ScheduleRow,
    current,
    open_uri,
)
from draftwing_tuner.history import STUDY, StudyRow


def publish(
    uri: str,
    key: Key,
    *,
    costs: Seq[CostRow],
    cost_fit: Seq[Mapping[str, Any]],
    acceptance: Seq[AcceptanceRow],
    schedule: Seq[ScheduleRow],
    block: bool,
    study: Seq[StudyRow] = (),
    about: Mapping[str, Any] | None = None,
) -> str:
    """The digest of the new profile, a function of what it holds; the one in use before is its parent.

    A reader sees the old profile or the new one, never a part. SetupError where the uri can't be written.
    """
    files = {
        COSTS: _parquet([asdict(row) for row in costs]),
        COST_FIT: _parquet(cost_fit),
        ACCEPTANCE: _parquet([asdict(row) for row in acceptance]),
        SCHEDULE: _parquet([asdict(row) for row in schedule]),
    }
    if study:
        files[STUDY] = _parquet([asdict(row) for row in study])
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    content = {"schema": SCHEMA, "key": dict(key), "block": block, "files": sums}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    before = current(uri)
    parents = [before] if before is not None and before != digest else []
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = content | {"created": created, "parents": parents, "about": dict(about or {})}
    filesystem, root = open_uri(uri)
    try:
        _write_folder(filesystem, root, digest, files | {MANIFEST: _json(manifest)})
        _swap(filesystem, root, digest)
    except OSError as error:
        raise SetupError(f"policy.profile {uri} can't be written: {error}") from error
    return digest


def prepare(uri: str) -> None:
    """Before anything long: ConfigError where the uri can't be opened, SetupError where it can't be written."""
    filesystem, root = open_uri(uri)
    try:
        filesystem.create_dir(root, recursive=True)
    except OSError as error:
        raise SetupError(f"policy.profile {uri} can't be written: {error}") from error


def _write_folder(filesystem: FileSystem, root: str, digest: str, files: Mapping[str, bytes]) -> None:
    """All files of a profile. On a disk the folder appears whole; elsewhere its manifest comes last."""
    final = f"{root}/{digest}"
    if filesystem.get_file_info(f"{final}/{MANIFEST}").type != FileType.NotFound:
        return  # the digest says that the content is the same
    whole = isinstance(filesystem, LocalFileSystem)
    folder = f"{root}/.{digest}.part" if whole else final
    filesystem.create_dir(folder, recursive=True)
    for name, data in files.items():
        _write(filesystem, f"{folder}/{name}", data)
    if whole:
        filesystem.move(folder, final)


def _swap(filesystem: FileSystem, root: str, digest: str) -> None:
    """A disk renames over the old pointer; an object store replaces an object as a whole."""
    pointer, data = f"{root}/{CURRENT}", f"{digest}\n".encode()
    if isinstance(filesystem, LocalFileSystem):
        _write(filesystem, f"{pointer}.part", data)
        filesystem.move(f"{pointer}.part", pointer)
    else:
        _write(filesystem, pointer, data)


def _write(filesystem: FileSystem, path: str, data: bytes) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


def _parquet(rows: Seq[Mapping[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    table = Table.from_pylist([dict(row) for row in rows])
    write_table(table.replace_schema_metadata({"draftwing_schema": str(SCHEMA)}), buffer)
    return buffer.getvalue()


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
