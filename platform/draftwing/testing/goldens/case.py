"""One golden case as files on disk, and the comparing of our numbers with its numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
REQUIRED = ("case", "kind", "target", "drafter", "args", "tolerance", "tensors")


class CaseError(Exception):
    """A case folder that can't be used as it is."""


class Case:
    """A case folder; everything in it is read on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "case.json"
        try:
            self.meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CaseError(f"{path} can't be read: {error}") from error
        if lacking := [key for key in REQUIRED if key not in self.meta]:
            raise CaseError(f"{path} lacks {', '.join(lacking)}")

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def kind(self) -> str:
        return str(self.meta["kind"])

    @property
    def args(self) -> dict[str, Any]:
        args: dict[str, Any] = self.meta["args"]
        return args

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """All tensors of the case. CaseError where file and description differ."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.folder / "case.safetensors"
        try:
            tensors: dict[str, Array] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CaseError(f"{path} can't be read: {error}") from error
        if odd := sorted(set(tensors) ^ set(self.meta["tensors"])):
            raise CaseError(f"{path} and case.json disagree about {', '.join(odd)}")
        return tensors

    def tensor(self, name: str) -> Array:
        if name not in self.tensors:
            raise CaseError(
                f"{self.folder / 'case.safetensors'} has no tensor {name}; it has {', '.join(self.tensors)}"
            )
        return self.tensors[name]

    def part(self, name: str) -> Path | None:
        """The folder of `target` or `drafter`, None where the case has none."""
        relative: str | None = self.meta[name]
        if relative is None:
            return None
        folder: Path = (self.folder / relative).resolve()
        if not (folder / "config.json").is_file():
            raise CaseError(f"{name} is {relative!r}, but {folder} is no model folder; copy it beside the case")
        return folder

    def check_parts(self) -> None:
        for name in ("target", "drafter"):
            self.part(name)

    def tolerance(self, name: str) -> tuple[float, float]:
        """(atol, rtol) of a quantity."""
        entry = self.meta["tolerance"].get(name)
        if not isinstance(entry, dict):
            raise CaseError(f"{self.folder / 'case.json'}: tolerance.{name} is {entry!r}, expected atol and rtol")
        return float(entry.get("atol", 0.0)), float(entry.get("rtol", 0.0))


@dataclass(slots=True)
class Verdict:
    """What comparing a case found. largest: largest absolute difference of floats, None if none were compared."""

    compared: int = 0
    largest: float | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.compared > 0 and not self.faults

    def equal(self, what: str, got: Any, want: Any) -> None:
        """Tokens, counts and indexes: exact."""
        self.compared += 1
        a, b = np.asarray(got), np.asarray(want)
        if a.shape != b.shape:
            self.faults.append(f"{what}: shape {a.shape}, expected {b.shape}; got {a.tolist()}, expected {b.tolist()}")
        elif not np.array_equal(a, b):
            at = tuple(int(i) for i in np.argwhere(a != b)[0])
            self.faults.append(f"{what}: {a[at]} at {list(at)}, expected {b[at]}")

    def close(self, what: str, got: Any, want: Any, tolerance: tuple[float, float]) -> None:
        """Floats: |got - want| <= atol + rtol * |want|; anything not finite is wrong."""
        self.compared += 1
        a, b = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
        if a.shape != b.shape:
            self.faults.append(f"{what}: shape {a.shape}, expected {b.shape}")
            return
        atol, rtol = tolerance
        off = np.abs(a - b)
        if off.size:
            self.largest = float(np.max([self.largest or 0.0, off.max()]))
        wrong = ~(off <= atol + rtol * np.abs(b))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            self.faults.append(f"{what}: {a[at]:.6g} at {list(at)}, expected {b[at]:.6g}; {wrong.sum()} values differ")
