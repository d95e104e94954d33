"""The whole of `draftwing tune` around a mock target: it publishes what it learned, and goes on after a stop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import pytest
from torch import Tensor

from draftwing.config_models import Config, DrafterConfig, PolicyConfig
from draftwing.core import SamplingParams
from draftwing.drafters.ngram import NgramDrafter
from draftwing.engine.batch import SequenceRows
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError
from draftwing.policy.artifact import read_artifact
from draftwing.policy.table import TablePolicy
from draftwing.testing.mock_target import MockBehaviour, MockTarget
from draftwing.testing.run_engine import assert_idle, make_engine
from draftwing_tuner import tuning
from draftwing_tuner.bench import CLOCKS
from draftwing_tuner.history import study_of, study_rows
from draftwing_tuner.report import command, document, print_result, write_report
from draftwing_tuner.session import Session
from draftwing_tuner.tasks import Spread, in_turn
from draftwing_tuner.tuning import Tuned, tune

PARAMS = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
PROMPTS = [[1, 2, 3, 1, 2], [4, 4, 5], [6, 1, 2], [3, 3, 3, 3], [2, 9]]
KEY = {"device": "mock", "model_digest": "m", "drafter": "ngram()"}


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = Clock()


class Timed(MockTarget):
    """A forward takes 10 ms and 0.5 ms a row on the clock: every cell is known at once, on any machine."""

    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        CLOCK.seconds += (10 + 0.5 * sum(len(s.tokens) for s in sequences)) / 1e3
        return super().forward(sequences)


@pytest.fixture(scope="module", autouse=True)
def virtual_clock() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CLOCKS, "wall", CLOCK)
        patch.setattr(tuning, "MOST_ROUNDS", 2)
        yield


def engine_of() -> Engine:
    runner = Timed(MockBehaviour(vocab_size=12, order=1, sharpness=8.0), slots=2048)
    return make_engine(runner, drafter=NgramDrafter(), blocks=128, block_tokens=16, sequences=2, context=256)


def session_of(folder: Path, drafters: list[DrafterConfig] | None = None) -> Session:
    drafters = [DrafterConfig(method="ngram", name="lookup")] if drafters is None else drafters
    config = Config(drafters=drafters, policy=PolicyConfig(mode="off"))
    return Session(config, engine_of(), None, KEY, "wall", folder)


@contextmanager
def here() -> Iterator[Spread]:
    yield in_turn


def run(session: Session) -> Tuned:
    return tune(session, PROMPTS, PARAMS, str(session.out / "profiles"), budget_s=1e6, trials=4, tasks=here)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Tuned]:
    session = session_of(tmp_path_factory.mktemp("tune"))
    return session, run(session)


def test_what_is_published_is_what_was_found(finished: tuple[Session, Tuned]) -> None:
    session, tuned = finished
    artifact = read_artifact(tuned.uri, KEY)
    assert artifact.digest == tuned.digest
    assert artifact.schedule == tuned.schedule
    assert artifact.costs == tuned.costs
    assert artifact.acceptance == tuned.learned.acceptance
    assert artifact.acceptance
    assert artifact.curves.verify
    assert study_of(artifact) == tuple(study_rows(tuned.learned.found))
    assert TablePolicy("lookup", artifact.schedule).largest.depth <= 8
    assert_idle(session.engine)


def test_the_study_tells_each_trial_and_the_best_so_far(finished: tuple[Session, Tuned]) -> None:
    _, tuned = finished
    for one in tuned.learned.found:
        rows = [
            row
            for row in study_rows(tuned.learned.found)
            if (row.batch, row.context) == (one.bucket.batch, one.bucket.context)
        ]
        assert [row.trial for row in rows] == list(range(len(rows)))
        assert (rows[0].value, rows[0].shape) == (1.0, "no draft")
        assert [row.best for row in rows] == [max(other.value for other in rows[: i + 1]) for i in range(len(rows))]


def test_held_out_prompts_teach_nothing(finished: tuple[Session, Tuned]) -> None:
    _, tuned = finished
    taught = [list(request.prompt or ()) for request in tuned.trace.requests]
    assert taught == [prompt for i, prompt in enumerate(PROMPTS) if i != 2]


def test_the_profile_is_compared_on_text_that_taught_nothing(finished: tuple[Session, Tuned]) -> None:
    _, tuned = finished
    assert [list(request.prompt or ()) for request in tuned.held.requests] == [PROMPTS[2]]
    names = [setting.name for setting in tuned.mixed]
    assert names[0] == "plain decoding"
    assert {*(f"fixed k={k}" for k in range(1, 9)), "untuned default", "table", "adaptive"} < {*names}
    assert len(names) == len({*names})
    plain, k4, untuned = (tuned.mixed[names.index(n)] for n in ("plain decoding", "fixed k=4", "untuned default"))
    assert (plain.overall, plain.ratios) == (1.0, (1.0, 1.0))
    assert untuned.ratios not in (plain.ratios, k4.ratios)  # it decides by itself
    assert tuned.mode in ("table", "adaptive")
    assert read_artifact(tuned.uri, KEY).manifest.about["mode"] == tuned.mode


def test_the_costs_are_the_machine_s(finished: tuple[Session, Tuned]) -> None:
    _, tuned = finished
    assert tuned.learned.costs.verify_ms([1.0, 7.0, 20.0]) == pytest.approx([10.5, 13.5, 20.0])
    assert tuned.error is not None
    assert tuned.error.largest < 1e-6


def test_the_same_command_finds_everything_done(
    finished: tuple[Session, Tuned], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, tuned = finished
    again = Session(session.config, engine_of(), None, KEY, "wall", session.out)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("collected again")

    monkeypatch.setattr("draftwing_tuner.collecting.collect", never)
    second = tune(again, PROMPTS, PARAMS, tuned.uri, budget_s=1e6, trials=4, tasks=here)
    assert second.schedule == tuned.schedule
    assert second.digest == tuned.digest


def test_the_report_needs_nothing_beside_it(finished: tuple[Session, Tuned], tmp_path: Path) -> None:
    session, tuned = finished
    line = command(session, tuned, Path("my.yaml"))
    path = tmp_path / "report.html"
    write_report(session, tuned, path, line)
    found: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    text = path.read_text()
    Reader().feed(text)
    assert not [tag for tag, _ in found if tag in ("script", "link", "img", "iframe")]
    assert not [attrs for _, attrs in found if "src" in attrs or "href" in attrs]
    assert "http" not in text
    assert sum(tag == "svg" for tag, _ in found) == 1 + len(tuned.learned.found)
    assert "-c my.yaml" in text
    assert tuned.digest in text


def test_results_are_printed(finished: tuple[Session, Tuned], capsys: pytest.CaptureFixture[str]) -> None:
    session, tuned = finished
    print_result(session, tuned, Path("report.html"), "draftwing serve")
    out = capsys.readouterr().out
    assert "use it: draftwing serve" in out
    assert "best single shape" in out
    entry = json.loads(json.dumps(document(session, tuned), allow_nan=False))
    assert entry["schema"] == 1
    assert entry["digest"] == tuned.digest


def test_without_a_drafter_or_prompts_nothing_is_done(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="configure a drafter"):
        run(session_of(tmp_path, drafters=[]))
    with pytest.raises(ConfigError, match="2 prompts are too few"):
        tune(session_of(tmp_path), PROMPTS[:2], PARAMS, str(tmp_path), budget_s=1.0, trials=4)
    with pytest.raises(ConfigError, match="configure a drafter"):
        tuning.collect_answers(session_of(tmp_path, drafters=[]), PROMPTS, PARAMS, 1.0)
    assert not list(tmp_path.iterdir())
