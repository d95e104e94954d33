"""Plain's gap, measured in the engine's own cache."""

from __future__ import annotations

import pytest

from draftwing.core import Request, SamplingParams
from draftwing.testing import near_tie
from draftwing.testing.mock_target import MockTarget
from draftwing.testing.near_tie import gap_of
from draftwing.testing.plain_loop import plain_decode
from draftwing.testing.run_engine import assert_idle, make_engine, run_to_end

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("chunk", [3, near_tie.CHUNK])
def test_gap_is_that_of_plain_decoding(temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_tie, "CHUNK", chunk)
    target = MockTarget()
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=5, frequency_penalty=0.3)
    requests = [Request(str(i), prompt, params) for i, prompt in enumerate(PROMPTS)]
    plain = [plain_decode(target, prompt, params) for prompt in PROMPTS]
    gap = gap_of(make_engine(target), requests, [output.tokens for output in plain])
    for sequence, output in enumerate(plain):
        assert [gap(sequence, i) for i in range(12)] == pytest.approx(output.gaps, abs=1e-6)


def test_what_is_cached_stays_as_it_was() -> None:
    target = MockTarget()
    engine = make_engine(target)
    params = SamplingParams(max_tokens=16, temperature=0.0)
    first = run_to_end(engine, [Request("a", PROMPTS[0], params)])["a"].tokens
    gap_of(engine, [Request("b", PROMPTS[1], params)], [[5] * 16])(0, 16)
    assert_idle(engine)
    rows = target.rows
    assert run_to_end(engine, [Request("c", PROMPTS[0], params)])["c"].tokens == first
    assert target.rows - rows < len(PROMPTS[0]) + len(first) - 1, "nothing was reused, so nothing was tested"


def test_a_gap_that_does_not_fit_is_refused() -> None:
    engine = make_engine(MockTarget(), blocks=4, block_tokens=4)
    request = Request("a", PROMPTS[0], SamplingParams(max_tokens=16))
    with pytest.raises(RuntimeError, match="a gap after 17 tokens was asked for; the cache holds 16"):
        gap_of(engine, [request], [[5] * 16])(0, 9)
