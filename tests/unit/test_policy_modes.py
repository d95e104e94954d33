"""Modes off and fixed: what the text means, how room cuts a shape, and what a wrong one says."""

from __future__ import annotations

import pytest

from draftwing.core import NO_DRAFT, DraftShape
from draftwing.drafters.base import DrafterTraits
from draftwing.errors import ConfigError
from draftwing.policy.base import PlanInputs
from draftwing.policy.modes import OffPolicy, parse_mode
from draftwing.testing.policies import plan_inputs_of


def inputs(*room: tuple[bool, int, int]) -> PlanInputs:
    speculate, tokens, nodes = zip(*room, strict=True)
    return plan_inputs_of(len(room), speculate=speculate, tokens_left=tokens, nodes_left=nodes)


@pytest.mark.parametrize(
    ("text", "branching", "nodes"),
    [
        ("fixed:k=4", (1, 1, 1, 1), 4),
        ("fixed:k=4,width=1", (1, 1, 1, 1), 4),
        ("fixed:k=4,width=2", (2, 1, 1, 1), 8),
        ("fixed:k=1,width=3", (3,), 3),
        ("fixed:k=64", (1,) * 64, 64),
        ("fixed:k=0", (), 0),
        ("fixed:tree=3x2x1", (3, 2, 1), 15),
        ("fixed:tree=5", (5,), 5),
        (" fixed:k=2 ", (1, 1), 2),
    ],
)
def test_what_a_mode_means(text: str, branching: tuple[int, ...], nodes: int) -> None:
    policy = parse_mode(text, "lookup", DrafterTraits(trees=True))
    plan = policy.decide(inputs((True, 1000, 1000)))
    assert plan.shapes == (DraftShape(branching, nodes),)
    assert policy.largest == plan.shapes[0]
    assert plan.drafter == "lookup"
    assert plan.reason == text.strip()


def test_off_drafts_nothing() -> None:
    policy = parse_mode("off", "lookup")
    assert isinstance(policy, OffPolicy)
    assert policy.decide(inputs((True, 9, 9), (False, 9, 9))).shapes == (NO_DRAFT, NO_DRAFT)
    assert policy.largest == NO_DRAFT
    assert policy.decide(plan_inputs_of(0)).shapes == ()


def test_room_cuts_each_sequence_by_itself() -> None:
    plan = parse_mode("fixed:k=4,width=2", "lookup").decide(
        inputs((True, 1000, 1000), (False, 1000, 1000), (True, 3, 1000), (True, 1, 1000), (True, 1000, 5), (True, 9, 0))
    )
    assert plan.shapes == (
        DraftShape((2, 1, 1, 1), 8),
        NO_DRAFT,  # the request said no
        DraftShape((2, 1), 4),  # of 3 tokens left the last is the bonus token
        NO_DRAFT,
        DraftShape((2, 1, 1, 1), 5),
        NO_DRAFT,
    )


def test_the_same_inputs_give_the_same_plan() -> None:
    room = inputs(*((bool(i % 3), 1 + i % 7, i % 11) for i in range(100)))
    assert parse_mode("fixed:tree=3x2", "a").decide(room) == parse_mode("fixed:tree=3x2", "a").decide(room)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fixed", "expected off"),
        ("fixed:", "expected off"),
        ("fixed:k=", "expected off"),
        ("fixed:k=-1", "expected off"),
        ("fixed:k=4,width=", "expected off"),
        ("fixed:k=4,depth=2", "expected off"),
        ("fixed:width=2", "expected off"),
        ("fixed:tree=", "expected off"),
        ("fixed:tree=3x", "expected off"),
        ("fixed:tree=3,2", "expected off"),
        ("fixed:k=nan", "expected off"),
        ("k=4", "expected off"),
        ("", "expected off"),
        ("fixed:k=65", "expected 0 to 64"),
        ("fixed:k=99999999", "expected 0 to 64"),
        ("fixed:tree=" + "x".join("1" * 65), "expected 0 to 64"),
        ("fixed:k=4,width=0", "width 0; expected 1 to 32"),
        ("fixed:tree=2x0", "width 0; expected 1 to 32"),
        ("fixed:tree=33", "width 33; expected 1 to 32"),
        ("fixed:tree=32x32", "1056 draft nodes a sequence; expected at most 512"),
        ("fixed:k=64,width=9", "576 draft nodes"),
        ("table:k=4", "expected off"),
        ("adaptive:k=", "expected off"),
        ("adaptive:k=65", "expected 0 to 64"),
    ],
)
def test_a_wrong_mode_is_named_with_what_is_accepted(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.mode is") as error:
        parse_mode(text, "lookup")
    assert says in str(error.value)
    assert repr(text) in str(error.value)


def test_a_drafter_must_be_able_to() -> None:
    with pytest.raises(ConfigError, match="drafts at most 3 tokens"):
        parse_mode("fixed:k=4", "head", DrafterTraits(max_depth=3))
    with pytest.raises(ConfigError, match="drafts chains only"):
        parse_mode("fixed:k=4,width=2", "head", DrafterTraits())
    assert parse_mode("fixed:k=3", "head", DrafterTraits(max_depth=3)).largest.depth == 3
