from __future__ import annotations

import numpy as np
import pytest

from draftwing.policy.acceptance import DEPTHS, AcceptanceModel, Nodes, log_odds, ranks


def step(
    model: AcceptanceModel,
    rng: np.random.Generator,
    truth: tuple[float, float],
    *,
    shared: bool = True,
    name: str = "r",
) -> None:
    """One chain of four at one request: depth 1 to 4 of the given truth, labelled as far as it is accepted."""
    odds = rng.normal(0.5, 1.5, 4)
    accepted = rng.random(4) < 1 / (1 + np.exp(-(truth[0] * odds + truth[1])))
    zeros = np.zeros(4, dtype=np.int64)
    labelled = np.concatenate([[True], np.cumprod(accepted)[:-1].astype(np.bool_)])
    model.learn(
        Nodes(np.arange(1, 5), zeros, odds, zeros), accepted & labelled, labelled, ["c"], [name], np.array([shared])
    )
    model.forget(name)


def chance(model: AcceptanceModel, depth: int, odds: float) -> float:
    one = np.zeros(1, dtype=np.int64)
    return float(model.chance(Nodes(one + depth, one, np.array([odds]), one), ["c"], ["new"])[0])


def test_learns_truth_and_then_another() -> None:
    rng, model = np.random.default_rng(1), AcceptanceModel()
    for truth in ((1.2, -0.5), (0.6, 1.0)):
        for _ in range(2000):
            step(model, rng, truth)
        for odds in (-1.0, 0.5, 2.0):
            expected = 1 / (1 + np.exp(-(truth[0] * odds + truth[1])))
            assert chance(model, 1, odds) == pytest.approx(expected, abs=0.1)
            assert chance(model, 3, odds) == pytest.approx(expected, abs=0.12)


def test_depths_never_reached_keep_the_prior() -> None:
    rng, model = np.random.default_rng(2), AcceptanceModel()
    for _ in range(500):
        step(model, rng, (1.0, -20.0))
    assert np.array_equal(model.weights[4:], model.prior[4:])
    assert model.means[0] < 0.1
    assert (model.means[4:] == 0.5).all()
    assert len(model.means) == DEPTHS


def test_distorted_requests_move_nothing_shared() -> None:
    rng, model = np.random.default_rng(3), AcceptanceModel()
    for _ in range(200):
        step(model, rng, (1.0, -20.0), shared=False)
    assert np.array_equal(model.weights, model.prior)
    assert not model.classes
    assert not model.requests


def test_unlabelled_nodes_say_nothing() -> None:
    model, zeros = AcceptanceModel(), np.zeros(3, dtype=np.int64)
    nothing = np.zeros(3, dtype=np.bool_)
    model.learn(Nodes(zeros + 1, zeros, np.ones(3), zeros), nothing, nothing, ["c"], ["r"], np.array([True]))
    assert np.array_equal(model.weights, model.prior)
    assert not model.requests


def test_a_request_shifts_itself() -> None:
    model, zeros = AcceptanceModel(), np.zeros(1, dtype=np.int64)
    nodes = Nodes(zeros + 1, zeros, np.zeros(1), zeros)
    right = np.ones(1, dtype=np.bool_)
    for _ in range(50):
        model.learn(nodes, right, right, ["c"], ["mine"], np.array([False]))
    assert model.chance(nodes, ["c"], ["mine"])[0] > 0.6
    assert model.chance(nodes, ["c"], ["other"])[0] == pytest.approx(0.5)


def test_confidences_are_rounded_and_finite() -> None:
    odds = log_odds(np.array([0.0, 0.5, 0.5004, 1.0], dtype=np.float32), 4)
    assert np.isfinite(odds).all()
    assert odds[1] == odds[2] == 0.0
    assert log_odds(None, 2).tolist() == [0.0, 0.0]


def test_ranks_count_siblings() -> None:
    parents, owner = np.array([-1, -1, 0, 0, -1, 4, 0]), np.array([0, 0, 0, 0, 1, 1, 0])
    assert ranks(parents, owner).tolist() == [0, 1, 0, 1, 0, 0, 2]
    assert ranks(parents[:0], owner[:0]).tolist() == []
