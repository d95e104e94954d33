from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftwing.core import DraftTree, IntArray
from draftwing.policy.acceptance import DEPTHS, AcceptanceModel
from draftwing.policy.base import CLASSES
from draftwing.policy.nodes import Nodes, log_odds, ranks, side_by_side

GREEDY = np.zeros(1, dtype=np.int64)


def nodes_of(depth: IntArray, odds: np.ndarray) -> Nodes:
    """First children of one request."""
    zeros = np.zeros_like(depth)
    return Nodes(depth, zeros, odds, zeros, depth - 2, np.array([0, len(depth)]))


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
    labelled = np.concatenate([[True], np.cumprod(accepted)[:-1].astype(np.bool_)])
    model.learn(nodes_of(np.arange(1, 5), odds), accepted & labelled, labelled, GREEDY, [name], np.array([shared]))
    model.forget([name])


def chance(model: AcceptanceModel, depth: int, odds: float) -> float:
    one = np.zeros(1, dtype=np.int64)
    return float(model.chance(nodes_of(one + depth, np.array([odds])), GREEDY, ["new"])[0])


def test_learns_truth_and_then_another() -> None:
    """On average over three texts of 1,500 steps each: one text alone may well mislead."""
    rng, models = np.random.default_rng(1), [AcceptanceModel() for _ in range(3)]
    for truth in ((1.2, -0.5), (0.6, 1.0)):
        for model in models:
            for _ in range(1500):
                step(model, rng, truth)
        for odds in (-1.0, 0.5, 2.0):
            expected = 1 / (1 + np.exp(-(truth[0] * odds + truth[1])))
            first, third = (np.mean([chance(model, depth, odds) for model in models]) for depth in (1, 3))
            assert first == pytest.approx(expected, abs=0.1)
            assert third == pytest.approx(expected, abs=0.12)


def test_depths_never_reached_follow_the_others_and_other_classes_keep_the_prior() -> None:
    rng, model = np.random.default_rng(2), AcceptanceModel()
    for _ in range(500):
        step(model, rng, (1.0, -20.0))
    assert np.array_equal(model.weights[DEPTHS:], np.tile(model.prior, (CLASSES - 1, 1)))
    assert not model.own.values[4:].any()
    assert chance(model, 1, 0.0) < 0.05
    assert chance(model, 8, 0.0) < 0.2
    assert model.undrafted(1, 2, GREEDY, ["new"]).shape == (1, 2)
    assert (model.undrafted(5, DEPTHS, GREEDY, ["new"]) == 0.5).all()


def test_what_is_hoped_of_undrafted_nodes_is_the_mean_of_what_is_drafted_verified_or_not() -> None:
    model, unseen = AcceptanceModel(), np.zeros(4, dtype=np.bool_)
    odds = np.array([3.0, 3.0, 3.0, -3.0])
    for _ in range(60):
        model.learn(nodes_of(np.arange(1, 5), odds), unseen, unseen, GREEDY, ["r"], np.array([True]))
    hoped = model.undrafted(1, 4, GREEDY, ["r"])[0]
    assert hoped == pytest.approx(model.chance(nodes_of(np.arange(1, 5), odds), GREEDY, ["r"]), abs=0.03)


def test_the_product_of_the_hopes_is_the_mean_survival() -> None:
    """Half of the drafts end at once, and what they hold deeper says little: nobody gets there."""
    model, unseen = AcceptanceModel(), np.zeros(6, dtype=np.bool_)
    odds = np.array([7.0, 7.0, 7.0, -7.0, -7.0, -7.0])
    nodes = replace(nodes_of(np.tile(np.arange(1, 4), 2), odds), owner=np.repeat([0, 1], 3))
    nodes = replace(nodes, parents=np.array([-1, 0, 1, -1, 3, 4]), starts=np.array([0, 3, 6]))
    two = np.array([0, 0])
    for _ in range(200):
        model.learn(nodes, unseen, unseen, two, ["a", "b"], np.array([True, True]))
    chances = model.chance(nodes, two, ["a", "b"]).reshape(2, 3)
    hoped = np.cumprod(model.undrafted(1, 3, GREEDY, ["new"])[0])
    assert hoped == pytest.approx(np.cumprod(chances, axis=1).mean(axis=0), abs=0.03)


def test_distorted_requests_move_nothing_shared() -> None:
    rng, model = np.random.default_rng(3), AcceptanceModel()
    for _ in range(200):
        step(model, rng, (1.0, -20.0), shared=False)
    assert np.array_equal(model.weights, np.tile(model.prior, (CLASSES, 1)))
    assert all(shift.value == 0 for shift in model.classes)
    assert (model.hoped == AcceptanceModel().hoped).all()
    assert not model.requests


def test_unlabelled_nodes_say_nothing() -> None:
    model, zeros = AcceptanceModel(), np.zeros(3, dtype=np.int64)
    nothing = np.zeros(3, dtype=np.bool_)
    model.learn(nodes_of(zeros + 1, np.ones(3)), nothing, nothing, GREEDY, ["r"], np.array([True]))
    assert np.array_equal(model.weights, np.tile(model.prior, (CLASSES, 1)))
    assert not model.requests


