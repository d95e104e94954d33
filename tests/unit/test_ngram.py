"""Prompt lookup: the two published rules by stored and by independently restated results, and our own rule."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters.base import NullController, TargetInfo
from draftwing.drafters.ngram import NgramDrafter, NgramOptions, lookup_hf, lookup_vllm
from draftwing.testing.drafters import View

texts = st.lists(st.integers(0, 3), max_size=40)


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


@given(texts, st.integers(1, 5), st.integers(0, 4), st.integers(1, 9), st.integers(0, 50))
def test_vllm_rule(tokens: list[int], least: int, more: int, count: int, room: int) -> None:
    expected = slow_vllm(tokens, least, least + more, count, room)
    assert lookup_vllm(tokens, least, least + more, count, room) == expected


@given(texts, st.integers(1, 6), st.integers(1, 9), st.integers(1, 50), st.lists(st.integers(0, 3), max_size=2))
def test_hf_rule(tokens: list[int], most: int, count: int, room: int, eos: list[int]) -> None:
    assert lookup_hf(tokens, most, count, room, eos) == slow_hf(tokens, most, count, room, tuple(eos))
    if len(eos) == 1:
        assert lookup_hf(tokens, most, count, room, eos[0]) == slow_hf(tokens, most, count, room, tuple(eos))


def propose(drafter: NgramDrafter, tokens: list[int], branching: tuple[int, ...], nodes: int) -> DraftTree:
    shape = DraftShape(branching, nodes)
    (draft,) = drafter.propose([View("a", tokens, len(tokens))], StepPlan("lookup", (shape,)), NullController())
    return draft


def ngram(**options: object) -> NgramDrafter:
    drafter = NgramDrafter(NgramOptions.model_validate(options))
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
