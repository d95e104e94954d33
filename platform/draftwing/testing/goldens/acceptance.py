"""Kind `acceptance`: which drafts the classic rules accept, and what is left to draw the next token from.

Chains and trees; K drafts of a chain, V vocabulary. A tree's row 0 is its root.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from draftwing.core import IntArray
from draftwing.engine.rejection import Probabilities, Walk, one_hot, walk
from draftwing.testing.goldens.case import Case, Verdict

ABSENT = -1


def check(case: Case) -> Verdict:
    verdict = Verdict()
    _trees(case, verdict) if "parents" in case.tensors else _chains(case, verdict)
    return verdict


def _chains(case: Case, verdict: Verdict) -> None:
    tolerance = case.tolerance("dist")
    drafted, target = case.tensor("drafted"), case.tensor("target_probs").astype(np.float64)
    drawn_from = case.tensors.get("draft_probs")
    depth, size = drafted.shape[1], target.shape[-1]
    for i, tokens in enumerate(drafted):
        q = None if drawn_from is None else np.concatenate([drawn_from[i].astype(np.float64), np.zeros((1, size))])
        uniforms = np.concatenate([[0.0], case.tensor("uniforms")[i]])
        rows = np.concatenate([[ABSENT], tokens])
        last = np.full(depth + 1, case.tensor("uniform_final")[i])
        found = walk(rows, np.arange(depth + 1) - 1, target[i], q, uniforms, last)
        emitted = [*rows[found.path[1:]].tolist(), found.token]
        _compare(case, verdict, i, found)
        verdict.equal(f"{i} emitted", _padded(emitted, depth + 1), case.tensor("emitted")[i])
        shares = [q[k] if q is not None else one_hot(int(token), size) for k, token in enumerate(tokens)]
        chances = [_chance(target[i, k], share, int(tokens[k])) for k, share in enumerate(shares)]
        verdict.close(f"{i} accept_prob", chances, case.tensor("accept_prob")[i], tolerance)
        if "expected_accept" in case.tensors:
            overlap = np.minimum(target[i, :depth], np.stack(shares)).sum(-1)
            verdict.close(f"{i} expected_accept", overlap, case.tensor("expected_accept")[i], tolerance)


def _chance(p: Probabilities, q: Probabilities, token: int) -> float:
    """Probability that a draft is accepted when it is tested."""
    return float(min(1.0, p[token] / q[token])) if q[token] > 0 else float(p[token] > 0)


def _trees(case: Case, verdict: Verdict) -> None:
    """Children of `*_topk` cases were chosen; those of others were drawn from draft_probs."""
    chosen = "topk" in str(case.meta["case"])
    parents = case.tensor("parents")
    for i, tokens in enumerate(case.tensor("tokens")):
        q = None if chosen else case.tensor("draft_probs")[i].astype(np.float64)
        uniforms, last = case.tensor("uniforms")[i], np.full(len(tokens), case.tensor("uniform_final")[i])
        found = walk(tokens, parents, case.tensor("target_probs")[i].astype(np.float64), q, uniforms, last)
        _compare(case, verdict, i, found)
        verdict.equal(f"{i} final_token", found.token, case.tensor("final_token")[i])
        for name, rows in (("accepted_path", found.path), ("tested_nodes", found.tested)):
            stored = case.tensor(name)[i]
            verdict.equal(f"{i} {name}", _padded(rows, len(stored)), stored)
        assert all(parents[below] == above for above, below in pairwise(found.path))


def _compare(case: Case, verdict: Verdict, i: int, found: Walk) -> None:
    verdict.equal(f"{i} accepted", len(found.path) - 1, case.tensor("accepted")[i])
    verdict.close(f"{i} final_dist", found.rest, case.tensor("final_dist")[i], case.tolerance("dist"))


def _padded(values: list[int], size: int) -> IntArray:
    return np.array(values + [ABSENT] * (size - len(values)), dtype=np.int64)
