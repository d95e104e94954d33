import math

import pytest

from draftwing.testing.same_tokens import assert_same_tokens, compare_tokens

PLAIN = [[1, 2, 3, 4], [5, 6, 7]]


def test_equal() -> None:
    report = assert_same_tokens(PLAIN, [list(s) for s in PLAIN])
    assert report.identical
    assert report.tokens == 7
    assert str(report) == "7 tokens of 2 sequences compared: identical"


@pytest.mark.parametrize(
    "other",
    [
        [[1, 2, 9, 4], [5, 6, 7]],  # another token
        [[1, 2, 3], [5, 6, 7]],  # ended early
        [[1, 2, 3, 4], [5, 6, 7, 8]],  # ended late
        [[1, 2, 3, 4], []],
    ],
)
def test_any_difference_fails_exactly(other: list[list[int]]) -> None:
    with pytest.raises(AssertionError, match="1 wrong, 0 near-ties"):
        assert_same_tokens(PLAIN, other)


def test_number_of_sequences_must_agree() -> None:
    with pytest.raises(ValueError, match="plain has 2 sequences, other has 1"):
        compare_tokens(PLAIN, PLAIN[:1])


def test_a_near_tie_is_excused_counted_and_ends_the_comparison() -> None:
    asked = []

    def gap(sequence: int, position: int) -> float:
        asked.append((sequence, position))
        return 9e-4

    report = assert_same_tokens(PLAIN, [[1, 9, 9, 9, 9], [5, 6, 7]], near_tie=gap)
    assert asked == [(0, 1)]
    assert len(report.near_ties) == 1
    assert not report.identical
    assert report.passed
    assert report.tokens == 1 + 1 + 3


@pytest.mark.parametrize("gap", [1e-3, 0.5, math.nan, math.inf])
def test_a_clear_choice_is_not_excused(gap: float) -> None:
    with pytest.raises(AssertionError, match="1 wrong"):
        assert_same_tokens(PLAIN, [[1, 9, 3, 4], [5, 6, 7]], near_tie=lambda s, p: gap)


def test_ending_early_is_never_a_near_tie() -> None:
    with pytest.raises(AssertionError, match="1 wrong"):
        assert_same_tokens(PLAIN, [[1, 2, 3], [5, 6, 7]], near_tie=lambda s, p: 0.0)


@pytest.mark.parametrize(
    ("ties", "length", "passes"), [(3, 2000, True), (4, 2000, False), (4, 3000, True), (7, 2000, False)]
)
def test_near_ties_are_rationed(ties: int, length: int, passes: bool) -> None:
    """Three in every 10,000 tokens begun: five sequences of 2,000 tokens are just under, of 3,000 over."""
    plain = [[1] * length for _ in range(7)] if ties == 7 else [[1] * length for _ in range(5)]
    other = [[*s[:-1], 2] if i < ties else s for i, s in enumerate(plain)]
    assert compare_tokens(plain, other, near_tie=lambda s, p: 0.0).passed == passes


def test_the_message_says_where() -> None:
    with pytest.raises(AssertionError, match=r"sequence 1, token 2: 9 where plain decoding has 7 \(plain's gap 0\.2\)"):
        assert_same_tokens(PLAIN, [[1, 2, 3, 4], [5, 6, 9]], near_tie=lambda s, p: 0.2)
    with pytest.raises(AssertionError, match="sequence 0, token 3: the end where plain decoding has 4"):
        assert_same_tokens(PLAIN, [[1, 2, 3], [5, 6, 7]])
