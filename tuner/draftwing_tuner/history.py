"""The study behind a profile, as rows that readers show: `study.parquet`, beside the tables that a server reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from math import exp
from typing import TYPE_CHECKING

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.policy.artifact import Artifact, ScheduleRow, parsed_rows

if TYPE_CHECKING:
    from draftwing_tuner.search import Found

STUDY = "study.parquet"
NOTHING = "no draft"
BEST = 3


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One trial of the bucket of this batch and context (tokens of each sequence).

    value: its rate over plain decoding's by replay. best: the greatest value up to it. shape: what it drafted, in
    words.
    """

    batch: int
    context: int
    trial: int
    value: float
    best: float
    shape: str


def study_rows(found: Iterable[Found]) -> list[StudyRow]:
    """Every trial, bucket by bucket, in the order they were made."""
    rows = []
    for one in found:
        best = 0.0
        for trial, value, shape in one.trials:
            best = max(best, exp(value))
            rows.append(StudyRow(one.bucket.batch, one.bucket.context, trial, exp(value), best, shape_text(shape)))
    return rows


def study_of(artifact: Artifact) -> tuple[StudyRow, ...]:
    """Nothing where a profile was published without its study. ConfigError where its columns are others."""
    return parsed_rows(StudyRow, artifact.others.get(STUDY, ()), f"profile {artifact.digest}")


def shape_text(shape: DraftShape) -> str:
    return f"{'x'.join(map(str, shape.branching))}, {shape.nodes} nodes" if shape.nodes else NOTHING


def shape_from(text: str) -> DraftShape:
    """What `shape_text` wrote. ValueError for anything else."""
    if text == NOTHING:
        return NO_DRAFT
    match = re.fullmatch(r"(\d+(?:x\d+)*), (\d+) nodes", text)
    if match is None:
        raise ValueError(f"{text!r} is no draft shape")
    return DraftShape(tuple(map(int, match[1].split("x"))), int(match[2]))


def best_shapes(study: Iterable[StudyRow], schedule: Iterable[ScheduleRow]) -> list[DraftShape]:
    """What the schedule drafts, and what was best in each bucket's study: the fixed settings to compare with."""
    values: dict[tuple[int, int], dict[str, float]] = {}
    for row in study:
        values.setdefault((row.batch, row.context), {})[row.shape] = row.value
    best = [shape_from(text) for bucket in values.values() for text in nlargest(BEST, bucket, key=bucket.__getitem__)]
    return list(dict.fromkeys([*(DraftShape(row.branching, row.nodes) for row in schedule), *best]))
