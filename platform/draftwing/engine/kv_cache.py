"""The paged cache's bookkeeping: which blocks a sequence holds, and the slots of its tokens. No tensors here.

A slot holds the keys and values of one token in every layer. Committed rows come first, the rows of the current draft
follow them, and accepted rows are then moved down in path order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from draftwing.core import IntArray


class BlockPool:
    """Fixed pool of blocks of `block_tokens` slots each; a sequence's table is a plain list of block numbers."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError(f"blocks={blocks}, block_tokens={block_tokens}: both must be at least 1")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._used = np.zeros(blocks, dtype=np.bool_)
        self._free = blocks

    @property
    def free(self) -> int:
        return self._free

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend the table to hold `tokens`; False, and nothing changed, when the pool is short.

        A block right after the table's last is taken first: a contiguous table is read without a copy.
        """
        needed = self.blocks_for(tokens) - len(table)
        if needed <= 0:
            return True
        if needed > self._free:
            return False
        start = table[-1] + 1 if table else 0
        run = ~self._used[start : start + needed]
        if table and len(run) == needed and run.all():
            taken = np.arange(start, start + needed)
        else:
            taken = np.flatnonzero(~self._used)[:needed]
        self._used[taken] = True
        self._free -= needed
        table.extend(taken.tolist())
        return True

    def release(self, table: list[int]) -> None:
        """Give every block of the table back and empty it."""
        if table:
            self._used[table] = False
            self._free += len(table)
            table.clear()

    def slots(self, table: list[int], count: int) -> IntArray:
        """Slots of the first `count` tokens of a table."""
        base = np.array(table, dtype=np.int64)[:, None] * self.block_tokens
        return (base + np.arange(self.block_tokens)).reshape(-1)[:count]

    def check(self, tables: Iterable[list[int]]) -> None:
        """Raise RuntimeError unless these tables hold exactly the used blocks, each once."""
        held = [block for table in tables for block in table]
        used = np.flatnonzero(self._used).tolist()
        if sorted(held) != used or self._free != self.blocks - len(used):
            raise RuntimeError(f"cache blocks do not add up: held {sorted(held)}, used {used}, free {self._free}")
