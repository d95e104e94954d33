"""Priors: the labels are those of the text, and the fit finds the model that made them."""

from __future__ import annotations

import numpy as np
import pytest

from draftwing.core import DraftTree
from draftwing.policy.acceptance import DEPTHS
from draftwing_tuner.priors import Labels, fit_priors, labels_of
from draftwing_tuner.trace import Proposals, Trace, TraceRequest


def tree(tokens: list[int], parents: list[int], confidences: list[float] | None = None) -> DraftTree:
    given = None if confidences is None else np.array(confidences, dtype=np.float32)
    return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64), given)


def test_a_node_is_labelled_where_the_text_followed_its_parent() -> None:
    request = TraceRequest("a", "", 3, (5, 6, 7), temperature=0.5)
    drafts = [
        DraftTree.empty(),
        tree([6, 9, 7, 8, 1], [-1, -1, 0, 0, 1], [0.5, 0.25, 0.75, 0.5, 0.5]),  # 6 and then 7 come; 1 hangs below 9
        tree([7, 3], [-1, 0]),  # the text ends before 3
    ]
    labels = labels_of(Trace((request,), {"d": (Proposals.of(drafts),)}), "d")
    assert labels.depth.tolist() == [1, 1, 2, 2, 1]
    assert labels.rank.tolist() == [0, 1, 0, 1, 0]
    assert labels.accepted.tolist() == [True, False, True, False, True]
    assert set(labels.group.tolist()) == {1}


def test_nothing_proposed_is_no_labels() -> None:
    request = TraceRequest("a", "", 3, (5, 6, 7))
    trace = Trace((request,), {"d": (Proposals.of([DraftTree.empty()] * 3),)})
    assert fit_priors(labels_of(trace, "d")) == ()


def test_the_fit_finds_what_made_the_labels() -> None:
    draw = np.random.default_rng(0)
    count = 40_000
    depth = draw.integers(1, 5, count)
    rank = draw.integers(0, 3, count)
    group = draw.integers(0, 2, count)
    odds = draw.normal(0, 2, count)
    w, b = np.array([0.9, 0.7, 0.5, 0.3]), np.array([0.5, 0.2, 0.0, -0.3])
    logit = w[depth - 1] * odds + b[depth - 1] + np.array([0, -1.2, -2.0])[rank] + np.array([0.4, -0.4])[group]
    accepted = draw.random(count) < 1 / (1 + np.exp(-logit))
    rows = fit_priors(Labels(depth, rank, odds, group, accepted))
    found = {(row.part, row.index): row for row in rows}
    assert {key for key in found if key[0] == "depth"} == {("depth", d) for d in (1, 2, 3, 4)}
    assert [found["depth", d].w for d in (1, 2, 3, 4)] == pytest.approx(w, abs=0.06)
    shift = found["class", 0].b - found["class", 1].b
    assert shift == pytest.approx(0.8, abs=0.08)
    assert [found["rank", r].b for r in (1, 2)] == pytest.approx([-1.2, -2.0], abs=0.1)
    assert sum(found["depth", d].n for d in (1, 2, 3, 4)) == count
    first = accepted[(depth == 2) & (rank == 0)]
    assert found["depth", 2].mean == pytest.approx(first.mean())


def test_depths_beyond_the_last_share_it() -> None:
    count = 200
    deep = np.full(count, DEPTHS + 5)
    rows = fit_priors(Labels(deep, np.zeros(count, int), np.zeros(count), np.zeros(count, int), np.ones(count, bool)))
    assert [(row.index, row.n) for row in rows if row.part == "depth"] == [(DEPTHS, count)]
    assert all(np.isfinite([row.w, row.b]).all() for row in rows)
