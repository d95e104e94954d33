"""Run a folder of golden cases and tell what came of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from draftwing.errors import ConfigError
from draftwing.testing.goldens.case import Case, CaseError
from draftwing.testing.goldens.kinds import KINDS, check_for

PASS, FAIL = "PASS", "FAIL"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one case. largest: largest difference of floats. faults: one line each."""

    case: str
    kind: str
    status: str
    largest: float | None = None
    faults: tuple[str, ...] = ()


def goldens_folder(default: Path) -> Path:
    """`DRAFTWING_GOLDENS` if set, else the default."""
    return Path(os.environ.get("DRAFTWING_GOLDENS") or default)


def case_folders(root: Path) -> list[Path]:
    """The case folders under `root`. ConfigError if there is none."""
    inside = root.iterdir() if root.is_dir() else ()
    found = sorted(path for path in inside if path.is_dir() and not path.name.startswith((".", "__")))
    if not found:
        raise ConfigError(f"{root} holds no golden cases; set DRAFTWING_GOLDENS to a folder of case folders")
    return found


def run_case(folder: Path) -> Result:
    """Run one case; whatever is wrong with it is a result, not an exception."""
    kind = "?"
    try:
        case = Case(folder)
        kind = case.kind
        if kind not in KINDS:
            return Result(folder.name, kind, FAIL, faults=(f"unknown kind {kind!r}; known: {', '.join(KINDS)}",))
        case.check_parts()
        verdict = check_for(kind)(case)
    except CaseError as error:
        return Result(folder.name, kind, FAIL, faults=(str(error),))
    except Exception as error:  # noqa: BLE001  a crash in one case must not hide the others
        return Result(folder.name, kind, FAIL, faults=(f"{type(error).__name__}: {error}",))
    faults = tuple(verdict.faults) if verdict.compared else ("nothing was compared",)
    return Result(folder.name, kind, PASS if verdict.passed else FAIL, verdict.largest, faults)


def select(folders: Iterable[Path], wanted: Sequence[str]) -> list[Path]:
    """Cases whose kind or name matches one of the patterns, all without patterns. ConfigError where none does."""
    if not wanted:
        return list(folders)
    chosen: dict[Path, None] = {}
    folders = list(folders)
    for pattern in wanted:
        hits = [f for f in folders if fnmatchcase(f.name, pattern) or fnmatchcase(_kind(f), pattern)]
        if not hits:
            raise ConfigError(f"no case here has kind or name {pattern!r}; known kinds: {', '.join(KINDS)}")
        chosen |= dict.fromkeys(hits)
    return sorted(chosen)


def _kind(folder: Path) -> str:
    try:
        return Case(folder).kind
    except CaseError:
        return ""


def table(results: Sequence[Result]) -> str:
    """One line a case, faults below their case."""
    lines = [f"{'case':28s} {'kind':20s} {'result':8s} largest difference"]
    for result in results:
        largest = "" if result.largest is None else f"{result.largest:.2e}"
        lines.append(f"{result.case:28s} {result.kind:20s} {result.status:8s} {largest}".rstrip())
        lines += [f"    {fault}" for fault in result.faults[:5]]
        if len(result.faults) > 5:
            lines.append(f"    and {len(result.faults) - 5} more")
    counts = {status: sum(r.status == status for r in results) for status in (PASS, FAIL)}
    lines.append(", ".join(f"{count} {status}" for status, count in counts.items()))
    return "\n".join(lines)
