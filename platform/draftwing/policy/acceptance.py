"""How likely the target accepts a draft node once its parent is accepted: learned while serving.

    logit p = w_cd max(x, 0) + w'_cd min(x, 0) + b_cd + rank_r + class + request

x is the log-odds of the drafter's confidence, 0 where it gives none; c the class (see `acceptance_class`), d the depth,
r the place among siblings. Classes have slopes of their own because a confidence tells less where tokens are drawn, and
is another one there (`drafters.children`). Below even odds there is a slope of its own, too: few such nodes are
verified, and a slope learned above would rule them out without ever being tested. The weights of a depth are those
common to all depths of its class and what it adds, drawn to 0, so that depths seldom seen follow the others. They are
shared by all requests and change slowly; a class and a request shift them and change fast. Each step is one Newton step
on the newest labels, with an information that forgets by the label, so old text fades.
Estimated given confidence, not by position alone, because which positions are reached depends on the policy itself.

A node that is not drafted yet has no x: its chance is the mean of what the model gave the nodes drafted there of late,
verified or not, since those that are verified were picked for being likely. It counts only if its parent is accepted:
so each weighs as much as its parent's survival, and the product of the means is the mean survival.

Shapes: M nodes of all drafts, B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from draftwing.core import IntArray
from draftwing.policy.base import CLASSES, BoolArray
from draftwing.policy.cost import Floats
from draftwing.policy.nodes import Nodes
from draftwing.policy.solver import path_keys, survival

WEIGHTS = 3  # of a cell: slopes above and below even odds, and b
DEPTHS, RANKS = 16, 8  # deeper and later ones share the last entry
KEEP, KEEP_SHIFT = 0.999, 0.99  # of the information after one more label: on depths; on classes and requests
KEEP_STEP = 0.9  # of the information after one step, at least
PRIOR_LABELS = 4.0  # the prior weighs as much as so many labels, and is never forgotten
SHRINK_CLASS, SHRINK_REQUEST = 4.0, 8.0
MOST_SHIFT = 4.0  # of a class or a request, in log-odds
SURE = 8.0  # log-odds beyond which nothing is believed
LEAST = 1e-3  # chance of a sibling to which the others leave nothing


@dataclass(slots=True)
class Shift:
    """A learned addition to the log-odds, drawn to 0. information: forgets."""

    value: float = 0.0
    information: float = 0.0

    def learn(self, gradient: float, curvature: float, labels: float, shrink: float) -> None:
        kept = max(KEEP_SHIFT**labels, KEEP_STEP)
        self.information = kept * self.information + curvature
        moved = self.value + (gradient - shrink * (1 - kept) * self.value) / (self.information + shrink)
        self.value = min(max(moved, -MOST_SHIFT), MOST_SHIFT)


class Weights:
    """Learned additions to the weights of each cell, drawn to 0. values [cells, 3]; the information forgets by the
    label."""

    def __init__(self, cells: int) -> None:
        self.values = np.zeros((cells, WEIGHTS))
        self._information = np.zeros((cells, WEIGHTS, WEIGHTS))

    def learn(self, at: IntArray, x: Floats, error: Floats, curvature: Floats, used: BoolArray) -> None:
        """One Newton step. at [M]: cells of the nodes. x [M, 3]."""
        cells = len(self.values)
        kept = np.maximum(KEEP ** np.bincount(at, used, cells), KEEP_STEP)
        products = (x[:, :, None] * x[:, None] * curvature[:, None, None]).reshape(-1, WEIGHTS**2)
        new = np.stack([np.bincount(at, column, cells) for column in products.T], axis=1)
        self._information = kept[:, None, None] * self._information + new.reshape(self._information.shape)
        gradient = np.stack([np.bincount(at, error * column, cells) for column in x.T], axis=1)
        gradient -= PRIOR_LABELS * (1 - kept)[:, None] * self.values
        prior = np.eye(WEIGHTS) * PRIOR_LABELS
        self.values += np.linalg.solve(self._information + prior, gradient[..., None])[..., 0]


@dataclass(slots=True)
class AcceptanceModel:
    """Of one drafter. prior [DEPTHS, 3]: the weights before anything was seen. common: of all depths; own: of each.

    The default trusts confidences with a caution: half of the slope, and even odds. hoped [CLASSES, DEPTHS, RANKS]:
    chance of an undrafted child of each place.
    """

    prior: Floats = field(default_factory=lambda: np.tile([0.5, 0.5, 0.0], (DEPTHS, 1)))
    rank: Floats = field(default_factory=lambda: -np.log2(np.arange(1.0, RANKS + 1)))
    prior_mean: Floats = field(default_factory=lambda: np.full(DEPTHS, 0.5))
    classes: list[Shift] = field(default_factory=lambda: [Shift() for _ in range(CLASSES)])
    requests: dict[str, Shift] = field(default_factory=dict)
    common: Weights = field(default_factory=lambda: Weights(CLASSES))
    own: Weights = field(default_factory=lambda: Weights(CLASSES * DEPTHS))
    hoped: Floats = field(init=False)
    _seen: Floats = field(init=False)  # [2, CLASSES, DEPTHS, RANKS]: sums of weighted chances, and of weights

    def __post_init__(self) -> None:
        self.rank = self.rank.copy()
        self._seen = np.zeros((2, CLASSES, DEPTHS, RANKS))
        self.hoped = np.tile(self._prior_hopes(), (CLASSES, 1, 1))

    @property
    def weights(self) -> Floats:
        """[CLASSES * DEPTHS, 3]."""
        return np.tile(self.prior, (CLASSES, 1)) + np.repeat(self.common.values, DEPTHS, axis=0) + self.own.values

    def chance(self, nodes: Nodes, classes: IntArray, requests: Seq[str]) -> Floats:
        """[M]: probability of each node given its parent. classes, requests [B]."""
        at = _cells(nodes, classes)
        shift = np.array([s.value for s in self.classes])[classes] + self._requests(requests)
        logit = (self.weights[at] * _bent(nodes.odds)).sum(axis=1) + shift[nodes.owner]
        logit += self.rank[np.minimum(nodes.rank, RANKS - 1)]
        return left_over(1 / (1 + np.exp(-np.clip(logit, -SURE, SURE))), nodes)

    def undrafted(self, depth: int, levels: int, classes: IntArray, requests: Seq[str]) -> Floats:
        """[B, levels]: chances of the next first child of each sequence, the one after it, ..., from `depth` on."""
        at = np.minimum(np.arange(depth, depth + levels), DEPTHS) - 1
        mean = np.clip(self.hoped[classes][:, at, 0], 1e-3, 1 - 1e-3)
        bent = mean * np.exp(self._requests(requests))[:, None]
        return np.asarray(bent / (1 - mean + bent))

    def learn(
        self,
        nodes: Nodes,
        accepted: BoolArray,
        labelled: BoolArray,
        classes: IntArray,
        requests: Seq[str],
        shared: BoolArray,
    ) -> Floats:
        """[M]: the nodes' survival by the chances that it had given them, before it learned from them.

        labelled [M]: the node was verified and its parent accepted; others say nothing but what was drafted.

        shared [B]: False for requests whose processors distort acceptance; they move their own shift alone.
        """
        chance = self.chance(nodes, classes, requests)
        at = _cells(nodes, classes)
        error = np.where(labelled, accepted - chance, 0.0)
        curvature = np.where(labelled, chance * (1 - chance), 0.0)
        batch = len(requests)
        gradients, bent = np.bincount(nodes.owner, error, batch), np.bincount(nodes.owner, curvature, batch)
        labels = np.bincount(nodes.owner, labelled, batch)
        for i in np.flatnonzero(labels).tolist():
            own = self.requests.setdefault(requests[i], Shift())
            own.learn(float(gradients[i]), float(bent[i]), float(labels[i]), SHRINK_REQUEST)
        teaching = np.where(shared, labels, 0.0)
        for c in np.unique(classes[teaching > 0]).tolist():
            mine = (classes == c) & shared
            sums = (float(column[mine].sum()) for column in (gradients, bent, labels))
            self.classes[c].learn(*sums, SHRINK_CLASS)
        if (used := labelled & shared[nodes.owner]).any():
            self._learn_depths(nodes, at, np.where(used, error, 0.0), np.where(used, curvature, 0.0), used)
        alive = survival(path_keys(chance, nodes.parents, int(nodes.depth.max())))
        self._learn_hopes(nodes, at, chance, alive, shared)
        return alive

    def forget(self, requests: Seq[str]) -> None:
        for request in requests:
            self.requests.pop(request, None)

    def _requests(self, requests: Seq[str]) -> Floats:
        known = self.requests
        return np.array([known[r].value if r in known else 0.0 for r in requests], dtype=np.float64)

    def _learn_depths(self, nodes: Nodes, at: IntArray, error: Floats, curvature: Floats, used: BoolArray) -> None:
        """One Newton step of the weights of every class and depth, and of every rank. at [M]: whose they are."""
        x = _bent(nodes.odds)
        self.common.learn(at // DEPTHS, x, error, curvature, used)
        self.own.learn(at, x, error, curvature, used)
        place = np.minimum(nodes.rank, RANKS - 1)
        steps = np.bincount(place, error, RANKS) / (np.bincount(place, curvature, RANKS) + PRIOR_LABELS)
        self.rank[1:] += 0.1 * steps[1:]  # the first child's term is the depth's own

    def _prior_hopes(self) -> Floats:
        """[DEPTHS, RANKS]: each child has the same share of what those before it leave."""
        first = self.prior_mean[:, None]
        return np.asarray(first * (1 - first) ** np.arange(RANKS))

    def _learn_hopes(self, nodes: Nodes, at: IntArray, chance: Floats, alive: Floats, shared: BoolArray) -> None:
        """alive [M]: survival."""
        seen, shape = shared[nodes.owner], self.hoped.shape
        weight = np.where(nodes.parents < 0, 1.0, alive[nodes.parents])[seen]
        cell = (at * RANKS + np.minimum(nodes.rank, RANKS - 1))[seen]
        new = np.stack([np.bincount(cell, each, self.hoped.size) for each in (weight * chance[seen], weight)])
        kept = np.maximum(KEEP_SHIFT ** np.bincount(cell, minlength=self.hoped.size), KEEP_STEP)
        self._seen = (kept * self._seen.reshape(2, -1) + new).reshape(2, *shape)
        sums, counts = self._seen.sum(axis=1)
        everyone = (sums + PRIOR_LABELS * self._prior_hopes()) / (counts + PRIOR_LABELS)
        self.hoped = (self._seen[0] + PRIOR_LABELS * everyone) / (self._seen[1] + PRIOR_LABELS)


def left_over(chances: Floats, nodes: Nodes) -> Floats:
    """Of siblings one at most is right: none has more of a chance than those before it leave."""
    if not nodes.rank.any():
        return chances
    family = np.where(nodes.parents < 0, -1 - nodes.owner, nodes.parents)
    order = np.lexsort((nodes.rank, family))
    sums = np.concatenate([[0.0], np.cumsum(chances[order])])
    before = np.empty_like(chances)
    before[order] = sums[:-1] - sums[np.arange(len(order)) - nodes.rank[order]]
    return np.minimum(chances, np.maximum(1 - before, LEAST))


def _bent(odds: Floats) -> Floats:
    """[M, 3]: what the weights stand for."""
    return np.stack([np.maximum(odds, 0.0), np.minimum(odds, 0.0), np.ones_like(odds)], axis=1)


def _cells(nodes: Nodes, classes: IntArray) -> IntArray:
    """[M]: class and depth of each node as one index."""
    return np.asarray(classes[nodes.owner] * DEPTHS + np.minimum(nodes.depth, DEPTHS) - 1)
