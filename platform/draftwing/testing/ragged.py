"""One ragged forward against separate plain forwards: a draft tree, a decode row and a prefill chunk share a batch.

If this holds for a target, its attention reads our pages right: positions, windows, ancestry and padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftwing.core import IntArray
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.runner import Runner
from draftwing.testing.plain_loop import PlainTarget

TREE = (-1, 0, 0, 1, 1, 2, 3, 5)  # parents: a root with two children, and so on to depth 3
LENGTHS = (11, 23, 17)
CHUNK_FROM = 6


@dataclass(frozen=True, slots=True)
class Deviation:
    """largest: greatest difference of a logit from its plain forward's. scale: greatest logit."""

    largest: float
    scale: float

    @property
    def relative(self) -> float:
        return self.largest / max(self.scale, 1.0)


def rows(tokens: list[int], slots: IntArray, kv_len: int, parents: IntArray | None = None) -> SequenceRows:
    """Rows after kv_len committed ones, a chain by default; all return logits."""
    below = chain_parents(len(tokens)) if parents is None else parents
    return SequenceRows(np.array(tokens, dtype=np.int64), below, slots[: kv_len + len(tokens)], kv_len, len(tokens))


def ragged_deviation(runner: Runner, plain: PlainTarget, draw: np.random.Generator, *, slots: int = 512) -> Deviation:
    """Random prompts through one ragged batch of `runner`, compared row by row. slots: cache rows it has, 128 at least.

    The prompts' slots are scattered over the whole cache.
    """
    tables = draw.permutation(slots).reshape(4, -1)
    a, b, c = (draw.integers(3, runner.vocab_size, length).tolist() for length in LENGTHS)
    runner.forward([rows(a[:-1], tables[0], 0), rows(b[:-1], tables[1], 0), rows(c[:CHUNK_FROM], tables[2], 0)])
    tree = [a[-1], *draw.integers(3, runner.vocab_size, len(TREE) - 1).tolist()]
    logits = runner.forward(
        [
            rows(tree, tables[0], len(a) - 1, np.array(TREE, dtype=np.int64)),
            rows([b[-1]], tables[1], len(b) - 1),
            rows(c[CHUNK_FROM:], tables[2], CHUNK_FROM),
        ]
    )
    histories = [a[:-1] + [tree[node] for node in _path(at)] for at in range(len(TREE))]
    histories += [b, *(c[: end + 1] for end in range(CHUNK_FROM, len(c)))]
    expected = np.stack([plain.logits_after(history) for history in histories])
    found = logits.float().cpu().numpy()
    return Deviation(float(np.abs(found - expected).max()), float(np.abs(expected).max()))


def _path(node: int) -> list[int]:
    """Nodes of TREE from the root to this one."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = TREE[node]
    return path
