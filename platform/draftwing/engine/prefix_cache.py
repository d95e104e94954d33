"""Which blocks hold which tokens: full blocks of committed rows are found again by a chained digest.

A block's digest covers the salt and every token up to the block's end, so equal digests mean equal keys and values at
equal positions, and blocks of different salts are never equal (rule R5).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from hashlib import blake2b
from itertools import islice

DIGEST_BYTES = 32


def extend_chain(chain: list[bytes], salt: str, tokens: list[int], block_tokens: int, blocks: int) -> list[bytes]:
    """Append digests until the first `blocks` blocks of `tokens` have theirs; tokens only grow, so they stay right."""
    for start in range(len(chain) * block_tokens, blocks * block_tokens, block_tokens):
        parent = chain[-1] if chain else blake2b(salt.encode(), digest_size=DIGEST_BYTES).digest()
        ids = array("q", tokens[start : start + block_tokens]).tobytes()
        chain.append(blake2b(parent + ids, digest_size=DIGEST_BYTES).digest())
    return chain


class PrefixCache:
    """Cached blocks by digest. Those that no sequence holds are *idle*, in the order in which they are evicted."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    def __len__(self) -> int:
        return len(self._digest_of)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def find(self, chain: list[bytes]) -> list[int]:
        """The longest run of cached blocks from the chain's start."""
        found: list[int] = []
        for digest in chain:
            if (block := self._block_of.get(digest)) is None:
                break
            found.append(block)
        return found

    def add(self, digest: bytes, block: int) -> None:
        """A held block is full and final. Where another one holds the same tokens, that one stays the cached one."""
        if self._block_of.setdefault(digest, block) == block:
            self._digest_of[block] = digest

    def hold(self, block: int) -> None:
        self._idle.pop(block, None)

    def let_go(self, block: int) -> None:
        """Nobody holds it any more; it is the last to be evicted."""
        self._idle[block] = None

    def oldest(self, count: int) -> list[int]:
        """At most `count` idle blocks, those that are to be evicted first."""
        return list(islice(self._idle, count))

    def evict(self, block: int) -> None:
        """Forget an idle block. Blank ones are fine."""
        self._idle.pop(block, None)
        self.forget(block)

    def forget(self, block: int) -> None:
        """The block's content is found no longer. Unknown blocks are fine."""
        if (digest := self._digest_of.pop(block, None)) is not None:
            del self._block_of[digest]

    def check(self) -> None:
        """Raise RuntimeError unless both directions agree and every idle block is cached."""
        if {block: digest for digest, block in self._block_of.items()} != self._digest_of:
            raise RuntimeError("prefix cache: digests and blocks don't agree")
        if not self._idle.keys() <= self._digest_of.keys():
            raise RuntimeError(
                f"prefix cache: idle blocks {sorted(self._idle.keys() - self._digest_of.keys())} hold nothing"
            )
