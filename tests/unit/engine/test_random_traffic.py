"""The engine under random arrivals, cancellations, preemptions and drafts: no wrong token, no leak, no starvation.

Prompts begin alike, continue earlier outputs, and come under several salts; the cache is small.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.engine.traffic import Setting, Traffic

SETTINGS = st.builds(
    Setting,
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(10, 60),
    block_tokens=st.sampled_from([1, 2, 4, 7]),
    sequences=st.integers(1, 8),
    batch_tokens=st.sampled_from([5, 16, 64]),
    chunk=st.sampled_from([1, 3, 5]),
    branching=st.sampled_from([(), (1,), (1, 1, 1, 1), (3,), (2, 2, 1)]),
    accuracy=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    load=st.sampled_from([0.1, 0.5, 2.0]),
    cancel=st.sampled_from([0.0, 0.1]),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SETTINGS)
def test_any_setting(setting: Setting) -> None:
    Traffic(setting).run(25)


def assert_happened(traffic: Traffic, steps: int) -> None:
    """That the run met what it is about, often."""
    counters = traffic.engine.counters
    assert traffic.finished > 0.1 * steps
    assert traffic.cancelled > 0.005 * steps
    assert counters.preemptions > 0.02 * steps
    assert counters.prefix_hits > 0.08 * counters.prefix_queries
    assert counters.branched_tokens > 0.02 * steps
    assert counters.draft_tokens - counters.accepted_tokens > 0.5 * steps


@pytest.mark.parametrize("setting", [Setting(seed=1, blocks=16), Setting(seed=2, blocks=40, block_tokens=2, load=0.6)])
def test_a_short_run(setting: Setting) -> None:
    traffic = Traffic(setting)
    traffic.run(120)
    assert_happened(traffic, 120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        Setting(seed=3, blocks=16),
        Setting(seed=4, blocks=64, block_tokens=2, load=0.6, sequences=8),
        Setting(seed=5, blocks=200, block_tokens=1, batch_tokens=16, chunk=5, branching=(1, 1, 1, 1)),
    ],
)
def test_ten_thousand_steps(setting: Setting) -> None:
    traffic = Traffic(setting)
    traffic.run(10_000)
    if max(setting.branching) > 1:
        assert_happened(traffic, 10_000)
