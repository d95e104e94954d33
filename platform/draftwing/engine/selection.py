"""The largest entries of wide rows, exactly and without a sort of the row.

Order everywhere: value descending, then id ascending. R rows, V vocabulary, C candidates of the longest row.
On a CPU three torch primitives are many times slower than numpy's on the same memory; they are named here once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_BLOCK = 256  # entries whose maximum is kept; narrow rows use blocks of one
LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class Entries:
    """Some entries of a matrix, by row, then by id: rows, ids [E] int64, values [E] float32."""

    rows: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor

    def take(self, which: torch.Tensor) -> Entries:
        return Entries(self.rows[which], self.ids[which], self.values[which])


def nonzero(flags: torch.Tensor) -> torch.Tensor:
    """Indexes of the true entries of flags [E] -> int64."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flags.numpy()))
    return flags.nonzero().flatten()


def at_least(values: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """values [K, B] >= floor [K], as bool."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy() >= floor.numpy()[:, None])
    return values >= floor[:, None]


def sort_descending(values: torch.Tensor) -> torch.Tensor:
    """Values of each row of [R, C], largest first; which entry they came from is not kept."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)[:, ::-1].copy())
    return values.sort(dim=-1, descending=True).values


@dataclass(frozen=True, slots=True)
class Peaks:
    """Rows [R, V] with the maximum of each block of entries, so that a search skips the blocks below its floor.

    blocks [R, V / block, block]: the entries, -inf beyond V. maxima [R, V / block]. maximum [R]. width: V.
    """

    blocks: torch.Tensor
    maxima: torch.Tensor
    maximum: torch.Tensor
    width: int

    @classmethod
    def of(cls, values: torch.Tensor) -> Peaks:
        rows, width = values.shape
        size = _BLOCK if width > 16 * _BLOCK else 1
        if width % size:
            values = torch.nn.functional.pad(values, (0, size - width % size), value=-torch.inf)
        blocks = values.reshape(rows, -1, size)
        maxima = blocks.amax(-1) if size > 1 else blocks[..., 0]
        return cls(blocks, maxima, maxima.amax(-1), width)

    def take(self, rows: torch.Tensor) -> Peaks:
        return Peaks(self.blocks[rows], self.maxima[rows], self.maximum[rows], self.width)

    def argmax(self) -> torch.Tensor:
        """Lowest id of each row's maximum [R]. NaN counts as largest."""
        block = self.maxima.argmax(-1)
        rows = torch.arange(len(block), device=block.device)
        size = self.blocks.shape[-1]
        return block if size == 1 else block * size + self.blocks[rows, block].argmax(-1)

    def floor(self, counts: torch.Tensor) -> torch.Tensor:
        """A value [R] that at least counts [R] entries of each row reach; -inf where blocks are too few to tell."""
        blocks = self.maxima.shape[1]
        enough = counts <= blocks
        most = int(counts.masked_fill(~enough, 1).max().item())
        tops = self.maxima.topk(most, dim=-1).values
        floor = tops.gather(1, (counts.clamp_max(most) - 1)[:, None])[:, 0]
        return floor.masked_fill(~enough, -torch.inf)

    def mass(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum of e**(value - maximum) over these rows, float64 [len(rows)].

        By blocks, so that a row's sum is the same in any company.
        """
        everything = len(rows) == len(self.maximum)
        blocks, maximum = (self.blocks, self.maximum) if everything else (self.blocks[rows], self.maximum[rows])
        return (blocks - maximum[:, None, None]).exp_().sum(-1).double().sum(-1)

    def above(self, floor: torch.Tensor) -> Entries:
        """All entries with value >= floor [R] and value > -inf."""
        floor = floor.clamp_min(LOWEST)
        near = at_least(self.maxima, floor)
        where = nonzero(near.flatten())
        count, size = self.maxima.shape[1], self.blocks.shape[-1]
        rows = where // count
        values = self.blocks.view(-1, size)[where]
        inside = nonzero(at_least(values, floor[rows]).flatten())
        part = inside // size
        return Entries(rows[part], (where[part] % count) * size + inside % size, values.flatten()[inside])


def padded(entries: Entries, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries as a matrix: values [R, C], -inf beyond a row's own, and ids [R, C], in id order."""
    counts = torch.bincount(entries.rows, minlength=rows)
    columns = torch.arange(len(entries.rows), device=counts.device) - (counts.cumsum(0) - counts)[entries.rows]
    width = max(int(counts.max().item()), 1) if rows else 1
    values = torch.full((rows, width), -torch.inf, device=counts.device)
    ids = torch.zeros((rows, width), dtype=torch.int64, device=counts.device)
    values[entries.rows, columns] = entries.values
    ids[entries.rows, columns] = entries.ids
    return values, ids


def best_of(entries: Entries, scores: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Highest score of each row [R] and the lowest id that has it [R]; (-inf, 0) for a row without entries."""
    best = torch.full((rows,), -torch.inf, device=scores.device)
    best.scatter_reduce_(0, entries.rows, scores, "amax")
    tied = entries.take(nonzero(scores == best[entries.rows]))
    last = torch.iinfo(torch.int64).max
    ids = torch.full((rows,), last, dtype=torch.int64, device=scores.device)
    ids.scatter_reduce_(0, tied.rows, tied.ids, "amin")
    return best, ids.masked_fill_(ids == last, 0)
