"""`sampling: rejection`: the classic rules, exact in distribution; which tokens come out depends on the drafts.

Leviathan, Kalman, Matias 2023 and Chen and others 2023 for chains; Miao and others (SpecInfer) 2023 for siblings drawn
without replacement. A draft that was chosen, not drawn (a lookup, the top of q), counts as drawn with certainty.

At a node the target's distribution is g. Its children are tried in order: child x, drawn from q, is accepted with
probability min(1, g(x) / q(x)); if it is not, g becomes the rest, max(g - q, 0) made a distribution, and q loses x.
Where all are refused the token is drawn from g. Whether a node is offered at all must not depend on its own token nor
on later ones, or the output is no longer the target's.

The uniforms are noise of ids that no token has: test j of a position reads that of -2 - j, the final draw that of -1.
A position is decided in one step, so none is read twice, and a seed gives the same output for the same drafts.

V vocabulary, N rows of one draft, the root first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from draftwing.core import DraftTree, IntArray
from draftwing.engine.noise import draws, streams
from draftwing.engine.rows import Layout
from draftwing.engine.sampling import Choice, probabilities

Probabilities = npt.NDArray[np.float64]


@torch.inference_mode()
def choose_by_rejection(choice: Choice, logits: torch.Tensor, layout: Layout, drafts: list[DraftTree]) -> Choice:
    """The choice that makes the walk of R1 take what these rules accept, for sequences with a temperature.

    choice: R1's own, kept at temperature 0 and where logits are not finite. drafts: those of the first sequences.
    """
    tokens, rows = choice.tokens.copy(), layout.sample_rows()
    drawn = np.flatnonzero(rows.parameter("temperature") > 0)
    if not len(drawn):
        return choice
    targets = probabilities(logits[torch.from_numpy(drawn).to(logits.device)], rows.take(drawn)).cpu().numpy()
    for i, (sequence, start) in enumerate(zip(layout.sequences, layout.starts.tolist(), strict=True)):
        mine = np.arange(start, start + layout.batch[i].wanted)
        if sequence.params.temperature == 0 or not len(mine) or not choice.finite[mine].all():
            continue
        first = int(np.searchsorted(drawn, start))
        target = targets[first : first + len(mine)].astype(np.float64)
        target /= target.sum(-1, keepdims=True)
        parents = layout.parents[mine] - start
        parents[0] = -1
        tests, final = _uniforms(sequence.sampler.key, rows.positions[mine], parents)
        draft = _dense(drafts[i], target.shape) if i < len(drafts) else None
        found = walk(layout.tokens[mine], parents, target, draft, tests, final)
        tokens[mine] = -1  # no node has this token
        path = start + np.array(found.path)
        tokens[path[:-1]], tokens[path[-1]] = layout.tokens[path[1:]], found.token
    return Choice(tokens, choice.finite)


def _uniforms(key: int, positions: IntArray, parents: IntArray) -> tuple[Probabilities, Probabilities]:
    """Of each row's own test, and of the final draw at each row, both [N] in (0, 1)."""
    order = np.argsort(parents, kind="stable")
    firsts = np.searchsorted(parents[order], parents)
    place = np.empty(len(parents), dtype=np.int64)
    place[order] = np.arange(len(parents))
    stream = streams(np.full(len(positions), key), positions)
    ids = np.stack([-2 - (place - firsts), np.full(len(parents), -1)])
    words = torch.from_numpy(np.stack([stream[parents], stream]))
    tests, final = (draws(words, torch.from_numpy(ids)).numpy() + 0.5) * 2.0**-24
    return tests, final


def _dense(tree: DraftTree, shape: tuple[int, ...]) -> Probabilities | None:
    if tree.sources is None:
        return None
    dense = np.zeros(shape)
    rows = np.arange(len(tree.sources.ids))
    dense[rows[:, None], tree.sources.ids] = tree.sources.weights
    return dense


@dataclass(frozen=True, slots=True)
class Walk:
    """path: accepted rows, the root first. tested: rows in the order of their tests. rest [V]: what `token` is of."""

    path: list[int]
    tested: list[int]
    rest: Probabilities
    token: int


def walk(
    tokens: IntArray,
    parents: IntArray,
    target: Probabilities,
    draft: Probabilities | None,
    uniforms: Probabilities,
    final: Probabilities,
) -> Walk:
    """Accept or refuse one draft.

    tokens, parents, uniforms [N]: parents precede children, the root's is -1, and siblings are tried in order.
    target [N, V]: the distribution after each row. draft [N, V]: what the children of each row were drawn from without
    replacement, None for drafts that were chosen. uniforms, final [N] in [0, 1): row i's own test, and the draw that
    ends a walk at row i.
    """
    at, path, tested = 0, [0], list[int]()
    while True:
        rest = target[at]
        drawn_from = None if draft is None else draft[at].copy()
        accepted = None
        for child in np.flatnonzero(parents == at).tolist():
            tested.append(child)
            token = int(tokens[child])
            q = one_hot(token, len(rest)) if drawn_from is None else normalised(drawn_from)
            if q[token] > 0 and uniforms[child] * q[token] < rest[token]:
                accepted = child
                break
            rest = residual(rest, q)
            if drawn_from is not None:
                drawn_from[token] = 0.0
        if accepted is None:
            return Walk(path, tested, rest, pick(rest, final[at]))
        at = accepted
        path.append(at)


def one_hot(token: int, size: int) -> Probabilities:
    row = np.zeros(size)
    row[token] = 1.0
    return row


def normalised(weights: Probabilities) -> Probabilities:
    """weights [V] >= 0 as a distribution; all zero stays so."""
    total = weights.sum()
    return weights / total if total > 0 else weights


def residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """What is left of p [V] once a draft drawn from q was refused; p itself where rounding leaves nothing."""
    left = np.maximum(p - q, 0.0)
    return normalised(left) if left.sum() > 0 else p


def pick(distribution: Probabilities, uniform: float) -> int:
    """The smallest id whose cumulative probability exceeds `uniform`, in [0, 1)."""
    cumulative = np.cumsum(distribution)
    found = int(np.searchsorted(cumulative, uniform, side="right"))
    return min(found, int(np.flatnonzero(distribution)[-1]))
