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
        self._blank = np.ones(blocks, dtype=np.bool_)
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
        """Extend the table to hold `tokens`; False, and nothing changed, when the pool is short.

        Blank blocks are taken first, then the cached ones that were not used for longest.
        """
        needed = self.blocks_for(tokens) - len(table)
        if needed <= 0:
            return True
        if needed > self._free:
            return False
        for _ in range(needed - (self._free - self._cache.idle)):
            self._blank[self._cache.evict()] = True
        taken = self._place(table, needed)
        self._holders[taken] = 1
        self._blank[taken] = False
        self._free -= needed
        table.extend(taken.tolist())
        return True

    def _place(self, table: list[int], needed: int) -> IntArray:
        """Blank blocks right after the table's last, else in a row, else any: a contiguous table is read in place."""
        if table:
            start = table[-1] + 1
            run = self._blank[start : start + needed]
            if len(run) == needed and run.all():
                return np.arange(start, start + needed)
        blank = np.flatnonzero(self._blank)
        rows = np.flatnonzero(blank[needed - 1 :] - blank[: len(blank) - needed + 1] == needed - 1)
        first = rows[0] if len(rows) else 0
        return blank[first : first + needed]

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
                if block in self._cache:
                    self._cache.let_go(block)
                else:
                    self._blank[block] = True
        table.clear()

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
        cached = np.array([block in self._cache for block in range(self.blocks)])
        idle = int((cached & (held == 0)).sum())
        if (self._blank != ((held == 0) & ~cached)).any() or self._cache.idle != idle:
            raise RuntimeError(f"cache blocks do not add up: {idle} cached and free, {self._cache.idle} of them known")
        self._cache.check()

    def check_writable(self, blocks: list[int]) -> None:
        """Raise RuntimeError if any of these blocks is shared, or could be at any time."""
        for block in blocks:
            if self._holders[block] != 1 or block in self._cache:
                raise RuntimeError(f"block {block} may be written, but it is shared or cached")
