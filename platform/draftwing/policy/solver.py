"""The exact choice of one step: which draft nodes are verified, and whether to draft another level.

Verify: maximise tokens - rate * time. A node's survival is the product of acceptance on its path, so it never rises
along a path, and in the order (survival descending, depth ascending, index) every prefix is closed under parents. The
cost depends on the plan by the number of rows alone, so the best prefix is the best set. Costs are not monotone:
every prefix length is looked at, in one vector operation.

Survival is kept as an integer, the sum of -log2(p) * 2^24, and packed with depth and index into one integer to sort.
Sums of integers don't depend on their order, so a child never passes its parent.

Shapes: M nodes of all drafts laid end to end, B sequences, T thresholds, h levels ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from draftwing.core import IntArray
from draftwing.policy.base import BoolArray
from draftwing.policy.cost import Floats

FRACTION_BITS, DEPTH_BITS, INDEX_BITS = 24, 7, 21
LEAST_LOG = 16  # p below 2^-16 counts as 2^-16: 64 levels of it still fit beside depth and index
DEEPEST, MOST_NODES = 2**DEPTH_BITS - 1, 2**INDEX_BITS
THRESHOLDS = 32  # a step with more survivals looks at so many quantiles of the drafted and of the hoped-for ones
EACH = 4  # every number of sequences up to it is tried, and above it steps of a quarter


@dataclass(frozen=True, slots=True)
class Admitted:
    """nodes [n], ascending. tokens: expected of the draft, roots' bonus tokens left out. value: tokens - rate * ms."""

    nodes: IntArray
    tokens: float
    value: float


def path_keys(acceptance: Floats, parents: IntArray, deepest: int = DEEPEST) -> IntArray:
    """[M]: packed survival, depth and index. parents: -1 below a root, else an index into all M nodes.

    deepest: bound on the depth. Pointer doubling: log2(deepest) rounds, each adds what lies twice as far up.
    """
    count = len(acceptance)
    steps = np.zeros(count + 1, dtype=np.int64)  # the last entry stands for every root
    logs = np.minimum(-np.log2(np.maximum(acceptance, 2.0**-LEAST_LOG)), LEAST_LOG)
    steps[:count] = (np.rint(logs * 2.0**FRACTION_BITS).astype(np.int64) << DEPTH_BITS) + 1
    above = np.full(count + 1, count, dtype=np.int64)
    above[:count] = parents
    above[above < 0] = count
    for _ in range(max(deepest - 1, 0).bit_length()):
        steps += steps[above]
        above = above[above]
    return np.asarray((steps[:count] << INDEX_BITS) | np.arange(count))


def survival(keys: IntArray) -> Floats:
    return np.asarray(np.exp2((keys >> (DEPTH_BITS + INDEX_BITS)) * -(2.0**-FRACTION_BITS)))


def depths(keys: IntArray) -> IntArray:
    return np.asarray((keys >> INDEX_BITS) & DEEPEST)


def capped(keys: IntArray, owner: IntArray, most_nodes: IntArray, most_depth: IntArray) -> IntArray:
    """The keys that each sequence's own bounds leave: its best nodes, none too deep. owner [M]; bounds [B]."""
    left = keys[depths(keys) <= most_depth[owner]]
    mine = owner[left & (MOST_NODES - 1)]
    counts = np.bincount(mine, minlength=len(most_nodes))
    if (counts <= most_nodes).all():
        return np.asarray(left)
    order = np.lexsort((left, mine))
    rank = np.empty(len(left), dtype=np.int64)
    rank[order] = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(left[rank < most_nodes[mine]])


def admit(keys: IntArray, step_ms: Floats, rate: float, first: BoolArray | None = None) -> Admitted:
    """The best set to verify. step_ms [len(keys) + 1]: the step's time with 0, 1, ... nodes. rate: tokens per ms.

    first [len(keys)]: nodes that are verified whatever they bring; their parents must be among them.
    """
    least = 0 if first is None else int(first.sum())
    order = np.sort(keys) if first is None else np.concatenate([keys[first], np.sort(keys[~first])])
    values = np.empty(len(order) + 1)
    values[0] = 0.0
    np.cumsum(survival(order), out=values[1:])
    values -= rate * step_ms
    count = least + int(values[least:].argmax())
    value = float(values[count])
    return Admitted(np.sort(order[:count] & (MOST_NODES - 1)), value + rate * float(step_ms[count]), value)


@dataclass(frozen=True, slots=True)
class Ahead:
    """The best way on from here. sequences: how many draft on, those of highest frontier survival; 0: stop."""

    sequences: int
    levels: int
    gain: float


def look_ahead(
    drafted: Floats, frontier: Floats, means: Floats, step_ms: Floats, rate: float, level_ms: Floats
) -> Ahead:
    """Compare stopping with drafting the best m sequences 1, 2, ... h levels deeper, for m up to 4 and steps of a
    quarter above.

    drafted: survivals of the nodes that are there. frontier [B], descending: survival that the next node of each
    sequence is expected to have. means [h]: of an undrafted node given its parent, at the first level 1. step_ms:
    of 0, 1, ... nodes verified, at least len(drafted) + B * h of them beside none. level_ms [h, B + 1]: drafting h
    levels for m sequences. A set to verify is all nodes over a threshold, exact while thresholds are not sampled.
    Where sequences have equal chances, the first ones count as the better.
    """
    batch, levels = len(frontier), len(means)
    scale = np.cumprod(means)
    have = np.sort(drafted)
    hoped = (frontier[_quantiles(batch)][:, None] * scale).ravel()
    cuts = np.concatenate([hoped, have[_quantiles(len(have))], [2.0]])
    cuts.sort()
    first = np.searchsorted(have, cuts)  # ascending: nodes from here on are at or over the threshold
    sums = np.concatenate([[0.0], np.cumsum(have)])
    count0, tokens0 = len(have) - first, sums[-1] - sums[first]
    stop = float((tokens0 - rate * step_ms[count0]).max())
    ascending, front_sums = frontier[::-1], np.concatenate([[0.0], np.cumsum(frontier)])
    with np.errstate(divide="ignore", invalid="ignore"):
        limits = np.where(scale > 0, cuts[:, None] / scale, np.inf)
    over = batch - np.searchsorted(ascending, limits * (1 - 1e-12))  # [T, h]: of the whole frontier
    tried = _tried(batch)
    taken = np.minimum(over[:, None, :], tried[None, :, None])  # [T, m, h]
    count = count0[:, None, None] + np.cumsum(taken, axis=2)
    tokens = tokens0[:, None, None] + np.cumsum(front_sums[taken] * scale, axis=2)
    best = (tokens - rate * step_ms[count]).max(axis=0) - rate * level_ms[:, tried].T  # [m, h]
    at = int(best.argmax())
    gain = float(best.ravel()[at]) - stop
    return Ahead(int(tried[at // levels]), at % levels + 1, gain) if gain > 0 else Ahead(0, 0, 0.0)


@lru_cache(maxsize=512)
def _tried(batch: int) -> IntArray:
    found = list(range(1, min(batch, EACH) + 1))
    while found[-1] < batch:
        found.append(min(found[-1] + found[-1] // 4, batch))
    return np.array(found, dtype=np.int64)


@lru_cache(maxsize=4096)
def _quantiles(count: int) -> IntArray:
    """At most THRESHOLDS indexes of so many values, spread evenly, both ends among them."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, THRESHOLDS)).astype(np.int64))
