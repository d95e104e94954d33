"""The study behind the live profile: of each load, how the best rate over plain decoding's grew with the trials."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import groupby, pairwise

from draftwing.errors import DraftwingError
from draftwing.policy.artifact import read_artifact
from draftwing_tuner.history import StudyRow, study_of

WIDTH, HEIGHT = 120, 32  # of a curve, in its own units
FLOOR = 0.5  # of plain decoding's rate; what is slower is drawn there
AGAIN_S = 60.0  # until what could not be read is tried again


@dataclass(frozen=True, slots=True)
class Curve:
    """One load. best: rate over plain's, shape: what made it. line, trials: points of the best so far, and of all."""

    sequences: int
    context: int
    count: int
    best: float
    shape: str
    line: str
    trials: list[tuple[float, float]]
    plain_y: float


@dataclass(frozen=True, slots=True)
class Study:
    """digest: of the profile. missing: why there are no curves, as a sentence."""

    digest: str = ""
    missing: str = ""
    curves: tuple[Curve, ...] = ()


class Studies:
    """uri: `policy.profile`. Reads the study of the profile that is live, once."""

    def __init__(self, uri: str | None) -> None:
        self._uri = uri
        self._known = Study()
        self._read_at = 0.0
        self._one = asyncio.Lock()

    async def of(self, digest: str) -> Study:
        if not digest or self._uri is None:
            return Study(missing="No profile is live, so there is no study. draftwing tune makes one.")
        async with self._one:
            stale = bool(self._known.missing) and time.monotonic() - self._read_at > AGAIN_S
            if self._known.digest != digest or stale:
                self._known = await asyncio.to_thread(read, self._uri, digest)
                self._read_at = time.monotonic()
            return self._known


def read(uri: str, digest: str) -> Study:
    """Blocks: the place may be far away."""
    try:
        rows = study_of(read_artifact(uri, None, digest))
    except DraftwingError as error:
        return Study(digest, f"The study can't be read: {error}.")
    if not rows:
        return Study(digest, "This profile was published without its study.")
    return Study(digest, curves=curves(rows))


def curves(rows: tuple[StudyRow, ...]) -> tuple[Curve, ...]:
    """By context and batch. All share one scale, so that they can be compared."""
    top = max(1.0, *(row.best for row in rows))
    ordered = sorted(rows, key=lambda row: (row.context, row.batch, row.trial))
    return tuple(
        _curve(batch, context, list(some), top)
        for (context, batch), some in groupby(ordered, key=lambda row: (row.context, row.batch))
    )


def _curve(batch: int, context: int, rows: list[StudyRow], top: float) -> Curve:
    step = WIDTH / max(len(rows) - 1, 1)

    def y(value: float) -> float:
        return round(HEIGHT - 2 - (HEIGHT - 4) * max(value - FLOOR, 0.0) / (top - FLOOR), 1)

    best = max(rows, key=lambda row: row.value)
    points = [(0.0, y(rows[0].best))]
    for place, (before, row) in enumerate(pairwise(rows), 1):
        points += [(round(place * step, 1), y(each.best)) for each in (before, row)]
    return Curve(
        sequences=batch,
        context=context,
        count=len(rows),
        best=best.value,
        shape=best.shape,
        line=" ".join(f"{x},{height}" for x, height in points),
        trials=[(round(place * step, 1), y(row.value)) for place, row in enumerate(rows)],
        plain_y=y(1.0),
    )
