"""How likely the target accepts a draft node once its parent is accepted: learned while serving.

    logit p = w_d x + b_d + rank_r + class + request

x is the log-odds of the drafter's confidence, 0 where it gives none; d the depth, r the place among siblings. Depths
and ranks are shared by all requests of one drafter; a class (route, temperature band) and a request shift them. Each
step is one Newton step on the newest labels, with an information that forgets by the label, so old text fades and
depths seldom seen stay near the prior. Estimated given confidence, not by position alone, because which positions are
reached depends on the policy itself.

Shapes: M nodes of all drafts, B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from draftwing.core import FloatArray, IntArray
from draftwing.policy.cost import Floats

BoolArray = npt.NDArray[np.bool_]
GRAIN = 1024  # confidences are rounded to so many parts, so that a logged one makes the same decision again
DEPTHS, RANKS = 16, 8  # deeper and later ones share the last entry
KEEP = 0.999  # of the information after one more label
PRIOR_LABELS = 4.0  # the prior weighs as much as so many labels, and is never forgotten
SHRINK_CLASS, SHRINK_REQUEST = 4.0, 16.0
MOST_SHIFT = 3.0  # of a class or a request, in log-odds


@dataclass(frozen=True, slots=True)
class Nodes:
    """depth [M], 1 below a root. rank [M], 0 for a first child. odds [M]. owner [M]: sequence of the batch."""

    depth: IntArray
    rank: IntArray
    odds: Floats
    owner: IntArray


def log_odds(confidences: FloatArray | None, count: int) -> Floats:
    """x of each node: finite for any confidence, and the same for all within 1/1024."""
    if confidences is None:
        return np.zeros(count)
    parts = np.clip(np.rint(confidences.astype(np.float64) * GRAIN), 0.5, GRAIN - 0.5)
    return np.asarray(np.log(parts / (GRAIN - parts)))


def ranks(parents: IntArray, owner: IntArray) -> IntArray:
    """Place of each node among its siblings. parents: -1 below a root, else an index into all M nodes."""
    groups = np.where(parents < 0, -1 - owner, parents)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=np.iinfo(np.int64).min))
    found = np.empty(len(parents), dtype=np.int64)
    found[order] = np.arange(len(parents)) - np.repeat(starts, np.diff(starts, append=len(parents)))
    return found


@dataclass(slots=True)
class Shift:
    """One learned addition to the log-odds, drawn to 0. information: forgets."""

    value: float = 0.0
    information: float = 0.0

    def learn(self, gradient: float, curvature: float, labels: float, shrink: float) -> None:
        kept = KEEP**labels
        self.information = kept * self.information + curvature
        moved = self.value + (gradient - shrink * (1 - kept) * self.value) / (self.information + shrink)
        self.value = float(np.clip(moved, -MOST_SHIFT, MOST_SHIFT))


@dataclass(slots=True)
class AcceptanceModel:
    """Of one drafter. prior [DEPTHS, 2]: w and b before anything was seen.

    The default trusts confidences with a caution: half of the slope, and even odds.
    """

    prior: Floats = field(default_factory=lambda: np.tile([0.5, 0.0], (DEPTHS, 1)))
    rank: Floats = field(default_factory=lambda: -np.log2(np.arange(1.0, RANKS + 1)))
    classes: dict[str, Shift] = field(default_factory=dict)
    requests: dict[str, Shift] = field(default_factory=dict)
    weights: Floats = field(init=False)
    _information: Floats = field(init=False)
    _seen: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.weights = self.prior.copy()
        self._information = np.zeros((DEPTHS, 2, 2))
        self._seen = np.full((DEPTHS, 2), PRIOR_LABELS) * [0.5, 1.0]  # accepted and labels, the prior's included

    def chance(self, nodes: Nodes, classes: list[str], requests: list[str]) -> Floats:
        """[M]: probability of each node given its parent. classes, requests [B]."""
        at = np.minimum(nodes.depth, DEPTHS) - 1
        shifts = np.array(
            [
                sum(shift.value for shift in (self.classes.get(c), self.requests.get(r)) if shift is not None)
                for c, r in zip(classes, requests, strict=True)
            ],
            dtype=np.float64,
        )
        logit = self.weights[at, 0] * nodes.odds + self.weights[at, 1] + shifts[nodes.owner]
        return np.asarray(1 / (1 + np.exp(-(logit + self.rank[np.minimum(nodes.rank, RANKS - 1)]))))

    @property
    def means(self) -> Floats:
        """[DEPTHS]: accepted share of first children whose parent was accepted: what an undrafted node may hope for."""
        return np.asarray(self._seen[:, 0] / self._seen[:, 1])

    def learn(
        self,
        nodes: Nodes,
        accepted: BoolArray,
        labelled: BoolArray,
        classes: list[str],
        requests: list[str],
        shared: BoolArray,
    ) -> None:
        """labelled [M]: the node was verified and its parent accepted; others say nothing.

        shared [B]: False for requests whose processors distort acceptance; they move their own shift alone.
        """
        error = np.where(labelled, accepted - (chance := self.chance(nodes, classes, requests)), 0.0)
        curvature = np.where(labelled, chance * (1 - chance), 0.0)
        all_of = np.bincount(nodes.owner, error, len(requests)), np.bincount(nodes.owner, curvature, len(requests))
        labels = np.bincount(nodes.owner, labelled, len(requests))
        for i in np.flatnonzero(labels).tolist():
            gradient, bent, count = float(all_of[0][i]), float(all_of[1][i]), float(labels[i])
            self.requests.setdefault(requests[i], Shift()).learn(gradient, bent, count, SHRINK_REQUEST)
            if shared[i]:
                self.classes.setdefault(classes[i], Shift()).learn(gradient, bent, count, SHRINK_CLASS)
        used = labelled & shared[nodes.owner]
        if used.any():
            self._learn_depths(nodes, np.where(used, error, 0.0), np.where(used, curvature, 0.0), used)
            first = used & (nodes.rank == 0)
            at = np.minimum(nodes.depth, DEPTHS) - 1
            kept = KEEP ** np.bincount(at, first, DEPTHS)
            for column, weight in enumerate((first & accepted, first)):
                self._seen[:, column] = kept * self._seen[:, column] + np.bincount(at, weight, DEPTHS)

    def forget(self, request: str) -> None:
        self.requests.pop(request, None)

    def _learn_depths(self, nodes: Nodes, error: Floats, curvature: Floats, used: BoolArray) -> None:
        """One Newton step of every depth's (w, b), and of every rank."""
        at = np.minimum(nodes.depth, DEPTHS) - 1
        x = nodes.odds

        def summed(values: Floats) -> Floats:
            return np.asarray(np.bincount(at, values, DEPTHS), dtype=np.float64)

        hessian = np.stack([summed(curvature * x * x), summed(curvature * x), summed(curvature * x), summed(curvature)])
        kept = KEEP ** np.bincount(at, used, DEPTHS)
        self._information = kept[:, None, None] * self._information + hessian.T.reshape(DEPTHS, 2, 2)
        prior = np.eye(2) * PRIOR_LABELS
        pull = PRIOR_LABELS * (1 - kept)[:, None] * (self.prior - self.weights)
        gradient = np.stack([summed(error * x), summed(error)], axis=1) + pull
        self.weights += np.linalg.solve(self._information + prior, gradient[..., None])[..., 0]
        place = np.minimum(nodes.rank, RANKS - 1)
        steps = np.bincount(place, error, RANKS) / (np.bincount(place, curvature, RANKS) + PRIOR_LABELS)
        self.rank[1:] += 0.1 * steps[1:]  # the first child's term is the depth's own
