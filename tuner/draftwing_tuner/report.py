"""What a tuning run found: tables on the terminal, a JSON document, and one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from draftwing.commands.common import say
from draftwing.core import DraftShape
from draftwing.policy.artifact import ScheduleRow
from draftwing_tuner.history import shape_text
from draftwing_tuner.measuring import error_line
from draftwing_tuner.mixed import mixed_rows
from draftwing_tuner.paired import Ratio, Standing
from draftwing_tuner.search import Found
from draftwing_tuner.session import Session
from draftwing_tuner.show import table
from draftwing_tuner.tuning import Tuned

SCHEMA = 1
WIDTH, HEIGHT, EDGE = 640, 220, 44
PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Draftwing: $title</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{padding:.2rem .8rem .2rem 0;text-align:right}
th:first-child,td:first-child{text-align:left}th{border-bottom:1px solid #999;font-weight:600}
pre{background:#f4f4f4;padding:.7rem;overflow:auto}svg{display:block;max-width:100%}
</style></head><body>
$body
</body></html>
""")


def clock_of(standing: Standing, clock: str) -> Ratio:
    return standing.cpu if clock == "cpu" else standing.wall


def command(session: Session, tuned: Tuned, config: Path | None) -> str:
    """What uses the profile, in the mode that did better on the engine."""
    file = f" -c {config}" if config is not None else ""
    return f"draftwing serve{file} --set policy.profile={tuned.uri} --policy {tuned.mode}"


def document(session: Session, tuned: Tuned) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "profile": tuned.uri,
        "digest": tuned.digest,
        "key": dict(session.key),
        "clock": session.clock,
        "seconds": tuned.took_s,
        "cells": len(tuned.costs),
        "fit_error": None if tuned.error is None else asdict(tuned.error),
        "answers": len(tuned.trace.requests),
        "schedule": [asdict(row) for row in tuned.schedule],
        "mode": tuned.mode,
        "replayed": [{"setting": s.name, "overall": s.overall, "ratios": list(s.ratios)} for s in tuned.mixed],
        "validated": [
            {"concurrency": level.concurrency, **asdict(standing)}
            for level in tuned.levels
            for standing in level.standings
        ],
    }


def print_result(session: Session, tuned: Tuned, report: Path, line: str) -> None:
    columns, rows = schedule_rows(tuned.schedule)
    table("what to draft, by replay of your text on the measured costs", columns, rows)
    say()
    columns, rows = replay_rows(tuned)
    table("a load that climbs and falls, by replay of held-out prompts, rates over plain decoding's", columns, rows)
    say()
    columns, rows = validation_rows(session, tuned)
    table(f"on the engine, held-out prompts, paired blocks, {session.clock} clock", columns, rows)
    say()
    for text in (
        error_line(tuned.error),
        f"profile {tuned.digest} in {tuned.uri}",
        f"report {report}",
        f"use it: {line}",
    ):
        say(text)


def schedule_rows(schedule: Seq[ScheduleRow]) -> tuple[list[str], list[list[str]]]:
    columns = ["requests, up to", "context", "draft", "tokens/step", "tokens/s", "over plain"]
    return columns, [
        [
            f"{row.batch} at once",
            f"{row.context}",
            shape_text(DraftShape(row.branching, row.nodes)),
            f"{row.tokens:.2f}",
            f"{row.rate:.1f}",
            f"{row.margin:.2f}x",
        ]
        for row in schedule
    ]


def replay_rows(tuned: Tuned) -> tuple[list[str], list[list[str]]]:
    batches = sorted({one.bucket.batch for one in tuned.learned.found})
    return mixed_rows(tuned.mixed, batches)


def validation_rows(session: Session, tuned: Tuned) -> tuple[list[str], list[list[str]]]:
    rows = []
    for level in tuned.levels:
        for standing in level.standings:
            ratio = clock_of(standing, session.clock)
            rows.append(
                [
                    standing.policy,
                    f"{level.concurrency}",
                    f"{ratio.mean:.3f}",
                    f"{ratio.low:.3f} to {ratio.high:.3f}",
                    f"{standing.drafting:.0%}",
                    f"{standing.tokens:.2f}",
                    f"{standing.rounds}",
                ]
            )
    return ["policy", "concurrency", "over plain", "95 %", "steps that draft", "tokens/step", "rounds"], rows