def test_a_request_shifts_itself() -> None:
    model, zeros = AcceptanceModel(), np.zeros(1, dtype=np.int64)
    nodes = nodes_of(zeros + 1, np.zeros(1))
    right = np.ones(1, dtype=np.bool_)
    for _ in range(50):
        model.learn(nodes, right, right, GREEDY, ["mine"], np.array([False]))
    assert model.chance(nodes, GREEDY, ["mine"])[0] > 0.6
    assert model.chance(nodes, GREEDY, ["other"])[0] == pytest.approx(0.5)


def test_siblings_share_one_chance() -> None:
    """The target takes one child at most: a sure first one leaves its siblings nothing."""
    model = AcceptanceModel(prior=np.tile([1.0, 0.0, 1.0], (DEPTHS, 1)))
    confidences = np.array([0.99, 0.005, 0.004, 0.4, 0.3, 0.2], np.float32)
    tree = DraftTree(np.arange(6), np.array([-1, -1, -1, 0, 0, 0]), confidences)
    both = side_by_side([tree, tree])
    alone = model.prior[0, 0] * np.maximum(both.odds, 0) + 1 + model.rank[both.rank]
    alone = 1 / (1 + np.exp(-alone))
    chances = model.chance(both, np.zeros(2, dtype=np.int64), ["a", "b"])
    assert chances[:6] == pytest.approx(chances[6:])
    assert chances[[0, 3]] == pytest.approx(alone[[0, 3]])
    assert chances[1] == pytest.approx(1 - alone[0])
    assert chances[2] < 0.01 < 0.2 < alone[2]
    assert chances[4] == pytest.approx(min(alone[4], 1 - alone[3]))


def test_confidences_are_rounded_and_finite() -> None:
    odds = log_odds(np.array([0.0, 0.5, 0.5004, 1.0], dtype=np.float32), 4)
    assert np.isfinite(odds).all()
    assert odds[1] == odds[2] == 0.0
    assert log_odds(None, 2).tolist() == [0.0, 0.0]


def test_ranks_count_siblings() -> None:
    parents, owner = np.array([-1, -1, 0, 0, -1, 4, 0]), np.array([0, 0, 0, 0, 1, 1, 0])
    assert ranks(parents, owner).tolist() == [0, 1, 0, 1, 0, 0, 2]
    assert ranks(parents[:0], owner[:0]).tolist() == []


def test_drafts_side_by_side() -> None:
    tree = DraftTree(np.array([5, 6, 7, 8]), np.array([-1, -1, 0, 2]), np.array([0.5, 0.25, 1.0, 0.0], np.float32))
    nodes = side_by_side([tree, DraftTree.empty(), DraftTree.chain([1, 2])])
    assert nodes.depth.tolist() == [1, 1, 2, 3, 1, 2]
    assert nodes.rank.tolist() == [0, 1, 0, 0, 0, 0]
    assert nodes.owner.tolist() == [0, 0, 0, 0, 2, 2]
    assert nodes.parents.tolist() == [-1, -1, 0, 2, -1, 4]
    assert nodes.starts.tolist() == [0, 4, 4, 6]
    assert nodes.odds[[0, 4, 5]].tolist() == [0.0, 0.0, 0.0]
    assert len(side_by_side([DraftTree.empty()] * 2)) == 0


def test_what_was_learned_above_even_odds_is_not_believed_below() -> None:
    """As with tokens that are drawn: likely ones say much, unlikely ones little, and few of these are verified."""
    rng, model = np.random.default_rng(6), AcceptanceModel()
    one, shared = np.ones(1, dtype=np.int64), np.ones(1, dtype=np.bool_)
    for _ in range(1500):
        odds = rng.normal(0, 3, 1)
        truth = 1 / (1 + np.exp(-(0.4 + np.maximum(odds, 0.0))))
        labelled = (odds > -1) | (rng.random(1) < 0.1)
        model.learn(nodes_of(one, odds), (rng.random(1) < truth) & labelled, labelled, GREEDY, ["r"], shared)
        model.forget(["r"])
    assert chance(model, 1, -4.0) == pytest.approx(0.6, abs=0.12)
    assert chance(model, 1, 3.0) == pytest.approx(0.97, abs=0.03)


def test_classes_learn_how_much_a_confidence_tells() -> None:
    rng, model = np.random.default_rng(5), AcceptanceModel()
    depth, owner = np.ones(2, dtype=np.int64), np.arange(2)
    for _ in range(800):
        odds = rng.normal(0, 2, 2)
        nodes = Nodes(depth, np.zeros_like(depth), odds, owner, depth - 2, np.arange(3))
        truth = 1 / (1 + np.exp(-np.array([odds[0], 1.0])))  # the second class accepts alike, however sure the drafter
        labelled, shared = np.ones(2, dtype=np.bool_), np.ones(2, dtype=np.bool_)
        model.learn(nodes, rng.random(2) < truth, labelled, np.array([0, 1]), ("a", "b"), shared)
    slopes = model.weights[[0, DEPTHS], 0]
    assert slopes[0] == pytest.approx(1.0, abs=0.35)
    assert slopes[1] == pytest.approx(0.0, abs=0.2)
