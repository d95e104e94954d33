"""The oracle against numbers that neither it nor the engine made, and against its own rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftwing.core import SamplingParams
from draftwing.testing.goldens.case import Case
from draftwing.testing.naive_sampling import choose, kept, noise, probabilities, processed

CASE = Path(__file__).resolve().parents[2] / "goldens" / "logits_processors"


def params(**settings: object) -> SamplingParams:
    return SamplingParams(**settings)  # type: ignore[arg-type]


def from_case(settings: dict[str, object]) -> SamplingParams:
    settings = dict(settings)
    if isinstance(bias := settings.get("logit_bias"), dict):
        settings["logit_bias"] = {int(token): value for token, value in bias.items()}
    return params(**settings)


def test_distributions_of_the_golden_case() -> None:
    case = Case(CASE)
    logits, prompts, outputs = case.tensor("logits"), case.tensor("prompt_ids"), case.tensor("output_ids")
    for index, settings in enumerate(case.args["parameter_sets"]):
        for row in range(len(logits)):
            history = [[int(t) for t in ids[row] if t >= 0] for ids in (prompts, outputs)]
            values = processed(logits[row], from_case(settings), *history)
            got = probabilities(values, from_case(settings))
            np.testing.assert_allclose(got, case.tensor("probs")[index, row], atol=1e-5, rtol=0, err_msg=str(settings))


def fin(z: int) -> int:
    """The noise's mixer from its published description, in plain integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


@pytest.mark.parametrize(("seed", "choice", "position"), [(0, 0, 0), (2**64 - 1, 3, 70_000), (12345, 1, 17)])
def test_noise_in_plain_integers(seed: int, choice: int, position: int) -> None:
    golden = 0x9E3779B97F4A7C15
    key = fin((fin((seed + golden) % 2**64) + golden * (choice + 1)) % 2**64)
    state = fin((fin((key + golden) % 2**64) + golden * (position + 1)) % 2**64)
    expected = []
    for token in range(50):
        u = ((fin((state + golden * (token + 1)) % 2**64) >> 40) + 0.5) * 2.0**-24
        expected.append(np.float32(-np.log(-np.log(u))))
    assert np.array_equal(noise(seed, choice, position, 50), np.array(expected))


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.array([0, 3, 1, 3, 3], dtype=np.float32)
    chosen = choose(logits, params(temperature=0.0), [0], [])
    assert chosen is not None
    assert (chosen.token, chosen.gap) == (1, 0.0)
    assert kept(logits, params(top_k=2)).tokens.tolist() == [1, 3]


def test_the_highest_noisy_score_wins() -> None:
    logits = np.linspace(0, 3, 40).astype(np.float32)
    for position in range(20):
        chosen = choose(logits, params(seed=5), [1] * position, [])
        g = noise(5, 0, position, 40)
        assert chosen is not None
        assert chosen.token == int((logits + g).argmax())
        ordered = np.sort(logits + g)
        assert chosen.gap == pytest.approx(ordered[-1] - ordered[-2])


def test_gap_counts_the_distance_to_a_cut() -> None:
    values = np.log(np.array([0.5, 0.2999, 0.2001], dtype=np.float64)).astype(np.float32)
    tight = kept(values, params(top_p=0.8))
    assert tight.tokens.tolist() == [0, 1, 2]  # 0.7999 does not reach 0.8
    assert tight.margin[2] == pytest.approx(1e-4, rel=1e-2)
    out = kept(values, params(top_p=0.7998))
    assert out.tokens.tolist() == [0, 1]
    assert out.margin[2] == pytest.approx(1e-4, rel=1e-2)
    # Where the dropped token would have won, its distance to the cut is the gap.
    for position in range(200):
        if int((values + noise(0, 0, position, 3)).argmax()) == 2:
            chosen = choose(values, params(top_p=0.7998), [1] * position, [])
            assert chosen is not None
            assert chosen.token != 2
            assert chosen.gap == pytest.approx(1e-4, rel=1e-2)
            return
    pytest.fail("no position where the dropped token would have won")


@pytest.mark.parametrize(
    "logits", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]], ids=["nan", "inf", "nothing but -inf"]
)
def test_no_choice(logits: list[float]) -> None:
    assert choose(np.array(logits, dtype=np.float32), params(), [0], []) is None


def test_min_tokens_masks_what_ends_a_request() -> None:
    logits = np.array([9, 1, 0], dtype=np.float32)
    early = choose(logits, params(temperature=0.0, min_tokens=2), [1], [1], end_ids=[0])
    late = choose(logits, params(temperature=0.0, min_tokens=2), [1], [1, 1], end_ids=[0])
    assert early is not None
    assert late is not None
    assert (early.token, late.token) == (1, 0)
