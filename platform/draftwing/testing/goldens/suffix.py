"""Kind `suffix`: a suffix cache's life replayed call by call, each draft compared."""

from __future__ import annotations

import json
from typing import Any

from draftwing.drafters.suffix_cache import Limits, Speculation, SuffixCache
from draftwing.testing.goldens.case import Case, CaseError, Verdict

UNBOUNDED = 2**31 - 1


def check(case: Case) -> Verdict:
    path = case.folder / case.meta["files"]["ops"]
    try:
        scenarios = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaseError(f"{path} can't be read: {error}") from error
    verdict = Verdict()
    for scenario in scenarios:
        _replay(scenario, case, verdict)
    return verdict


def _replay(scenario: dict[str, Any], case: Case, verdict: Verdict) -> None:
    cache = SuffixCache(scenario["max_tree_depth"], scenario["max_cached_requests"])
    for number, op in enumerate(scenario["ops"]):
        match op["op"]:
            case "start":
                cache.start(op["req"], op["prompt"])
            case "add":
                cache.extend(op["req"], op["tokens"])
            case "stop":
                cache.stop(op["req"])
            case "speculate":
                branching = UNBOUNDED if op["use_tree_spec"] else 1
                limits = Limits(
                    op["max_spec_tokens"],
                    op["max_spec_factor"],
                    op["max_spec_offset"],
                    op["min_token_prob"],
                    (branching,),
                )
                got = cache.speculate(op["req"], op["context"], limits)
                _compare(f"{scenario['name']}, op {number}", got, op, case, verdict)
            case "cached_requests":
                verdict.equal(f"{scenario['name']}, cached requests", cache.cached, op["result"])
            case other:
                raise CaseError(f"op {other!r} is unknown; expected start, add, speculate, stop or cached_requests")


def _compare(what: str, got: Speculation, op: dict[str, Any], case: Case, verdict: Verdict) -> None:
    want = op["result"]
    if op["tie"] == "content":
        return
    verdict.equal(f"{what}, match", got.match, want["match_len"])
    verdict.close(f"{what}, score", got.score, want["score"], case.tolerance("score"))
    if op["tie"] == "order":
        theirs = _paths(want["token_ids"], want["parents"])
        same = _paths(got.tokens, got.parents) == theirs
        verdict.equal(f"{what}, paths", same, True)
        return
    verdict.equal(f"{what}, tokens", got.tokens, want["token_ids"])
    verdict.equal(f"{what}, parents", got.parents, want["parents"])
    verdict.close(f"{what}, probabilities", got.probabilities, want["probs"], case.tolerance("score"))


def _paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)
