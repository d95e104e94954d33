from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from draftwing.policy.cost import Floats
from draftwing.policy.solver import admit, capped, depths, look_ahead, path_keys, survival


def random_case(rng: np.random.Generator) -> tuple[Floats, np.ndarray, np.ndarray]:
    """Acceptance, parents and owner of up to 8 nodes in up to 3 drafts; ties and probability 1 are frequent."""
    owner = np.sort(rng.integers(0, 3, rng.integers(0, 9)))
    parents = []
    for node, mine in enumerate(owner.tolist()):
        before = [-1, *(i for i in range(node) if owner[i] == mine)]
        parents.append(int(rng.choice(before)))
    pool = np.array([1.0, 1.0, 0.5, 0.5, 0.25, rng.random(), rng.random()])
    return rng.choice(pool, len(owner)), np.array(parents, dtype=np.int64), owner


def random_cost(rng: np.random.Generator, count: int) -> Floats:
    """A staircase of random steps, at times falling."""
    steps = np.where(rng.random(count + 1) < 0.5, 0.0, rng.normal(0.4, 0.5, count + 1))
    return np.asarray(3.0 + np.cumsum(steps))


@pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_equals_brute_force_over_all_subtrees(cases: int) -> None:
    rng = np.random.default_rng(5)
    for case in range(cases):
        acceptance, parents, owner = random_case(rng)
        if case % 50:  # the full enumeration of 8 nodes is slow: most cases are smaller
            acceptance, parents, owner = acceptance[:5], parents[:5], owner[:5]
        keys = path_keys(acceptance, parents)
        chance = survival(keys)
        most_nodes, most_depth = rng.integers(0, 6, 3), rng.integers(0, 5, 3)
        left = capped(keys, owner, most_nodes, most_depth)
        step_ms, rate = random_cost(rng, len(keys)), float(rng.choice([0.0, 0.3, 1.0, rng.random()]))
        found = admit(left, step_ms[: len(left) + 1], rate)
        best = best_value(chance, parents, owner, depths(keys), (most_nodes, most_depth), step_ms, rate)
        assert found.value == pytest.approx(best, abs=1e-9), case
        chosen = set(found.nodes.tolist())
        assert all(parents[i] < 0 or int(parents[i]) in chosen for i in chosen), case
        assert (np.bincount(owner[found.nodes], minlength=3) <= most_nodes).all()
        assert found.tokens == pytest.approx(chance[found.nodes].sum())


def best_value(
    chance: Floats,
    parents: np.ndarray,
    owner: np.ndarray,
    depth: np.ndarray,
    caps: tuple[np.ndarray, np.ndarray],
    step_ms: Floats,
    rate: float,
) -> float:
    """The best over every subset that is closed under parents and within the caps, one by one."""
    count = len(chance)
    best = -rate * float(step_ms[0])
    mine = [sum(1 << i for i in range(count) if owner[i] == b) for b in range(3)]
    needs = [0 if parents[i] < 0 else 1 << int(parents[i]) for i in range(count)]
    usable = [i for i in range(count) if depth[i] <= caps[1][owner[i]]]
    for size in range(1, len(usable) + 1):
        for nodes in combinations(usable, size):
            bits = sum(1 << i for i in nodes)
            closed = all(needs[i] & bits == needs[i] for i in nodes)
            if closed and all((bits & mine[b]).bit_count() <= caps[0][b] for b in range(3)):
                best = max(best, sum(float(chance[i]) for i in nodes) - rate * float(step_ms[size]))
    return best


def test_keys_hold_survival_and_depth() -> None:
    parents = np.array([-1, 0, 1, -1, 0])
    keys = path_keys(np.array([0.5, 0.5, 1.0, 0.0, 0.3]), parents)
    assert survival(keys) == pytest.approx([0.5, 0.25, 0.25, 2.0**-16, 0.15], rel=1e-6)
    assert depths(keys).tolist() == [1, 2, 3, 1, 2]
    assert path_keys(np.array([0.5]), np.array([-1])).tolist() == keys[:1].tolist()


def test_a_chain_of_64_fits() -> None:
    keys = path_keys(np.full(64, 1e-9), np.arange(-1, 63), 64)
    assert depths(keys).tolist() == list(range(1, 65))
    assert (np.diff(keys >> 28) > 0).all()


def test_looks_past_a_bad_row_count() -> None:
    """Two and three rows don't pay, four do: with one node drafted the stop comes only if no one looks ahead."""
    step_ms = np.array([13.9, 21.3, 29.9, 21.7, 30.0, 31.0])
    level_ms = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    front = np.array([0.6])
    means = np.array([1.0, 0.9, 0.9])
    far = look_ahead(np.empty(0), front, means, step_ms, 1 / 13.9, level_ms)
    assert (far.sequences, far.levels) == (1, 3)
    assert look_ahead(np.empty(0), front, means[:1], step_ms, 1 / 13.9, level_ms[:1]).sequences == 0


def test_look_ahead_equals_trying_each() -> None:
    rng = np.random.default_rng(6)
    for _ in range(300):
        batch = int(rng.integers(1, 5))
        drafted = np.round(rng.random(rng.integers(0, 6)), 2)
        front = np.sort(np.round(rng.random(batch), 2))[::-1]
        means = np.array([1.0, *rng.random(2)])
        step_ms, rate = random_cost(rng, len(drafted) + batch * 3), float(rng.random())
        level_ms = np.cumsum(rng.random((3, batch + 1)), axis=0) * 0.2
        found = look_ahead(drafted, front, means, step_ms, rate, level_ms)

        def value(nodes: list[float], spent: float, costs: Floats = step_ms, price: float = rate) -> float:
            sums = np.cumsum([0.0, *sorted(nodes, reverse=True)])
            return float((sums - price * costs[: len(sums)]).max()) - price * spent

        best = max(
            value([*drafted, *(f * s for f in front[:m] for s in np.cumprod(means)[:h])], float(level_ms[h - 1, m]))
            for m in range(1, batch + 1)
            for h in (1, 2, 3)
        )
        # Nodes of equal survival come in together here, so a tie may hide a step of the staircase.
        gain = best - value(list(drafted), 0.0)
        assert found.gain <= max(gain, 0.0) + 1e-9
        if len(np.unique([*drafted, *(f * s for f in front for s in np.cumprod(means))])) == len(drafted) + 3 * batch:
            assert found.gain == pytest.approx(max(gain, 0.0), abs=1e-9)
