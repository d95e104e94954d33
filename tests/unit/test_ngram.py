"""Prompt lookup: the two published rules by stored and by independently restated results, and our own rule."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters.base import NullController, TargetInfo
from draftwing.drafters.ngram import NgramDrafter, NgramOptions, lookup_hf, lookup_vllm
from draftwing.testing.drafters import View


def slow_vllm(tokens: list[int], least: int, most: int, count: int, room: int) -> list[int]:
    for n in range(most, least - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                return tokens[start + n :][: max(0, min(count, room - len(tokens)))]
    return []


def slow_hf(tokens: list[int], most: int, count: int, room: int, eos: tuple[int, ...]) -> list[int]:
    if room == len(tokens) + 1:
        return []
    for n in range(min(most, len(tokens) - 1), 0, -1):
        for start in range(len(tokens) - n + 1):
            end = start + n
            draft = tokens[end : min(end + count, len(tokens), room)] if end < room else []
            if tokens[start:end] == tokens[-n:] and draft:
                stops = [i for i, token in enumerate(draft) if token in eos]
                return draft[: stops[0]] if stops else draft
    return []


def contexts() -> Iterator[tuple[list[int], random.Random]]:
    """Texts of few different tokens, where matches of every length overlap, and a source of further draws."""
    rng = random.Random(5)
    for _ in range(3000):
        kinds = rng.randint(1, 4)
        yield [rng.randrange(kinds) for _ in range(rng.randint(0, 40))], rng


def test_vllm_rule() -> None:
    for tokens, rng in contexts():
        least = rng.randint(1, 4)
        most, count = rng.randint(least, 6), rng.randint(0, 9)
        room = rng.choice([len(tokens) + rng.randint(-1, 4), 1000])
        expected = slow_vllm(tokens, least, most, count, room)
        assert lookup_vllm(tokens, least, most, count, room) == expected, (tokens, least, most, count, room)


def test_hf_rule() -> None:
    for tokens, rng in contexts():
        most, count = rng.randint(1, 6), rng.randint(1, 9)
        room = rng.choice([rng.randint(1, 50), len(tokens) + rng.randint(-1, 4), 1000])
        eos = [rng.randrange(4) for _ in range(rng.randint(0, 2))]
        expected = slow_hf(tokens, most, count, room, tuple(eos))
        assert lookup_hf(tokens, most, count, room, eos) == expected, (tokens, most, count, room, eos)
        if len(eos) == 1:
            assert lookup_hf(tokens, most, count, room, eos[0]) == expected
        if not eos:
            assert lookup_hf(tokens, most, count, room) == expected


def propose(drafter: NgramDrafter, tokens: list[int], branching: tuple[int, ...], nodes: int) -> DraftTree:
    shape = DraftShape(branching, nodes)
    (draft,) = drafter.propose([View("a", tokens, len(tokens))], StepPlan("lookup", (shape,)), NullController())
    return draft


def ngram(**options: object) -> NgramDrafter:
    drafter = NgramDrafter(NgramOptions.model_validate({"draft_per_match": None} | options))
    drafter.bind(TargetInfo(vocab_size=100, context_length=1000, eos_token_ids=(9,)))
    return drafter


@pytest.mark.parametrize(
    ("rule", "tokens", "expected"),
    [
        ("recent", [5, 1, 2, 9, 1, 2, 8, 5, 1, 2], [9, 1, 2, 8]),  # a longer match wins over a later one
        ("recent", [1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),
        ("vllm", [1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2, 4]),
        ("hf", [1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2, 4]),
        ("hf", [1, 2, 3, 9, 2, 4, 1, 2], [3]),
        ("recent", [7, 7, 7], [7, 7, 7, 7]),
        ("recent", [3, 1, 2, 1, 2], [1, 2, 1, 2]),
        ("vllm", [7, 7, 7], [7]),
        ("recent", [1, 2, 3], []),
        ("recent", [1], []),
    ],
)
def test_rules_of_the_drafter(rule: str, tokens: list[int], expected: list[int]) -> None:
    draft = propose(ngram(rule=rule, max_match=3), tokens, (1, 1, 1, 1), 4)
    assert draft.tokens.tolist() == expected
    assert draft.parents.tolist() == list(range(-1, len(expected) - 1))


def test_a_minimum_keeps_short_matches_out() -> None:
    assert len(propose(ngram(min_match=2, max_match=3), [1, 5, 2, 6, 1], (1,), 1)) == 0
    assert len(propose(ngram(min_match=1, max_match=3), [1, 5, 2, 6, 1], (1,), 1)) == 1


@pytest.mark.parametrize(("factor", "lengths"), [(1, [1, 2, 3]), (2, [2, 4, 5]), (0.5, [1, 1, 1]), (1.5, [1, 3, 4])])
def test_a_draft_is_no_longer_than_its_match_allows(factor: float, lengths: list[int]) -> None:
    drafter = ngram(draft_per_match=factor, max_match=3)
    for match, length in enumerate(lengths, start=1):
        tokens = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, *range(3 - match + 1, 4)]
        assert propose(drafter, tokens, (1,) * 5, 5).tokens.tolist() == list(range(4, 4 + length))
        drafter.release(View("a", [], 0))
        assert propose(drafter, tokens, (2, *(1,) * 4), 10).tokens.tolist() == list(range(4, 4 + length))
        drafter.release(View("a", [], 0))


def test_the_default_bounds_a_draft_by_its_match_except_in_published_rules() -> None:
    assert NgramOptions().draft_per_match == 1
    assert NgramOptions(rule="vllm").draft_per_match is None
    assert NgramOptions(rule="hf").draft_per_match is None


def test_a_tree_merges_continuations() -> None:
    tokens = [1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 6, 7, 0, 1, 2]
    draft = propose(ngram(rule="recent"), tokens, (2, 2), 8)
    # 0 1 2 -> 6 7, then 0 1 2 -> 3 5, then 1 2 -> 3 4
    assert draft.tokens.tolist() == [6, 7, 3, 5, 4]
    assert draft.parents.tolist() == [-1, 0, -1, 2, 2]
    assert propose(ngram(rule="recent"), tokens, (2, 1), 8).tokens.tolist() == [6, 7, 3, 5]
    assert propose(ngram(rule="recent"), tokens, (2, 2), 3).tokens.tolist() == [6, 7, 3]
    assert propose(ngram(rule="vllm"), tokens, (2, 2), 8).tokens.tolist() == [3, 5, 6, 7, 4]


def test_a_base_is_followed_and_forgotten() -> None:
    drafter = ngram()
    view = View("a", [1, 2, 3, 4, 1], 5)
    plan = StepPlan("lookup", (DraftShape((1, 1), 2),) * 2)
    drafts = drafter.propose([view, view], plan, NullController(), base=[[3], [2]])
    assert [draft.tokens.tolist() for draft in drafts] == [[4, 1], [3, 4]]
    (after,) = drafter.propose([view], StepPlan("lookup", plan.shapes[:1]), NullController())
    assert after.tokens.tolist() == [2, 3]


def test_tokens_that_grow_are_followed() -> None:
    drafter = ngram()
    rng = np.random.default_rng(0)
    tokens: list[int] = []
    for _ in range(200):
        tokens.extend(rng.integers(0, 6, rng.integers(1, 5)).tolist())
        followed, fresh = propose(drafter, tokens, (1, 1, 1), 3), propose(ngram(), tokens, (1, 1, 1), 3)
        assert followed.tokens.tolist() == fresh.tokens.tolist()


def test_a_call_at_two_thousand_tokens_is_cheap() -> None:
    drafter = ngram()
    tokens = np.random.default_rng(0).integers(0, 50, 2000).tolist()
    views, plan = [View("a", tokens, 1000)], StepPlan("lookup", (DraftShape((1,) * 8, 8),))

    def once() -> float:
        start = time.perf_counter()
        drafter.propose(views, plan, NullController())
        return time.perf_counter() - start

    assert min(once() for _ in range(200)) < 100e-6  # about 15 on an idle core; a Python loop over tokens takes 300
