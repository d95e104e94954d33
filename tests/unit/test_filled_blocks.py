"""Which of a drafter's blocks may be used, when blocks change hands without its knowing."""

from __future__ import annotations

from draftwing.drafters.filled_blocks import FilledBlocks

ONE, TWO, THREE, OTHER = (bytes([n]) * 32 for n in range(4))


def filled() -> FilledBlocks:
    blocks = FilledBlocks()
    blocks.fill([7, 3, 5], [ONE, TWO, THREE], 0, 3)
    return blocks


def test_what_was_filled_is_found_from_the_start() -> None:
    blocks = filled()
    assert blocks.run([7, 3, 5, 9], [ONE, TWO, THREE]) == 3
    assert blocks.run([7, 3], [ONE, TWO, THREE]) == 2, "a table may be shorter than its chain"
    assert blocks.run([7, 3, 5], [ONE]) == 1, "and longer"
    assert blocks.run([7, 3, 5], []) == 0, "no chain, nothing shared"


def test_a_block_of_other_tokens_ends_the_run() -> None:
    blocks = filled()
    assert blocks.run([7, 3, 5], [ONE, OTHER, THREE]) == 1
    assert blocks.run([7, 4, 5], [ONE, TWO, THREE]) == 1
    assert blocks.run([3, 7], [ONE, TWO]) == 0, "the same digests in other blocks"


def test_written_blocks_are_found_no_more() -> None:
    blocks = filled()
    blocks.spoil([3, 8])
    assert blocks.run([7, 3, 5], [ONE, TWO, THREE]) == 1


def test_holes_are_what_is_not_filled_or_not_named() -> None:
    blocks = filled()
    assert blocks.holes([7, 3, 5, 9], [ONE, OTHER, THREE]) == [3, 9]
    assert blocks.holes([3, 5], [TWO, THREE]) == []
    blocks.spoil([7])
    assert blocks.holes([7, 3], [ONE, TWO]) == [7]


def test_only_the_named_part_of_a_table_is_filled() -> None:
    blocks = FilledBlocks()
    blocks.fill([7, 3, 5], [ONE, TWO, THREE], 1, 2)
    assert blocks.run([3], [TWO]) == 1
    assert blocks.run([7], [ONE]) == 0
    assert blocks.run([5], [THREE]) == 0
    blocks.fill([7, 3, 5], [ONE], 0, 3)  # the chain names fewer blocks than the drafter filled
    assert blocks.run([7, 3, 5], [ONE, TWO, THREE]) == 2
