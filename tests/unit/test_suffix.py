"""Suffix decoding: counts by an independent restatement, what salts share, undoing, evicting, closing gaps."""

from __future__ import annotations

import random

import numpy as np
import pytest

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters import suffix_cache
from draftwing.drafters.base import NullController
from draftwing.drafters.suffix import SuffixDrafter, SuffixOptions
from draftwing.drafters.suffix_cache import Corpus, Limits, Speculation, SuffixCache
from draftwing.testing.drafters import View

WIDE = 1000


def occurrences(streams: list[list[int]], wanted: list[int]) -> int:
    size = len(wanted)
    return sum(s[i : i + size] == wanted for s in streams for i in range(len(s) - size + 1))


def slow_score(streams: list[list[int]], context: list[int], limits: Limits, depth: int) -> float:
    """The best score of a chain over all lengths of match, where no two continuations are equally frequent."""
    context, best = context[-depth:], 0.0
    for match in range(1, len(context)):
        pattern, score = context[-match:], 0.0
        if not (total := occurrences(streams, pattern)):
            break
        for _ in range(min(limits.budget(match), depth - match)):
            counts = {t: occurrences(streams, [*pattern, t]) for t in {t for s in streams for t in s}}
            token = max(counts, key=lambda t: counts[t])
            if counts[token] == 0 or counts[token] / total < limits.least:
                break
            if sorted(counts.values())[-2:] == [counts[token]] * 2:
                return -1.0
            pattern.append(token)
            score += counts[token] / total
        best = max(best, score)
    return best


def paths(draft: Speculation) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return set(found)


@pytest.mark.parametrize("few", [0, 16])
def test_chains_score_as_counting_says(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """few 0: all is counted as arrays."""
    monkeypatch.setattr(suffix_cache, "FEW", few)
    rng = random.Random(3)
    compared = 0
    for _ in range(60):
        depth = rng.randrange(3, 9)
        corpus, streams = Corpus(depth), [list[int](), []]
        for _ in range(8):
            which, more = rng.randrange(2), rng.choices(range(5), (4, 3, 2, 1, 1), k=rng.randrange(1, 9))
            streams[which] += more
            corpus.extend(str(which), more)
        limits = Limits(rng.randrange(1, 6), rng.choice((0.5, 1.0, 2.0)), rng.choice((0.0, 1.0)), 0.15)
        context = streams[rng.randrange(2)][-10:]
        if (expected := slow_score(streams, context, limits, depth)) >= 0:
            assert corpus.speculate(context, limits).score == pytest.approx(expected), (streams, context, limits)
            compared += 1
    assert compared > 20


def test_a_tree_keeps_its_branching_and_budget() -> None:
    corpus = Corpus(8)
    for i, continuation in enumerate(([3, 4], [3, 5], [6, 7], [8, 9], [3, 4])):
        corpus.extend(str(i), [1, 2, *continuation])
    found = corpus.speculate([0, 1, 2], Limits(3, 9.0, branching=(2, 1)))
    assert paths(found) == {(3,), (3, 4), (8,)}  # the later one of equally frequent continuations
    assert found.probabilities[:2] == [0.6, 0.4]
    assert paths(corpus.speculate([0, 1, 2], Limits(WIDE, 9.0, least=0.3, branching=(WIDE,)))) == {(3,), (3, 4)}
    assert paths(corpus.speculate([0, 1, 2], Limits(WIDE, 9.0, branching=(1, 0)))) == {(3,)}


def state(cache: SuffixCache) -> list[Speculation]:
    contexts = ([1, 2, 3], [3, 1], [2, 2, 1])
    return [cache.speculate("a", context, Limits(9, 4.0, branching=(WIDE,))) for context in contexts]


def test_undoing_leaves_no_trace() -> None:
    cache = SuffixCache(8, -1)
    for name in ("a", "b"):
        cache.start(name, [1, 2, 3, 1, 2])
        cache.extend(name, [2, 3, 1])
    before = state(cache)
    for name in ("a", "b"):
        cache.extend(name, [3, 1, 2, 2, 9])
        cache.undo(name, 5)
    assert state(cache) == before


def test_the_oldest_answers_go_and_their_room_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_cache, "LEAST_COMPACTED", 16)
    rng = random.Random(5)
    cache, answers = SuffixCache(8, 3), []
    for number in range(40):
        answers.append(rng.choices(range(6), k=10))
        cache.start(str(number), [])
        cache.extend(str(number), answers[-1])
        if number % 2:
            cache.stop(str(number))
        assert cache.cached == [str(i) for i in range(max(number - 2, 0), number + 1)]
    shared = cache._shared[""]
    fresh = Corpus(8)
    for number in (37, 38, 39):
        fresh.extend(str(number), answers[number])
    assert shared._size < 16 + 2 * 30
    limits = Limits(9, 4.0, branching=(WIDE,))
    for answer in answers[-3:]:
        for end in range(2, 10):
            assert shared.speculate(answer[:end], limits) == fresh.speculate(answer[:end], limits)


def ask(drafter: SuffixDrafter, view: View, shape: DraftShape | None = None) -> DraftTree:
    plan = StepPlan("it", (shape or DraftShape((1,) * 6, 6),))
    return drafter.propose([view], plan, NullController())[0]


def test_answers_help_later_requests_of_the_same_salt_only() -> None:
    drafter = SuffixDrafter(SuffixOptions(factor=4.0))
    first = View("a", [1, 2, 3, 10, 11, 12, 13, 14], 3, salt="mine")
    drafter.prefill([first])
    drafter.release(first)
    draft = ask(drafter, View("b", [7, 8, 10, 11], 2, salt="mine"))
    assert draft.tokens.tolist() == [12, 13, 14]
    assert draft.confidences is not None
    np.testing.assert_allclose(draft.confidences, [0.5, 1, 1])  # one of two: its own end is counted too
    assert len(ask(drafter, View("c", [7, 8, 10, 11], 2, salt="other"))) == 0
    assert len(ask(drafter, View("d", [7, 8, 2], 2, salt="mine"))) == 0, "prompts are not shared"


def test_a_preempted_request_is_not_counted_twice() -> None:
    drafter = SuffixDrafter()
    view = View("a", [1, 2, 3, 4, 5], 1)
    for _ in range(3):
        drafter.prefill([view])
        drafter.release(view)
    later = View("b", [9, 2, 3], 1)
    confidences = ask(drafter, later).confidences
    assert confidences is not None
    np.testing.assert_allclose(confidences, [0.5, 1])
