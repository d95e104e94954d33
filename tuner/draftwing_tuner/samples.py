"""An append-only file of what was measured, so that a run that stopped goes on where it was.

The first line names the schema and what was measured on what; each other one is a sample, or the seconds spent so far.
A last line that was cut off is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from draftwing.errors import ConfigError
from draftwing_tuner.grid import Cell

SCHEMA = 1


class SampleFile:
    """samples: milliseconds of each cell, in the order measured. spent_s: by all runs that wrote here."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        """ConfigError where the file is of another schema, or was measured on something else: the fields are named."""
        self.path = path
        self.samples: dict[Cell, list[float]] = {}
        self.spent_s = 0.0
        lines = _whole_lines(path)
        if lines:
            self._check(lines[0], key)
            for entry in lines[1:]:
                self._take(entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        if not lines:
            self._write({"schema": SCHEMA, "key": dict(key)})

    def add(self, cell: Cell, ms: float) -> None:
        self.samples.setdefault(cell, []).append(ms)
        self._write({"cell": asdict(cell), "ms": ms})

    def spend(self, spent_s: float) -> None:
        self.spent_s = spent_s
        self._write({"spent_s": spent_s})

    def close(self) -> None:
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def _check(self, head: dict[str, Any], key: Mapping[str, Any]) -> None:
        if head.get("schema") != SCHEMA:
            raise ConfigError(f"{self.path} has schema {head.get('schema')}; this version reads {SCHEMA}")
        known = head.get("key", {})
        differing = [name for name in sorted({*known, *key}) if known.get(name) != key.get(name)]
        if differing:
            shown = ", ".join(f"{name} {known.get(name)!r} (now {key.get(name)!r})" for name in differing)
            raise ConfigError(f"{self.path} was measured with {shown}; use another --out, or remove the file")

    def _take(self, entry: dict[str, Any]) -> None:
        if "cell" in entry:
            self.samples.setdefault(Cell(**entry["cell"]), []).append(float(entry["ms"]))
        elif "spent_s" in entry:
            self.spent_s = float(entry["spent_s"])


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Every entry; a line that was cut off while it was written goes, from the file too."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    entries = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} line {number} is not JSON ({error.msg}); remove the file") from None
    return entries
