from __future__ import annotations

import numpy as np

from draftwing.policy.guard import PROBE_EVERY, Guard


def run(guard: Guard, steps: int, ratio: float, seed: int = 0) -> int:
    """Steps of 4 plain tokens each; how many of them speculated."""
    rng, count = np.random.default_rng(seed), 0
    for _ in range(steps):
        speculated = guard.allows()
        count += speculated
        tokens = 4 * ratio + rng.normal() if speculated else 4.0
        guard.observe(speculated=speculated, tokens=tokens, plain_tokens=4.0, predicted=1.3)
    return count


def test_trips_when_it_is_slower_and_says_why() -> None:
    guard = Guard()
    assert run(guard, 199, 0.8) == 199
    assert guard.trips == 0
    run(guard, 2, 0.8)
    assert guard.trips == 1
    assert "expected 1.30x" in guard.reason


def test_does_not_trip_on_noise_or_gain() -> None:
    for seed, ratio in enumerate((0.97, 1.0, 1.4)):
        guard = Guard()
        run(guard, 2000, ratio, seed)
        assert not guard.tripped


def test_probes_and_comes_back() -> None:
    guard = Guard()
    run(guard, 300, 0.7)
    assert 8 <= run(guard, 10 * PROBE_EVERY, 0.7) <= 10
    assert guard.allows() is False
    run(guard, 20 * PROBE_EVERY, 1.3)
    assert guard.reason == ""
    assert guard.trips == 1
