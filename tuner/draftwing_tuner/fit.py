"""From measured cells to the rows and terms of a profile, and how far the fit is off where it wasn't fitted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwing.policy.artifact import CostRow, curves_of_rows
from draftwing.policy.cost import CostModel
from draftwing_tuner.measure import Summary


@dataclass(frozen=True, slots=True)
class FitError:
    """Relative errors of V at the held-out cells, and at those whose row count no other cell has."""

    cells: int
    median: float
    largest: float
    worst: str
    between: int
    between_median: float
    between_largest: float


def cost_rows(summaries: Seq[Summary]) -> tuple[CostRow, ...]:
    """As a profile keeps them. A catch-up is a difference of two times, and may come out below zero."""
    return tuple(
        CostRow(
            component=(c := s.cell).part,
            batch=c.batch,
            rows=c.rows,
            context=c.context,
            depth=c.depth,
            width=c.width,
            n=s.n,
            median_us=s.median * 1e3,
            p20_us=s.p20 * 1e3,
            p95_us=s.p95 * 1e3,
            ci_lo_us=s.low * 1e3,
            ci_hi_us=s.high * 1e3,
        )
        for s in summaries
    )


def fit_terms(costs: CostModel) -> list[dict[str, Any]]:
    """The coefficients of V as (term, at, coef): what a reader needs to draw the fit. coef in milliseconds."""
    names = ["constant", "rows", *(["hinge"] * len(costs.verify.knots)), "experts"]
    places = [0.0, 0.0, *costs.verify.knots.tolist(), 0.0]
    terms = [
        {"term": name, "at": at, "coef": coef}
        for name, at, coef in zip(names, places, costs.verify.terms.tolist(), strict=False)
    ]
    stair = zip(costs.verify.stair.x.tolist(), costs.verify.stair.y.tolist(), strict=True)
    return [
        *terms,
        {"term": "context", "at": 0.0, "coef": costs.verify.context_ms},
        *({"term": "stair", "at": at, "coef": coef} for at, coef in stair),
    ]


def fit_error(summaries: Seq[Summary]) -> FitError | None:
    """The fit to the cells that aren't held out, asked for those that are. None with too few of either."""
    verify = [s for s in summaries if s.cell.part == "verify"]
    seen, held = [s for s in verify if not s.cell.held_out], [s for s in verify if s.cell.held_out]
    if len(seen) < 4 or not held:
        return None
    model = CostModel.fit(curves_of_rows(cost_rows(seen), name="held out", how="", block=False))
    rows = {s.cell.rows for s in seen}
    held = [s for s in held if s.cell.rows <= max(rows)]
    if not held:
        return None
    errors = np.array(
        [abs(float(model.verify_ms(s.cell.rows, s.cell.batch * s.cell.context)) / s.median - 1) for s in held]
    )
    between = errors[[s.cell.rows not in rows for s in held]]
    return FitError(
        cells=len(held),
        median=float(np.median(errors)),
        largest=float(errors.max()),
        worst=str(held[int(errors.argmax())].cell),
        between=len(between),
        between_median=float(np.median(between)) if len(between) else 0.0,
        between_largest=float(between.max()) if len(between) else 0.0,
    )
