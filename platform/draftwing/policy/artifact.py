"""Profiles: what a machine and its text were measured to be, as a checksummed folder that the tuner published.

    <uri>/CURRENT                     the digest of the profile in use, swapped as a whole
    <uri>/<digest>/manifest.json      schema, the key it was measured for, parents, and each file's checksum
    <uri>/<digest>/costs.parquet      measured cells; cost_fit.parquet: the fitted terms, for readers
    <uri>/<digest>/acceptance.parquet what the acceptance model knows before it has seen a request
    <uri>/<digest>/schedule.parquet   the table: a draft shape for each batch and context
    <uri>/<digest>/study.parquet      optional, for readers: the trials that the table comes from

The uri is a folder, or anything that pyarrow.fs reads (s3://, gs://, hdfs://).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwing.errors import ConfigError, SetupError
from draftwing.policy.curves import BatchCell, CostCurves, TokensCell, VerifyCell

SCHEMA = 1
CURRENT, MANIFEST = "CURRENT", "manifest.json"
COSTS, COST_FIT, ACCEPTANCE, SCHEDULE = (f"{name}.parquet" for name in ("costs", "cost_fit", "acceptance", "schedule"))
Key = Mapping[str, str]
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class CostRow:
    """One measured cell; times in microseconds, ci_*: 95 % interval of the median.

    component: verify, draft, catch_up or overhead. rows: verified in all, or tokens to catch up. context: cached tokens
    of each sequence. depth, width: of a draft.
    """

    component: str
    batch: int
    rows: int
    context: int
    depth: int
    width: int
    n: int
    median_us: float
    p20_us: float
    p95_us: float
    ci_lo_us: float
    ci_hi_us: float
    source: str = "offline"


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """part "depth": w and b of draft depth `index` (1 below the root). "rank", "class": b of that place among siblings
    (0 first), or of that class of requests, with w 0. n: labels behind it. mean: accepted share of the first children
    among them."""

    part: str
    index: int
    w: float
    b: float
    n: float
    mean: float


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """What the table drafts up to this batch and context (tokens of each sequence).

    tokens: expected of one sequence in a step. rate: expected tokens a second of the batch. margin: rate over plain's.
    """

    batch: int
    context: int
    branching: tuple[int, ...]
    nodes: int
    tokens: float
    rate: float
    margin: float


class Manifest(BaseModel):
    """manifest.json. files: sha256 of each. block: the drafter drafts all depths in one call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = Field(alias="schema")
    key: dict[str, str]
    created: str
    parents: list[str] = []
    block: bool = False
    files: dict[str, str]
    about: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Artifact:
    """others: the rows of tables that only readers want, by file name."""

    digest: str
    manifest: Manifest
    costs: tuple[CostRow, ...]
    acceptance: tuple[AcceptanceRow, ...]
    schedule: tuple[ScheduleRow, ...]
    others: Mapping[str, list[dict[str, Any]]]

    @property
    def curves(self) -> CostCurves:
        return curves_of_rows(self.costs, name=self.digest, how="a profile", block=self.manifest.block)


def curves_of_rows(rows: tuple[CostRow, ...], *, name: str, how: str, block: bool) -> CostCurves:
    """block: see `Manifest`. A draft level is priced by the rows it runs, batch x width. ConfigError: no verify."""
    part: dict[str, list[CostRow]] = {"verify": [], "draft": [], "catch_up": [], "overhead": []}
    for row in sorted(rows, key=lambda r: (r.rows, r.batch, r.context)):
        part[row.component].append(row)
    if not part["verify"]:
        raise ConfigError(f"profile {name} holds no cost of a verify; measure for longer (--budget)")
    levels: dict[int, list[float]] = {}
    for row in part["draft"]:
        levels.setdefault(row.batch * row.width, []).append(row.median_us / 1e3 / (1 if block else row.depth))
    drafts = [BatchCell(batch=n, ms=float(np.median(ms))) for n, ms in sorted(levels.items())]
    return CostCurves(
        name=name,
        kind="measured",
        how=how,
        verify=tuple(
            VerifyCell(batch=r.batch, rows=r.rows, context=r.batch * r.context, verify_ms=r.median_us / 1e3)
            for r in part["verify"]
        ),
        draft_step_ms=tuple(drafts) or (BatchCell(batch=1, ms=0.0),),
        overhead_ms=tuple(BatchCell(batch=r.batch, ms=r.median_us / 1e3) for r in part["overhead"]),
        catch_up_ms=tuple(TokensCell(tokens=r.rows, ms=max(r.median_us / 1e3, 0.0)) for r in part["catch_up"]),
    )


