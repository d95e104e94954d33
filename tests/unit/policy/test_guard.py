from __future__ import annotations

import numpy as np

from draftwing.policy.guard import Guard, Speculated


def run(guard: Guard, steps: int, ratio: float, seed: int = 0, expected_ms: float = 10.0) -> int:
    """Steps of 4 plain tokens each; how many of them speculated."""
    rng, count = np.random.default_rng(seed), 0
    for _ in range(steps):
        speculated = guard.allows()
        count += speculated
        tokens = 4 * ratio + rng.normal() if speculated else 4.0
        guard.observe(Speculated(tokens, 4.0, 10.0, 5.2, expected_ms) if speculated else None)
    return count


def test_trips_when_it_is_slower_and_says_why() -> None:
    guard = Guard()
    assert run(guard, 199, 0.8) == 199
    assert guard.trips == 0
    run(guard, 2, 0.8)
    assert guard.trips == 1
    assert "acceptance model is wrong: steps made 0.6" in guard.reason
    assert "cost model" not in guard.reason


def test_names_the_model_that_was_wrong() -> None:
    costs, neither = Guard(), Guard()
    run(costs, 300, 0.9, expected_ms=5.0)
    assert "cost model is wrong: steps took 2.00x the time" in costs.reason
    for _ in range(250):
        neither.observe(Speculated(3.6, 4.0, 10.0, 3.6, 10.0))
    assert "what they take plain decoding to cost is wrong" in neither.reason


def test_does_not_trip_on_noise_or_gain() -> None:
    for seed, ratio in enumerate((0.99, 1.0, 1.4)):
        guard = Guard()
        run(guard, 2000, ratio, seed)
        assert not guard.tripped


def test_probes_and_comes_back() -> None:
    guard = Guard()
    run(guard, 300, 0.7)
    assert 3 <= run(guard, 1000, 0.5) <= 5
    assert guard.allows() is False
    run(guard, 1000, 1.8)
    assert guard.reason == ""
    assert guard.trips == 1
