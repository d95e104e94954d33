"""What the acceptance model knows before its first request: fitted to a trace, whose text labels every proposal.

    logit p = w_d x + b_d + rank_r + class_c

as in `draftwing.policy.acceptance`: x the log-odds of the confidence, d the depth, r the place among siblings, c the
class of the request. A node is labelled where its parent was accepted. Penalised maximum likelihood by Newton's method;
the penalty draws to what an untuned model believes, with the weight of a few labels.

Shapes: M labelled nodes, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftwing.core import DraftTree, IntArray
from draftwing.drafters.tree import depths
from draftwing.policy.acceptance import DEPTHS, PRIOR_LABELS, RANKS
from draftwing.policy.artifact import AcceptanceRow
from draftwing.policy.base import CLASSES, acceptance_class
from draftwing.policy.nodes import log_odds, ranks
from draftwing_tuner.trace import Trace

Floats = npt.NDArray[np.float64]
PULL = PRIOR_LABELS / 4  # a label's information at even odds is a quarter
STEPS, ENOUGH = 30, 1e-8


@dataclass(frozen=True, slots=True)
class Labels:
    """depth [M], 1 below a root. rank [M]. odds [M]. group [M]: class of the request. accepted [M]."""

    depth: IntArray
    rank: IntArray
    odds: Floats
    group: IntArray
    accepted: npt.NDArray[np.bool_]


def labels_of(trace: Trace, drafter: str) -> Labels:
    """Every node whose parent the text followed, at every position."""
    parts: list[tuple[IntArray, IntArray, Floats, npt.NDArray[np.bool_]]] = []
    groups: list[IntArray] = []
    for request, proposals in zip(trace.requests, trace.proposals[drafter], strict=True):
        own = acceptance_class(request.temperature, distorted=False)
        for position in range(1, len(request.output)):
            draft = proposals.at(position)
            if len(draft):
                found = _labels(draft, request.output[position:])
                parts.append(found)
                groups.append(np.full(len(found[0]), own))
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return Labels(empty, empty, np.empty(0), empty, np.empty(0, dtype=np.bool_))
    depth, rank, odds, accepted = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Labels(depth, rank, odds, np.concatenate(groups), accepted)


def fit_priors(labels: Labels) -> tuple[AcceptanceRow, ...]:
    """Rows for every depth, rank and class that has labels."""
    x, centre = _design(labels)
    solved = _newton(x, labels.accepted, centre)
    depth, rank, group = _places(labels)
    return tuple(
        [
            AcceptanceRow("depth", d + 1, float(solved[d]), float(solved[DEPTHS + d]), *_counts(depth == d, labels))
            for d in np.unique(depth).tolist()
        ]
        + [
            AcceptanceRow("rank", r, 0.0, float(solved[2 * DEPTHS + r]), *_counts(rank == r, labels))
            for r in np.unique(rank).tolist()
            if r > 0
        ]
        + [
            AcceptanceRow("class", c, 0.0, float(solved[2 * DEPTHS + RANKS + c]), *_counts(group == c, labels))
            for c in np.unique(group).tolist()
        ]
    )


def _labels(draft: DraftTree, following: Iterable[int]) -> tuple[IntArray, IntArray, Floats, npt.NDArray[np.bool_]]:
    text = np.array(list(following)[: int(depths(draft.parents).max())], dtype=np.int64)
    depth = depths(draft.parents)
    owner = np.zeros(len(draft), dtype=np.int64)
    known = depth <= len(text)
    matches = known & (draft.tokens == np.append(text, -1)[np.minimum(depth - 1, len(text))])
    reached = np.ones(len(draft), dtype=np.bool_)
    for node, parent in enumerate(draft.parents.tolist()):
        if parent >= 0:
            reached[node] = reached[parent] and matches[parent]
    used = reached & known
    odds = log_odds(draft.confidences, len(draft))
    return depth[used], ranks(draft.parents, owner)[used], odds[used], matches[used]


def _places(labels: Labels) -> tuple[IntArray, IntArray, IntArray]:
    return np.minimum(labels.depth, DEPTHS) - 1, np.minimum(labels.rank, RANKS - 1), labels.group


def _design(labels: Labels) -> tuple[Floats, Floats]:
    """[M, P] with the columns w, b, rank, class, and where the penalty draws each parameter to [P]."""
    depth, rank, group = _places(labels)
    count = len(depth)
    x = np.zeros((count, 2 * DEPTHS + RANKS + CLASSES))
    at = np.arange(count)
    x[at, depth] = labels.odds
    x[at, DEPTHS + depth] = 1.0
    x[at, 2 * DEPTHS + rank] = rank > 0
    x[at, 2 * DEPTHS + RANKS + group] = 1.0
    centre = np.zeros(x.shape[1])
    centre[:DEPTHS] = 0.5
    centre[2 * DEPTHS : 2 * DEPTHS + RANKS] = -np.log2(np.arange(1.0, RANKS + 1))
    return x, centre


def _newton(x: Floats, accepted: npt.NDArray[np.bool_], centre: Floats) -> Floats:
    solved = centre.copy()
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-np.clip(x @ solved, -30, 30)))
        gradient = x.T @ (accepted - chance) - PULL * (solved - centre)
        hessian = (x * (chance * (1 - chance))[:, None]).T @ x + PULL * np.eye(len(solved))
        step = np.linalg.solve(hessian, gradient)
        solved = solved + np.clip(step, -2, 2)
        if np.abs(step).max() < ENOUGH:
            break
    return solved


def _counts(mask: npt.NDArray[np.bool_], labels: Labels) -> tuple[float, float]:
    """Labels, and the accepted share of first children among them."""
    first = mask & (labels.rank == 0)
    mean = float(labels.accepted[first].mean()) if first.any() else 0.0
    return float(mask.sum()), mean
