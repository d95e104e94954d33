"""How likely the target accepts a draft node once its parent is accepted: learned while serving.

    logit p = w_cd x + b_cd + rank_r + class + request

x is the log-odds of the drafter's confidence, 0 where it gives none; c the class (see `acceptance_class`), d the depth,
r the place among siblings. Classes have slopes of their own because a confidence tells less where tokens are drawn, and
is another one there (`drafters.children`). Weights are shared by all requests of a class and change slowly; a class and
a request shift them and change fast. Each step is one Newton step on the newest labels, with an information that
forgets by the label, so old text fades and depths seldom seen stay near the prior.
Estimated given confidence, not by position alone, because which positions are reached depends on the policy itself.

A node that is not drafted yet has no x: its chance is the mean of what the model gave the nodes drafted there of late,
verified or not, since those that are verified were picked for being likely.

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

DEPTHS, RANKS = 16, 8  # deeper and later ones share the last entry
KEEP, KEEP_SHIFT = 0.998, 0.99  # of the information after one more label: on depths; on classes and requests
KEEP_STEP = 0.9  # of the information after one step, at least
PRIOR_LABELS = 4.0  # the prior weighs as much as so many labels, and is never forgotten
SHRINK_CLASS, SHRINK_REQUEST = 4.0, 8.0
MOST_SHIFT = 4.0  # of a class or a request, in log-odds
SURE = 8.0  # log-odds beyond which nothing is believed


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


@dataclass(slots=True)
class AcceptanceModel:
    """Of one drafter. prior [DEPTHS, 2]: w and b before anything was seen.

    The default trusts confidences with a caution: half of the slope, and even odds. hoped [CLASSES, DEPTHS]: chance of
    an undrafted first child.
    """

    prior: Floats = field(default_factory=lambda: np.tile([0.5, 0.0], (DEPTHS, 1)))
    rank: Floats = field(default_factory=lambda: -np.log2(np.arange(1.0, RANKS + 1)))
    prior_mean: Floats = field(default_factory=lambda: np.full(DEPTHS, 0.5))
    classes: list[Shift] = field(default_factory=lambda: [Shift() for _ in range(CLASSES)])
    requests: dict[str, Shift] = field(default_factory=dict)
    weights: Floats = field(init=False)
    hoped: Floats = field(init=False)
    _information: Floats = field(init=False)
    _seen: Floats = field(init=False)  # [2, CLASSES, DEPTHS]: sums of chances, and of nodes

    def __post_init__(self) -> None:
        self.weights = np.tile(self.prior, (CLASSES, 1))  # [CLASSES * DEPTHS, 2]
        self.rank = self.rank.copy()
        self._information = np.zeros((CLASSES * DEPTHS, 2, 2))
        self._seen = np.zeros((2, CLASSES, DEPTHS))
        self.hoped = np.tile(self.prior_mean, (CLASSES, 1))

    def chance(self, nodes: Nodes, classes: IntArray, requests: Seq[str]) -> Floats:
        """[M]: probability of each node given its parent. classes, requests [B]."""
        at = _cells(nodes, classes)
        shift = np.array([s.value for s in self.classes])[classes] + self._requests(requests)
        logit = self.weights[at, 0] * nodes.odds + self.weights[at, 1] + shift[nodes.owner]
        if nodes.rank.any():
            logit += self.rank[np.minimum(nodes.rank, RANKS - 1)]
        return np.asarray(1 / (1 + np.exp(-np.clip(logit, -SURE, SURE))))

    def undrafted(self, depth: int, levels: int, classes: IntArray, requests: Seq[str]) -> Floats:
        """[B, levels]: chances of the next first child of each sequence, the one after it, ..., from `depth` on."""
        at = np.minimum(np.arange(depth, depth + levels), DEPTHS) - 1
        mean = np.clip(self.hoped[classes][:, at], 1e-3, 1 - 1e-3)
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
        """[M]: the chances that it had given the nodes, before it learned from them.

        labelled [M]: the node was verified and its parent accepted; others say nothing but what was drafted.

        shared [B]: False for requests whose processors distort acceptance; they move their own shift alone.
        """
        chance = self.chance(nodes, classes, requests)
        if not len(nodes):
            return chance
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
        self._learn_hopes(nodes, at, chance, shared)
        return chance

    def forget(self, requests: Seq[str]) -> None:
        for request in requests:
            self.requests.pop(request, None)

    def _requests(self, requests: Seq[str]) -> Floats:
        known = self.requests
        if not known:
            return np.zeros(len(requests))
        return np.array([known[r].value if r in known else 0.0 for r in requests], dtype=np.float64)

    def _learn_depths(self, nodes: Nodes, at: IntArray, error: Floats, curvature: Floats, used: BoolArray) -> None:
        """One Newton step of the (w, b) of every class and depth, and of every rank. at [M]: whose they are."""
        x, cells = nodes.odds, CLASSES * DEPTHS

        def summed(values: Floats) -> Floats:
            return np.asarray(np.bincount(at, values, cells), dtype=np.float64)

        hessian = np.stack([summed(curvature * x * x), summed(curvature * x), summed(curvature * x), summed(curvature)])
        kept = np.maximum(KEEP ** np.bincount(at, used, cells), KEEP_STEP)
        self._information = kept[:, None, None] * self._information + hessian.T.reshape(cells, 2, 2)
        prior = np.eye(2) * PRIOR_LABELS
        pull = PRIOR_LABELS * (1 - kept)[:, None] * (np.tile(self.prior, (CLASSES, 1)) - self.weights)
        gradient = np.stack([summed(error * x), summed(error)], axis=1) + pull
        self.weights += np.linalg.solve(self._information + prior, gradient[..., None])[..., 0]
        if nodes.rank.any():
            place = np.minimum(nodes.rank, RANKS - 1)
            steps = np.bincount(place, error, RANKS) / (np.bincount(place, curvature, RANKS) + PRIOR_LABELS)
            self.rank[1:] += 0.1 * steps[1:]  # the first child's term is the depth's own

    def _learn_hopes(self, nodes: Nodes, at: IntArray, chance: Floats, shared: BoolArray) -> None:
        first = (nodes.rank == 0) & shared[nodes.owner]
        cell = at[first]
        new = np.stack([np.bincount(cell, weight, CLASSES * DEPTHS) for weight in (chance[first], np.ones(len(cell)))])
        kept = np.maximum(KEEP_SHIFT ** new[1], KEEP_STEP)
        self._seen = (kept * self._seen.reshape(2, -1) + new).reshape(2, CLASSES, DEPTHS)
        sums, counts = self._seen.sum(axis=1)
        everyone = (sums + PRIOR_LABELS * self.prior_mean) / (counts + PRIOR_LABELS)
        self.hoped = (self._seen[0] + PRIOR_LABELS * everyone) / (self._seen[1] + PRIOR_LABELS)


def _cells(nodes: Nodes, classes: IntArray) -> IntArray:
    """[M]: class and depth of each node as one index."""
    return np.asarray(classes[nodes.owner] * DEPTHS + np.minimum(nodes.depth, DEPTHS) - 1)
