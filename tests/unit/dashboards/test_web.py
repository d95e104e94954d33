"""The page under /dash: what it says of what engines report, that it needs nothing from elsewhere, and bad input."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import httpx
import pytest

from draftwing.core import EngineCounters, PolicyStatus
from draftwing.parallel.messages import RankStats
from draftwing.policy import adaptive
from draftwing_dashboards.web.router import router
from draftwing_dashboards.web.study import Study
from draftwing_dashboards.web.view import REASONS, view
from draftwing_dashboards.web.what_if import Question, answer, parse
from draftwing_serve.http_api import make_app
from draftwing_serve.metrics import EngineTotals
from tests.unit.serve.fakes import FakeEngine, make_client, make_core

T = TypeVar("T")
STATUS = PolicyStatus(
    mode="adaptive",
    drafter="lookup",
    setting="k=4 for 3 of 5",
    reason="<b>pays</b>",
    ratio=1.42,
    half_width=0.05,
    predicted=1.5,
    cost_error=0.03,
    profile="ab12",
    schedule=[(1, 6, 1.9), (64, 0, 1.0)],
)


class Reporting(FakeEngine):
    async def stats(self, timeout_s: float = 1.0) -> RankStats:
        stats = await super().stats(timeout_s)
        stats.policy = STATUS
        return stats


def bounded(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


def get(path: str, engine: FakeEngine | None = None, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        core = make_core(engine or Reporting())
        app = make_app(core)
        if not any(getattr(route, "path", "") == "/dash" for route in app.routes):
            app.include_router(router(core))
        await core.pool.refresh()
        async with make_client(core, app) as client:
            return await client.get(path, headers=headers)

    return bounded(ask())


def test_the_first_screen_answers_the_questions() -> None:
    page = get("/dash")
    assert page.status_code == 200
    for text in (
        "1.42x plain decoding",
        "1.37 to 1.47",
        "k=4 for 3 of 5",
        "&lt;b&gt;pays&lt;/b&gt;",
        "Nothing.",
        "ab12",
    ):
        assert text in page.text
    assert "<b>" not in page.text


def test_nothing_comes_from_elsewhere() -> None:
    page = get("/dash")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"""(?:src|href|action)="([^"]*)""", page.text) == [
        "/dash/static/dash.css",
        "/dash/static/dash.js",
        "/dash#h-what-if",
    ]
    assert " style=" not in page.text
    assert not re.search(r"\son\w+=", page.text)
    for name, kind in (("dash.css", "text/css"), ("dash.js", "text/javascript")):
        assert get(f"/dash/static/{name}").headers["content-type"].startswith(kind)
    for name in ("router.py", "..%2Frouter.py", "none"):
        assert get(f"/dash/static/{name}").status_code == 404


def test_without_a_policys_word_it_says_so() -> None:
    page = get("/dash", FakeEngine())
    assert "Speculation is off" in page.text
    assert "no map" in page.text


@pytest.mark.parametrize(
    ("ratio", "half_width", "tone", "said"),
    [
        (1.3, 0.1, "good", "1.30x"),
        (0.8, 0.1, "bad", "0.80x"),
        (1.05, 0.1, "unknown", "not sure yet"),
        (None, None, "unknown", "Not measured"),
    ],
)
def test_the_answer_is_as_sure_as_its_interval(
    ratio: float | None, half_width: float | None, tone: str, said: str
) -> None:
    policy = PolicyStatus("adaptive", "lookup", "off", "", ratio=ratio, half_width=half_width)
    seen = view([RankStats(pid=1, state="ready", policy=policy)])
    assert seen.tone == tone
    assert said in seen.answer


def told(**differing: Any) -> PolicyStatus:
    return replace(STATUS, reason="because", **differing)


def test_a_pause_and_its_reason_are_metrics() -> None:
    totals = EngineTotals()
    totals.update({"tcp://a": RankStats(pid=1, state="ready", policy=told(paused=True))})
    samples = {sample.name: sample for family in totals.collect() for sample in family.samples}
    assert samples["draftwing_policy_paused"].value == 1
    assert samples["draftwing_policy_reason_info"].labels == {"replica": "0", "reason": "because"}


def test_what_holds_speculation_off_is_the_answer() -> None:
    paused, tripped = told(paused=True, tripped=True), told(tripped=True)
    for policy, said in ((paused, "Speculation is paused"), (tripped, "The guard holds speculation off")):
        seen = view([RankStats(pid=1, state="ready", policy=policy)])
        assert seen.answer == said
        assert "because" in seen.detail
    assert view([RankStats(pid=1, state="ready", policy=paused)]).problems == []


def test_a_ratio_is_worth_no_more_than_the_costs_that_it_rests_on() -> None:
    seen = view([RankStats(pid=1, state="ready", policy=told(cost_error=4.0))])
    assert (seen.answer, seen.tone) == ("1.42x plain decoding, not to be trusted", "unknown")
    assert "400%" in seen.detail
    assert any("cost model is off by 400%" in problem for problem in seen.problems)


def test_every_reason_of_the_adaptive_policy_has_words() -> None:
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(adaptive))) if isinstance(node, ast.Call)]
    made = [call.args[2] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "_plan"]
    short = {str(node.value) for each in made for node in ast.walk(each) if isinstance(node, ast.Constant)}
    assert {f"adaptive: {reason}" for reason in short} == set(REASONS)
    seen = view([RankStats(pid=1, state="ready", policy=replace(STATUS, reason="adaptive: no room"))])
    assert seen.why == REASONS["adaptive: no room"]
    assert view([RankStats(pid=1, state="ready", policy=replace(STATUS, reason="fixed"))]).why == "fixed"
    assert view([]).why == "no reason given"


def test_engines_are_judged_together() -> None:
    policies = (told(), told(ratio=1.22, half_width=0.12), told(ratio=None, half_width=None))
    stats = [RankStats(pid=i, state="ready", policy=policy) for i, policy in enumerate(policies)]
    seen = view(stats, silent=1)
    assert seen.answer == "1.32x plain decoding"
    assert "1.25 to 1.38" in seen.detail
    assert seen.problems == ["1 of 4 engines don't answer."]
    stats[1].policy = told(paused=True)
    (problem,) = view(stats).problems
    assert problem.startswith("Speculation is paused on 1 of 3 engines only")


def test_an_engine_that_makes_no_steps_is_named() -> None:
    stats = RankStats(pid=1, state="ready", running=2, last_step_age_s=45.0)
    assert view([stats]).problems == ["An engine with 2 requests made no step for 45 s."]
    stats.running = 0
    assert view([stats]).problems == []


def test_problems_are_named() -> None:
    counters = EngineCounters(bad_drafts=3, preemptions=2)
    policy = PolicyStatus("adaptive", "lookup", "off", "it was slow", tripped=True)
    problems = view([RankStats(pid=1, state="ready", counters=counters, policy=policy)]).problems
    assert [line.split()[0] for line in problems] == ["The", "3", "2"]
    assert "it was slow" in problems[0]
    assert view([]).problems == ["No engine answers."]


def test_engines_are_added_up() -> None:
    one = EngineCounters(drafts=4, accepted_tokens=6, accepted_per_depth=[4, 2], generated_tokens=10, draft_s=1.0)
    two = EngineCounters(drafts=4, accepted_tokens=2, accepted_per_depth=[2], generated_tokens=6, forward_s=3.0)
    seen = view([RankStats(pid=i, state="ready", counters=each) for i, each in enumerate((one, two))])
    assert seen.acceptance_length == 2.0
    assert [(each.depth, each.share) for each in seen.depths] == [(1, 0.75), (2, 0.25)]
    assert dict(seen.parts)["forward"] == 0.75
    assert seen.tokens == 16


def test_what_if_is_the_closed_form() -> None:
    found = answer(Question(alpha=0.7, k=4, draft=0.0, row=0.0))
    assert found.tokens == pytest.approx(2.7731)
    assert found.speedup == pytest.approx(2.7731)
    assert answer(Question(alpha=0.1, k=4, draft=1.0, row=1.0)).best_k == 0
    page = get("/dash?alpha=0.9&k=4&draft=0&row=0")
    assert "4.10 tokens a verify" in page.text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("alpha=2", "alpha is &#39;2&#39;; expected a number from 0 to 1"),
        ("alpha=nan", "alpha is"),
        ("k=1.5", "expected a whole number"),
        ("k=99", "expected a number from 0 to 32"),
        ("row=x%22%3E%3Cscript%3E", "row is"),
    ],
)
def test_a_wrong_question_is_named(query: str, said: str) -> None:
    page = get(f"/dash?{query}")
    assert page.status_code == 400
    assert said in page.text
    assert "<script>" not in page.text


def test_fields_left_out_keep_their_values() -> None:
    assert parse({"k": " 3 "}) == Question(k=3)


def test_pieces_arrive_as_they_change() -> None:
    from draftwing_dashboards.web import router as module

    async def first_two() -> list[str]:
        seen_now = (view([]), view([RankStats(pid=1, state="ready", policy=STATUS)]))
        views = [module.Screen(each, Study(missing="none")) for each in seen_now]

        async def seen() -> Any:
            return views.pop(0) if len(views) > 1 else views[0]

        module.PERIOD_S, period = 0.0, module.PERIOD_S
        try:
            events = module._events(seen)
            return [await anext(events), await anext(events), await anext(events)]
        finally:
            module.PERIOD_S = period

    opening, changed, same = bounded(first_two())
    assert "No engine answers" in opening
    assert "1.42x plain" in changed
    assert same == ": nothing new\n\n"
