from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftwing.errors import ConfigError
from draftwing.policy.closed_form import best_length, expected_tokens
from draftwing.policy.cost import Correction, CostModel, Line, held_out_error, nnls
from draftwing.policy.curves import Assumptions, BatchCell, CostCurves, VerifyCell, read_curves


def curves(taken: dict[tuple[int, int], float], **assumptions: object) -> CostCurves:
    cells = tuple(VerifyCell(batch=1, rows=r, context=c, verify_ms=ms) for (r, c), ms in taken.items())
    draft = (BatchCell(batch=1, ms=1.0), BatchCell(batch=3, ms=2.0))
    return CostCurves(name="x", verify=cells, draft_step_ms=draft, assumptions=Assumptions.model_validate(assumptions))


BUMPY = {(1, 256): 13.9, (2, 256): 21.3, (3, 256): 29.9, (4, 256): 21.7, (8, 256): 30.6, (16, 256): 37.7}


def test_measured_row_counts_are_met_and_others_interpolated() -> None:
    model = CostModel.fit(curves(BUMPY))
    assert model.verify_ms([1, 2, 3, 4, 8, 16]) == pytest.approx([13.9, 21.3, 29.9, 21.7, 30.6, 37.7])
    assert 21.7 < float(model.verify_ms(6)) < 30.6
    assert float(model.verify_ms(32)) > 37.7
    assert model.verify.context_ms == 0.0  # one level of context tells nothing


def test_terms_are_found_again() -> None:
    def truth(rows: int, context: int) -> float:
        return 5 + 0.02 * rows + 1e-4 * context + 0.05 * 64 * (1 - (7 / 8) ** rows)

    taken = {(r, c): truth(r, c) for r in (1, 2, 4, 8, 16, 32, 64, 128) for c in (256, 4096, 65536)}
    with_experts = curves(taken, experts=64, active=8)
    model = CostModel.fit(with_experts)
    assert model.verify.context_ms == pytest.approx(1e-4, rel=1e-6)
    assert float(model.verify_ms(23, 1000)) == pytest.approx(truth(23, 1000), rel=1e-6)
    assert max(held_out_error(with_experts)) < 1e-6
    assert held_out_error(curves(taken))[1] > 1e-4  # a line with hinges is not the experts' curve


def test_captured_sizes_are_a_staircase() -> None:
    model = CostModel.fit(curves({(1, 9): 5.0, (4, 9): 6.0, (8, 9): 9.0}, captured=[1, 4, 8]))
    assert model.verify_ms([1, 2, 3, 4, 5, 8]) == pytest.approx([5, 6, 6, 6, 9, 9])


def test_drafts_by_rows() -> None:
    model = CostModel.fit(curves(BUMPY))
    assert float(model.draft_ms(2, 3)) == pytest.approx(4.5)
    assert float(model.draft_ms(1, 2, width=3)) == pytest.approx(4.0)
    assert model.draft_ms([0, 5], 1) == pytest.approx([0.0, 3.0])
    assert float(CostModel.fit(curves(BUMPY), block=True).draft_ms(2, 3)) == pytest.approx(1.5)
    assert float(Line.through([])(7)) == 0.0


def test_nnls_keeps_bounds() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        a, b = rng.normal(size=(12, 4)), rng.normal(size=12)
        x = nnls(a, b)
        gradient = a.T @ (a @ x - b)
        assert (x >= 0).all()
        assert (gradient > -1e-8).all()
        assert np.abs(x * gradient).max() < 1e-8


def test_correction_learns_slowly_and_near_by() -> None:
    live = Correction.none()
    once = live.learned(8, 10.0, 1000.0)
    assert float(once.factor(8)) == pytest.approx(np.exp(0.05))
    for _ in range(200):
        live = live.learned(8, 10.0 * float(live.factor(8)), 15.0)
    assert float(live.factor(8)) == pytest.approx(1.5, rel=1e-3)
    assert float(live.factor(32)) == 1.0


@pytest.mark.parametrize(("alpha", "tokens"), [(0.7, 2.77), (0.9, 4.10), (0.5, 1.94), (1.0, 5.0), (0.0, 1.0)])
def test_closed_form(alpha: float, tokens: float) -> None:
    assert expected_tokens(alpha, 4) == pytest.approx(tokens, abs=0.005)


def test_best_length_skips_the_bad_row_counts() -> None:
    best = best_length(0.7, CostModel.fit(curves(BUMPY)))
    assert best.k == 3
    assert best.speedup > 1
    assert best_length(0.05, CostModel.fit(curves(BUMPY))).k == 0


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"name": "x", "verify": [{"batch": 1, "rows": 0, "context": 1, "verify_ms": 1}]}')
    with pytest.raises(ConfigError, match=r"c\.json: verify\.0\.rows"):
        read_curves(file)
    with pytest.raises(ConfigError, match="can't be read"):
        read_curves(tmp_path / "none.json")