def write_report(session: Session, tuned: Tuned, path: Path, line: str) -> None:
    parts = [
        f"<h1>{escape(session.config.model.served_name)}, {escape(session.key['drafter'])}</h1>",
        f"<p>{escape(session.key['device'])}; profile <code>{tuned.digest}</code> in "
        f"<code>{escape(tuned.uri)}</code>; {tuned.took_s:.0f} s; times by the {session.clock} clock.</p>",
        "<h2>Use it</h2>",
        f"<pre>{escape(line)}</pre>",
        "<h2>On the engine, with held-out prompts</h2>",
        "<p>Rates over plain decoding's on the same traffic: paired blocks of steps that mirror each other, so that "
        "what else the machine does hits both. A bucket that was slower than plain beyond its interval drafts "
        "nothing.</p>",
        _table(*validation_rows(session, tuned)),
        "<h2>What to draft</h2>",
        _table(*schedule_rows(tuned.schedule)),
        "<h2>Replay</h2>",
        f"<p>{len(tuned.held.requests)} answers to held-out prompts, decoded plainly, replayed on the measured costs "
        "under a load that climbs and falls; the same requests for every setting. Rates over plain decoding's, at each "
        "concurrency and over the whole.</p>",
        _table(*replay_rows(tuned)),
        "<h2>What a verify costs</h2>",
        f"<p>{escape(error_line(tuned.error))}.</p>",
        _cost_chart(tuned),
        "<h2>The search</h2>",
        *(_trials_chart(one) for one in tuned.learned.found),
    ]
    title = escape(session.config.model.served_name)
    path.write_text(PAGE.substitute(title=title, body="\n".join(parts)), encoding="utf-8")


def _table(columns: Seq[str], rows: Seq[Seq[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cost_chart(tuned: Tuned) -> str:
    """Measured medians as dots, the fit at the least context as a line."""
    cells = [row for row in tuned.costs if row.component == "verify"]
    rows = np.arange(1.0, max(row.rows for row in cells) + 1)
    least = min(row.batch * row.context for row in cells)
    line = list(zip(rows.tolist(), tuned.learned.costs.verify_ms(rows, least).tolist(), strict=True))
    dots = [(float(row.rows), row.median_us / 1e3) for row in cells]
    return _chart("rows verified", "ms", dots, line)


def _trials_chart(one: Found) -> str:
    dots = [(float(number), float(np.exp(value))) for number, value, _ in one.trials]
    best = np.maximum.accumulate([ratio for _, ratio in dots]).tolist()
    line = [(number, ratio) for (number, _), ratio in zip(dots, best, strict=True)]
    title = f"<h3>{one.bucket}: {escape(shape_text(one.shape))}, {one.margin:.2f}x plain</h3>"
    return title + _chart("trial", "over plain", dots, line)


def _chart(across: str, up: str, dots: Seq[tuple[float, float]], line: Seq[tuple[float, float]]) -> str:
    every = [*dots, *line]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(0.0, *(y for _, y in every)), max(y for _, y in every)

    def at(x: float, y: float) -> tuple[float, float]:
        wide, tall = WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE
        return (
            EDGE + wide * (x - left) / max(right - left, 1e-9),
            HEIGHT - EDGE - tall * (y - low) / max(high - low, 1e-9),
        )

    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in (at(*point) for point in dots))
    base, top = HEIGHT - EDGE, EDGE
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(up)} by {escape(across)}">'
        f'<path d="M{EDGE} {top}V{base}H{WIDTH - EDGE}" fill="none" stroke="#999"/>'
        f'<polyline points="{points}" fill="none" stroke="#1666b0" stroke-width="1.5"/>'
        f'<g fill="#c2410c" fill-opacity=".7">{circles}</g><g font-size="12" fill="#444">'
        f'<text x="{EDGE}" y="{base + 16}">{left:g}</text>'
        f'<text x="{WIDTH - EDGE}" y="{base + 16}" text-anchor="end">{right:g} {escape(across)}</text>'
        f'<text x="{EDGE}" y="{top - 8}">{high:.3g} {escape(up)}</text>'
        f'<text x="{EDGE - 6}" y="{base}" text-anchor="end">{low:g}</text></g></svg>'
    )