def open_uri(uri: str) -> tuple[Any, str]:
    """A pyarrow file system and the path in it. SetupError without pyarrow, ConfigError for a uri it can't open."""
    try:
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise SetupError("profiles are Parquet files, and pyarrow is not installed; install draftwing[tune]") from error
    try:
        filesystem, path = FileSystem.from_uri(uri if "://" in uri else _absolute(uri))
    except (ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"policy.profile is {uri!r}, which can't be opened: {error}") from error
    return filesystem, path.rstrip("/")


def current(uri: str) -> str | None:
    """The digest of the profile in use; None where none was published. Cheap: hot loading polls it."""
    filesystem, root = open_uri(uri)
    data = _read(filesystem, f"{root}/{CURRENT}")
    return None if data is None else data.decode("ascii", errors="replace").strip()


def read_artifact(uri: str, key: Key | None, digest: str | None = None) -> Artifact:
    """The profile in use, or the one with this digest, every file checked.

    key None: whatever it was measured for. ConfigError where there is none, where it is of a newer schema, where a file
    isn't what the manifest says, or where the key differs: then the fields are named.
    """
    filesystem, root = open_uri(uri)
    digest = current(uri) if digest is None else digest
    if digest is None:
        raise ConfigError(f"policy.profile is {uri!r}, where no profile was published; run: draftwing tune")
    where = f"profile {digest} in {uri}"
    manifest = _manifest(_read(filesystem, f"{root}/{digest}/{MANIFEST}"), where)
    if key is not None:
        _check_key(manifest.key, key, where)
    tables = {name: _table(filesystem, f"{root}/{digest}", name, manifest, where) for name in manifest.files}
    return Artifact(
        digest,
        manifest,
        parsed_rows(CostRow, tables.pop(COSTS), where),
        parsed_rows(AcceptanceRow, tables.pop(ACCEPTANCE), where),
        tuple(_shaped(row) for row in parsed_rows(ScheduleRow, tables.pop(SCHEDULE), where)),
        tables,
    )


def differing(known: Key, wanted: Key) -> list[str]:
    """The fields in which two keys differ."""
    return [name for name in sorted({*known, *wanted}) if known.get(name) != wanted.get(name)]


def _check_key(known: Key, wanted: Key, where: str) -> None:
    if fields_ := differing(known, wanted):
        shown = "; ".join(f"{name} is {known.get(name)!r} there and {wanted.get(name)!r} here" for name in fields_)
        raise ConfigError(f"{where} was made for something else: {shown}; run draftwing tune here")


def _manifest(data: bytes | None, where: str) -> Manifest:
    if data is None:
        raise ConfigError(f"{where} has no {MANIFEST}")
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}: {MANIFEST}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if manifest.schema_version != SCHEMA:
        raise ConfigError(f"{where} has schema {manifest.schema_version}; this version reads {SCHEMA}")
    if missing := {COSTS, ACCEPTANCE, SCHEDULE} - manifest.files.keys():
        raise ConfigError(f"{where} lacks {', '.join(sorted(missing))}")
    return manifest


def _table(filesystem: Any, folder: str, name: str, manifest: Manifest, where: str) -> list[dict[str, Any]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    data = _read(filesystem, f"{folder}/{name}")
    if data is None or hashlib.sha256(data).hexdigest() != manifest.files[name]:
        raise ConfigError(f"{where}: {name} is {'missing' if data is None else 'not the one that was published'}")
    try:
        rows: list[dict[str, Any]] = read_table(io.BytesIO(data)).to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{where}: {name} can't be read: {error}") from error
    return rows


def parsed_rows(kind: type[Row], rows: Seq[Mapping[str, Any]], where: str) -> tuple[Row, ...]:
    """A table's rows as what they are. ConfigError where its columns aren't those of the kind."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for row in rows[:1]:
        if odd := row.keys() ^ names:
            raise ConfigError(f"{where}: column {sorted(odd)[0]} of {kind.__name__} is missing or unknown")
    return tuple(kind(**row) for row in rows)


def _shaped(row: ScheduleRow) -> ScheduleRow:
    return ScheduleRow(row.batch, row.context, tuple(row.branching), row.nodes, row.tokens, row.rate, row.margin)


def _read(filesystem: Any, path: str) -> bytes | None:
    """A file's bytes, None where there is none."""
    try:
        with filesystem.open_input_stream(path) as stream:
            data: bytes = stream.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"policy.profile: {path} can't be read: {error}") from error
    return data


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
