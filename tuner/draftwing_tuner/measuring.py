"""`draftwing tune measure`: the cost grid of a config on its engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from draftwing.commands.common import say
from draftwing.policy.artifact import curves_of_rows
from draftwing.policy.curves import CostCurves
from draftwing_tuner.bench import Bench
from draftwing_tuner.fit import FitError, cost_rows, fit_error
from draftwing_tuner.grid import grid
from draftwing_tuner.measure import Progress, Summary, measure
from draftwing_tuner.samples import SampleFile
from draftwing_tuner.session import Session
from draftwing_tuner.show import bar, table

SAMPLES, CURVES = "measure.jsonl", "curves.json"
SCHEMA = 1


def measure_costs(session: Session, text: list[int], budget_s: float) -> list[Summary]:
    """Goes on where an earlier run stopped. text: token ids that fill the cache."""
    bench = Bench(session.engine, session.config.drafter_name, text, session.now)
    cells = grid(bench.bounds, session.engine.drafting.drafter.traits)
    file = SampleFile(session.out / SAMPLES, session.file_key)
    try:
        with bar("measuring") as update:

            def show(progress: Progress) -> None:
                note = f"cells known to 2 %, {max(progress.left_s, 0):.0f} s left"
                update(progress.done, progress.cells, note)

            found = measure(cells, bench.sample, file, budget_s=budget_s, show=show)
    finally:
        bench.close()
        file.close()
    curves = curves_in(session, found)
    (session.out / CURVES).write_text(curves.model_dump_json(indent=1), encoding="utf-8")
    return found


def curves_in(session: Session, found: list[Summary]) -> CostCurves:
    return curves_of_rows(
        cost_rows(found),
        name=session.config.model.served_name,
        how=f"draftwing tune measure, {session.clock} clock, {session.key['device']}, medians",
        block=session.block,
    )


def document(session: Session, found: list[Summary]) -> dict[str, Any]:
    error = fit_error(found)
    return {
        "schema": SCHEMA,
        "out": str(session.out),
        "clock": session.clock,
        "key": dict(session.key),
        "cells": [asdict(row) for row in cost_rows(found)],
        "known_to_2_percent": sum(s.done for s in found),
        "fit_error": None if error is None else asdict(error),
        "curves": json.loads(curves_in(session, found).model_dump_json()),
    }


def print_costs(session: Session, found: list[Summary]) -> None:
    """One table, then the error of the fit and where everything lies."""
    rows = [
        [str(s.cell), f"{s.n}", f"{s.median:.3f}", f"{s.p20:.3f}", f"± {s.width:.1%}"]
        for s in sorted(found, key=lambda s: (s.cell.part, s.cell.rows, s.cell.batch, s.cell.context, s.cell.depth))
    ]
    table("step costs, milliseconds", ["cell", "samples", "median", "p20", "95 %"], rows)
    say(f"{sum(s.done for s in found)} of {len(found)} cells known to 2 %, {session.clock} clock")
    say(error_line(fit_error(found)))
    say(f"curves: {session.out / CURVES}")


def error_line(error: FitError | None) -> str:
    if error is None:
        return "too few cells to test the fit; give a longer --budget"
    line = f"fit, at {error.cells} cells it didn't see: median error {error.median:.1%}, largest {error.largest:.1%}"
    if error.between:
        line += f"; at {error.between} row counts that were never measured: median {error.between_median:.1%}"
        line += f", largest {error.between_largest:.1%}"
    return f"{line} ({error.worst})"
