"""Which blocks of a drafter's own pages are filled, so that a prefix hit of the target is one for the drafter too."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq


class FilledBlocks:
    """Per block, the digest of the tokens whose rows the drafter's pages hold there.

    A digest stands for all tokens up to its block's end (`SequenceView.chain`), so nobody has to say when a block
    changes hands: its next owner asks for another digest.
    """

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}

    def run(self, table: Seq[int], chain: Seq[bytes], start: int = 0) -> int:
        """How many of a table's first blocks hold the rows of its tokens, if those before `start` do."""
        stop = min(len(table), len(chain))
        while start < stop and self._digests.get(table[start]) == chain[start]:
            start += 1
        return start

    def holes(self, table: Seq[int], chain: Seq[bytes]) -> list[int]:
        """Blocks of a table, or of its end with the chain's, that do not hold the rows of its tokens."""
        named = zip(table, chain, strict=False)
        return [block for block, digest in named if self._digests.get(block) != digest] + list(table[len(chain) :])

    def fill(self, table: Seq[int], chain: Seq[bytes], start: int, stop: int) -> None:
        """Blocks start to stop of a table hold all rows of their tokens, as far as the chain names them."""
        self._digests.update(zip(table[start:stop], chain[start:stop], strict=False))

    def spoil(self, blocks: Iterable[int]) -> None:
        """These blocks are about to be written."""
        for block in blocks:
            self._digests.pop(block, None)
