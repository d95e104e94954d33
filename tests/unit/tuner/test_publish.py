"""Profiles: what is published is what is read, whole or not at all, and a wrong one is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftwing.errors import ConfigError, SetupError
from draftwing.policy.artifact import AcceptanceRow, CostRow, ScheduleRow, current, read_artifact
from draftwing.policy.cost import CostModel
from draftwing_tuner.history import STUDY, StudyRow, study_of
from draftwing_tuner.publish import publish

KEY = {"device": "a cpu", "model_digest": "m1", "drafter": "ngram()"}
COSTS = tuple(
    CostRow(component, batch, rows, 64, depth, width, 9, us, us * 0.9, us * 1.1, us * 0.99, us * 1.01)
    for component, batch, rows, depth, width, us in [
        ("verify", 1, 1, 0, 0, 10_000.0),
        ("verify", 1, 4, 0, 0, 13_000.0),
        ("verify", 4, 4, 0, 0, 13_100.0),
        ("verify", 4, 16, 0, 0, 25_000.0),
        ("draft", 1, 0, 4, 1, 2_000.0),
        ("draft", 2, 0, 2, 2, 3_000.0),
        ("catch_up", 1, 4, 0, 0, -20.0),
        ("overhead", 1, 0, 0, 0, 300.0),
    ]
)
ACCEPTANCE = (AcceptanceRow("depth", 1, 0.7, 0.1, 120.0, 0.6), AcceptanceRow("rank", 1, 0.0, -0.9, 60.0, 0.0))
SCHEDULE = (ScheduleRow(1, 512, (2, 1, 1), 6, 2.1, 80.0, 1.4), ScheduleRow(8, 512, (), 0, 1.0, 300.0, 1.0))


STUDY_ROWS = (StudyRow(1, 512, 0, 1.0, 1.0, "no draft"), StudyRow(1, 512, 1, 1.4, 1.4, "2x1x1, 6 nodes"))


def put(folder: Path, schedule: tuple[ScheduleRow, ...] = SCHEDULE, study: tuple[StudyRow, ...] = STUDY_ROWS) -> str:
    return publish(
        str(folder),
        KEY,
        costs=COSTS,
        cost_fit=[{"term": "constant", "at": 0.0, "coef": 9.0}],
        acceptance=ACCEPTANCE,
        schedule=schedule,
        study=study,
        block=False,
        about={"clock": "wall"},
    )


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_is_published_is_read(tmp_path: Path, scheme: str) -> None:
    digest = put(tmp_path)
    uri = f"{scheme}{tmp_path}"
    assert current(uri) == digest
    artifact = read_artifact(uri, KEY)
    assert (artifact.costs, artifact.acceptance, artifact.schedule) == (COSTS, ACCEPTANCE, SCHEDULE)
    assert artifact.digest == digest
    assert artifact.manifest.about == {"clock": "wall"}
    assert artifact.manifest.parents == []
    assert (tmp_path / digest / "cost_fit.parquet").is_file()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_its_curves_are_what_the_cost_model_fits(tmp_path: Path) -> None:
    put(tmp_path)
    curves = read_artifact(str(tmp_path), None).curves
    assert [(c.rows, c.context, c.verify_ms) for c in curves.verify][-1] == (16, 256, 25.0)
    assert [(c.batch, c.ms) for c in curves.draft_step_ms] == [(1, 0.5), (4, 1.5)]
    assert [(c.tokens, c.ms) for c in curves.catch_up_ms] == [(4, 0.0)]
    costs = CostModel.fit(curves)
    assert costs.draft_ms(1, 4) == pytest.approx(2.0)
    assert costs.verify_ms(16, 256) == pytest.approx(25.0, rel=0.02)


def test_the_same_content_is_the_same_profile_and_another_one_names_its_parent(tmp_path: Path) -> None:
    first = put(tmp_path)
    assert put(tmp_path) == first
    second = put(tmp_path, SCHEDULE[:1])
    assert second != first
    assert current(str(tmp_path)) == second
    assert read_artifact(str(tmp_path), KEY).manifest.parents == [first]
    assert read_artifact(str(tmp_path), KEY, first).schedule == SCHEDULE


def test_the_study_is_there_for_readers_and_missed_by_nobody(tmp_path: Path) -> None:
    put(tmp_path)
    assert study_of(read_artifact(str(tmp_path), KEY)) == STUDY_ROWS
    without = put(tmp_path, study=())
    assert not (tmp_path / without / STUDY).exists()
    assert study_of(read_artifact(str(tmp_path), KEY)) == ()


def test_an_empty_table_is_a_table(tmp_path: Path) -> None:
    put(tmp_path, ())
    assert read_artifact(str(tmp_path), KEY).schedule == ()


def test_a_profile_for_something_else_is_refused_by_field(tmp_path: Path) -> None:
    put(tmp_path)
    with pytest.raises(ConfigError, match="model_digest is 'm1' there and 'm2' here") as caught:
        read_artifact(str(tmp_path), {**KEY, "model_digest": "m2"})
    assert "device" not in str(caught.value)
    with pytest.raises(ConfigError, match="threads is None there and '4' here"):
        read_artifact(str(tmp_path), {**KEY, "threads": "4"})


@pytest.mark.parametrize("name", ["costs.parquet", "acceptance.parquet", "schedule.parquet", STUDY])
def test_a_changed_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / put(tmp_path) / name
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ConfigError, match=f"{name} is not the one"):
        read_artifact(str(tmp_path), KEY)
    file.unlink()
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        read_artifact(str(tmp_path), KEY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2; this version reads 1"),
        ({"files": {"costs.parquet": "0"}}, "lacks acceptance.parquet, schedule.parquet"),
        ({"key": 3}, "manifest.json: key"),
        ({"more": 1}, "manifest.json: more"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    manifest = tmp_path / put(tmp_path) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        read_artifact(str(tmp_path), KEY)


def test_where_nothing_was_published(tmp_path: Path) -> None:
    assert current(str(tmp_path)) is None
    with pytest.raises(ConfigError, match="run: draftwing tune"):
        read_artifact(str(tmp_path), KEY)
    with pytest.raises(ConfigError, match="can't be opened"):
        current("nosuch://bucket/profiles")
    (tmp_path / "CURRENT").write_text("0123\n")
    with pytest.raises(ConfigError, match=r"profile 0123 in .* has no manifest.json"):
        read_artifact(str(tmp_path), KEY)


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((SetupError, ConfigError), match="can't be"):
        put(tmp_path / "file" / "below")


def test_a_profile_without_a_verify_has_no_curves(tmp_path: Path) -> None:
    publish(
        str(tmp_path),
        KEY,
        costs=[replace(COSTS[0], component="overhead")],
        cost_fit=[],
        acceptance=[],
        schedule=[],
        block=True,
    )
    with pytest.raises(ConfigError, match="no cost of a verify"):
        _ = read_artifact(str(tmp_path), KEY).curves
