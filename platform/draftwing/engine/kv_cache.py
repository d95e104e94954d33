"""The paged cache's bookkeeping: which blocks a sequence holds, and the slots of its tokens. No tensors here.

A slot holds the keys and values of one token in every layer. Committed rows come first, the rows of the current draft
follow them, and accepted rows are then moved down in path order. So only slots after the committed rows are ever
written, a full block of committed rows is final, and sequences that begin with the same tokens share it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from draftwing.core import IntArray
from draftwing.engine.prefix_cache import PrefixCache

HELD = 2**62  # later than any release
OLD = 8  # the oldest of so many parts may be evicted out of turn, for the sake of tables in a row


class BlockPool:
    """Fixed pool of blocks of `block_tokens` slots each; a sequence's table is a plain list of block numbers.

    A block is *held* by every table that it is in, and *free* when in none. Free blocks may be cached for reuse, or
    *blank*: without content that anyone could ask for. prefix False: nothing is ever cached.
    """

    def __init__(self, blocks: int, block_tokens: int, *, prefix: bool = True) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError(f"blocks={blocks}, block_tokens={block_tokens}: both must be at least 1")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.prefix = prefix
        self._holders = np.zeros(blocks, dtype=np.int64)
        self._released = np.zeros(blocks, dtype=np.int64)  # when, by `_clock`; 0: blank
        self._clock = 0
        self._free = blocks
        self._cache = PrefixCache()

    @property
    def free(self) -> int:
        return self._free

    @property
    def cached(self) -> int:
        """Blocks that can be found by their tokens, held ones included."""
        return len(self._cache)

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend the table to hold `tokens`; False, and nothing changed, when the pool is short."""
        needed = self.blocks_for(tokens) - len(table)
        if needed <= 0:
            return True
        if needed > self._free:
            return False
        taken = self._choose(table, needed)
        for block in taken.tolist():
            self._cache.evict(block)
            table.append(block)
        self._holders[taken] = 1
        self._released[taken] = HELD
        self._free -= needed
        return True

    def _choose(self, table: list[int], needed: int) -> IntArray:
        """Free blocks to take: in a row with the table where possible, because such a table is read in place.

        Blank blocks come first, then the least recently used, but for a row any that were not used for long.
        """
        row = self._after(table[-1], needed) if table else self._longest_row(needed)
        if row is not None:
            return row
        blank = np.flatnonzero(self._released == 0)[:needed].tolist()
        return np.array(blank + self._cache.oldest(needed - len(blank)), dtype=np.int64)

    def _after(self, block: int, needed: int) -> IntArray | None:
        row = self._released[block + 1 : block + 1 + needed]
        return np.arange(block + 1, block + 1 + needed) if len(row) == needed and (row <= self._old()).all() else None

    def _longest_row(self, needed: int) -> IntArray | None:
        """The beginning of the longest row, for its room to grow."""
        usable = np.flatnonzero(self._released <= self._old())
        ends = np.append(np.flatnonzero(np.diff(usable) > 1) + 1, len(usable))
        lengths = np.diff(ends, prepend=0)
        longest = lengths.argmax()
        first = ends[longest] - lengths[longest]
        return usable[first : first + needed] if lengths[longest] >= needed else None

    def _old(self) -> int:
        """Blocks released by then may be evicted out of turn; 0, where only blank ones may, while those are plenty."""
        if self._cache.idle == 0 or (self._free - self._cache.idle) * OLD >= self.blocks:
            return 0
        oldest = int(self._released[self._cache.oldest(1)[0]])
        return oldest + (self._clock - oldest) // OLD

    def shrink(self, table: list[int], tokens: int) -> None:
        """Give back the blocks that `tokens` don't need."""
        surplus = table[self.blocks_for(tokens) :]
        if surplus:
            del table[-len(surplus) :]
            self.release(surplus)

    def release(self, table: list[int]) -> None:
        """Give every block of the table back and empty it; what is cached of it stays until it is evicted."""
        self._holders[table] -= 1
        for block in reversed(table):  # a block is of use only with those before it, so the last one goes first
            if self._holders[block] == 0:
                self._free += 1
                self._released[block] = self._let_go(block)
        table.clear()

    def _let_go(self, block: int) -> int:
        if block not in self._cache:
            return 0
        self._cache.let_go(block)
        self._clock += 1
        return self._clock

    def find(self, chain: list[bytes]) -> list[int]:
        """Cached blocks of the longest beginning of a chain of digests."""
        return self._cache.find(chain)

    def idle(self, blocks: list[int]) -> int:
        """How many of these cached blocks are free, and would no longer be if they were shared."""
        return int((self._holders[blocks] == 0).sum())

    def share(self, table: list[int], blocks: list[int]) -> None:
        """Begin an empty table with cached blocks."""
        for block in blocks:
            self._free -= int(self._holders[block] == 0)
            self._cache.hold(block)
        self._holders[blocks] += 1
        self._released[blocks] = HELD
        table.extend(blocks)

    def keep(self, block: int, digest: bytes) -> None:
        """A held block is full of committed rows: it can be found by its digest from now on, and never changes."""
        self._cache.add(digest, block)

    def forget(self, table: list[int]) -> None:
        """No later sequence finds these blocks; whoever holds them keeps them."""
        for block in table:
            self._cache.forget(block)

    def slots(self, table: list[int], count: int) -> IntArray:
        """Slots of the first `count` tokens of a table."""
        base = np.array(table, dtype=np.int64)[:, None] * self.block_tokens
        return (base + np.arange(self.block_tokens)).reshape(-1)[:count]

    def check(self, tables: Iterable[list[int]]) -> None:
        """Raise RuntimeError unless these tables are all that holds blocks, and every other block is accounted for."""
        held = np.zeros(self.blocks, dtype=np.int64)
        for table in tables:
            np.add.at(held, table, 1)
        if (held != self._holders).any() or self._free != int((held == 0).sum()):
            raise RuntimeError(f"cache blocks do not add up: held {held}, counted {self._holders}, free {self._free}")
        blank = (held == 0) & ~np.array([block in self._cache for block in range(self.blocks)])
        if ((self._released == 0) != blank).any() or ((self._released == HELD) != (held > 0)).any():
            raise RuntimeError(f"cache blocks do not add up: held {held}, released {self._released}")
        if self._cache.idle != self._free - blank.sum():
            raise RuntimeError(f"cache blocks do not add up: {self._cache.idle} of {self._free} free ones are cached")
        self._cache.check()

    def check_writable(self, blocks: list[int]) -> None:
        """Raise RuntimeError if any of these blocks is shared, or could be at any time."""
        for block in blocks:
            if self._holders[block] != 1 or block in self._cache:
                raise RuntimeError(f"block {block} may be written, but it is shared or cached")
