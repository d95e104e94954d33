"""The study of the live profile on /dash: read once, off the event loop, and a sentence where there is none."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from draftwing_dashboards.web import study as module
from draftwing_dashboards.web.router import Screen, _piece
from draftwing_dashboards.web.study import HEIGHT, WIDTH, Studies, Study, curves
from draftwing_dashboards.web.view import view
from draftwing_tuner.history import StudyRow
from draftwing_tuner.publish import publish
from tests.unit.tuner.test_publish import ACCEPTANCE, COSTS, SCHEDULE

ROWS = (
    StudyRow(1, 256, 0, 1.0, 1.0, "no draft"),
    StudyRow(1, 256, 1, 0.8, 1.0, "1x1, 2 nodes"),
    StudyRow(1, 256, 2, 2.0, 2.0, "<b>, 4 nodes"),
    StudyRow(8, 256, 0, 1.0, 1.0, "no draft"),
)


def published(folder: Path, study: tuple[StudyRow, ...] = ROWS) -> str:
    fit = [{"term": "constant", "at": 0.0, "coef": 9.0}]
    tables = {"costs": COSTS, "cost_fit": fit, "acceptance": ACCEPTANCE, "schedule": SCHEDULE}
    return publish(str(folder), {"model": "m"}, **tables, block=True, study=study, about={})  # type: ignore[arg-type]


def seen(studies: Studies, *digests: str) -> list[Study]:
    async def run() -> list[Study]:
        return [await studies.of(digest) for digest in digests]

    return asyncio.run(run())


def test_the_best_so_far_by_trial() -> None:
    one, eight = curves(ROWS)
    assert (one.sequences, one.count, one.best, one.shape) == (1, 3, 2.0, "<b>, 4 nodes")
    at = {0.8: 24.4, 1.0: 20.7, 2.0: 2.0}
    assert one.trials == [(0.0, at[1.0]), (WIDTH / 2, at[0.8]), (WIDTH, at[2.0])]
    assert one.line == "0.0,20.7 60.0,20.7 60.0,20.7 120.0,20.7 120.0,2.0"
    assert one.plain_y == eight.plain_y == at[1.0]
    assert eight.trials == [(0.0, at[1.0])]
    for curve in (one, eight):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in curve.trials)


def test_it_is_read_once_and_not_by_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = published(tmp_path)
    threads = []

    def study_of(artifact: object) -> tuple[StudyRow, ...]:
        threads.append(threading.current_thread())
        return ROWS

    monkeypatch.setattr(module, "study_of", study_of)
    first, second = seen(Studies(str(tmp_path)), digest, digest)
    assert first is second
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_the_page_shows_it(tmp_path: Path) -> None:
    (study,) = seen(Studies(str(tmp_path)), published(tmp_path))
    html = _piece("study", Screen(view([]), study))
    assert html.count("<polyline") == 2
    assert "&lt;b&gt;, 4 nodes" in html
    assert study.digest in html


@pytest.mark.parametrize("case", ["no profile", "no place", "no study", "gone", "damaged"])
def test_without_one_a_sentence_says_so(case: str, tmp_path: Path) -> None:
    digest = published(tmp_path, study=() if case == "no study" else ROWS)
    if case == "damaged":
        (tmp_path / digest / "study.parquet").write_bytes(b"PAR1")
    uri = None if case == "no place" else str(tmp_path)
    (study,) = seen(Studies(uri), {"no profile": "", "gone": "0" * 16}.get(case, digest))
    html = _piece("study", Screen(view([]), study))
    said = {
        "no study": "published without its study",
        "gone": "has no manifest.json",
        "damaged": "study.parquet is not the one that was published",
    }
    assert said.get(case, "No profile is live") in html
    assert "<svg" not in html


def test_what_could_not_be_read_is_tried_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies = Studies(str(tmp_path / "later"))
    digest = published(tmp_path)
    (missing,) = seen(studies, digest)
    (tmp_path / "later").symlink_to(tmp_path)
    assert seen(studies, digest) == [missing]
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    (found,) = seen(studies, digest)
    assert found.curves
