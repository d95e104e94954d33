from __future__ import annotations

import pytest

from draftwing.testing.loops import loop_start, loops


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ([], None),
        ([1, 2, 3, 4], None),
        ([1, 1], None),
        ([1, 1, 1], 0),
        ([5, 6, 1, 2, 1, 2, 1, 2], 2),
        ([5, 1, 2, 1, 2, 1], None),  # two and a half repeats
        ([5, 1, 2, 1, 2, 1, 2, 1], 1),
        ([1, 1, 1, 2], None),
    ],
)
def test_a_loop_is_three_repeats_up_to_the_end(tokens: list[int], start: int | None) -> None:
    assert loop_start(tokens) == start


def test_a_short_loop_after_long_text_is_not_looping_text() -> None:
    text = list(range(100))
    assert not loops([*text, 7, 7, 7])
    assert loops([*text[:6], 7, 7, 7])
