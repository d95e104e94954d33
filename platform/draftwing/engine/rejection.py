"""`sampling: rejection`: the classic rules, exact in distribution; which tokens come out depends on the drafts.

Leviathan, Kalman, Matias 2023 and Chen and others 2023 for chains; Miao and others (SpecInfer) 2023 for siblings drawn
without replacement. A draft that was chosen, not drawn (a lookup, the top of q), counts as drawn with certainty.

At a node the target's distribution is g. Its children are tried in order: child x, drawn from q, is accepted with
probability min(1, g(x) / q(x)); if it is not, g becomes the rest, max(g - q, 0) made a distribution, and q loses x.
Where all are refused the token is drawn from g. Whether a node is offered at all must not depend on its own token nor
on later ones, or the output is no longer the target's.

V vocabulary, N rows of one draft, the root first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftwing.core import IntArray

Probabilities = npt.NDArray[np.float64]


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
    uniform_final: float,
) -> Walk:
    """Accept or refuse one draft.

    tokens, parents, uniforms [N]: parents precede children, the root's is -1, and siblings are tried in order.
    target [N, V]: the distribution after each row. draft [N, V]: what the children of each row were drawn from without
    replacement, None for drafts that were chosen. uniforms in [0, 1): row i's decides its test.
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
            if uniforms[child] * q[token] < rest[token]:
                accepted = child
                break
            rest = residual(rest, q)
            if drawn_from is not None:
                drawn_from[token] = 0.0
        if accepted is None:
            return Walk(path, tested, rest, pick(rest, uniform_final))
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


def acceptance(p: Probabilities, q: Probabilities, token: int) -> float:
    """Probability that a draft is accepted when it is tested."""
    return float(min(1.0, p[token] / q[token])) if q[token] > 0 else float(p[token] > 0)


def pick(distribution: Probabilities, uniform: float) -> int:
    """The smallest id whose cumulative probability exceeds `uniform`, in [0, 1)."""
    cumulative = np.cumsum(distribution)
    found = int(np.searchsorted(cumulative, uniform, side="right"))
    return min(found, int(np.flatnonzero(distribution)[-1]))
