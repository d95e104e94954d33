"""The largest entries of wide rows, exactly and without a sort of the row.

Order everywhere: value descending, then id ascending. R rows, V vocabulary, P blocks of a row, E entries.
On a CPU some torch primitives are many times slower than numpy's on the same memory; here are the few that matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

LOWEST = torch.finfo(torch.float32).min
_BLOCK = 256  # entries whose maximum is kept, at most: a power of two
_NARROW = 4096  # rows up to this width have blocks of one entry
_CACHED = 1 << 16  # entries searched at once on a CPU, so that they stay in its cache


@dataclass(frozen=True, slots=True)
class Entries:
    """Some entries of a matrix, by row, then by id: rows, ids [E] int64, values [E] float32."""

    rows: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor

    def take(self, which: torch.Tensor) -> Entries:
        return Entries(self.rows[which], self.ids[which], self.values[which])


@dataclass(frozen=True, slots=True)
class Peaks:
    """Rows of raw / divisor with the maximum of each block of entries, so that a search skips the blocks below.

    raw [R, P, size]: numerators, -inf beyond V; divisors [R] or None: 1. The quotient is taken where it is looked at,
    which is rarely. maxima [R, P] and maximum [R] are of the quotient, float32. width: V.
    """

    raw: torch.Tensor
    divisors: torch.Tensor | None
    maxima: torch.Tensor
    maximum: torch.Tensor
    width: int

    @classmethod
    def of(cls, raw: torch.Tensor, divisors: torch.Tensor | None = None) -> Peaks:
        """raw [R, V], float32 or bf16."""
        rows, width = raw.shape
        size = _block_size(width)
        if width % size:
            raw = torch.nn.functional.pad(raw, (0, size - width % size), value=-torch.inf)
        raw = raw.contiguous().view(rows, -1, size)
        maxima = (raw.amax(-1) if size > 1 else raw[..., 0]).float()
        if divisors is not None:
            maxima = maxima / divisors[:, None]
        return cls(raw, divisors, maxima, maxima.amax(-1), width)

    @property
    def size(self) -> int:
        """Entries of a block."""
        return self.raw.shape[-1]

    def take(self, rows: torch.Tensor) -> Peaks:
        divisors = None if self.divisors is None else self.divisors[rows]
        return Peaks(self.raw[rows], divisors, self.maxima[rows], self.maximum[rows], self.width)

    def argmax(self) -> torch.Tensor:
        """Lowest id of each row's largest value [R]. NaN counts as largest."""
        block = self.maxima.argmax(-1)
        rows = torch.arange(len(block), device=block.device)
        return block * self.size + self._divide(self.raw[rows, block], rows).argmax(-1)

    def tops(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first largest entry of each of the highest `count` blocks, or of all if fewer: ids, values [R, count]."""
        values, block = self.maxima.topk(min(count, self.maxima.shape[1]), dim=-1)
        if self.size == 1:
            return block, values
        rows = torch.arange(len(block), device=block.device)[:, None]
        return block * self.size + self._divide(self.raw[rows, block], rows).argmax(-1), values

    def floor(self, counts: torch.Tensor) -> torch.Tensor:
        """A value [R] that at least counts [R] entries of each row reach; -inf where blocks are too few to tell."""
        enough = counts <= self.maxima.shape[1]
        most = int(counts.masked_fill(~enough, 1).max().item())
        tops = self.maxima.topk(most, dim=-1).values
        floor = tops.gather(1, (counts.clamp_max(most) - 1)[:, None])[:, 0]
        return floor.masked_fill(~enough, -torch.inf)

    def mass(self) -> torch.Tensor:
        """Sum of e**(value - maximum) over each row, float64 [R]; by blocks, so it is the same in any company."""
        step = 1 if self.raw.device.type == "cpu" else max(len(self.raw), 1)
        rows = [slice(i, i + step) for i in range(0, len(self.raw), step)]
        parts = [(self._divide(self.raw[r], r) - self.maximum[r, None, None]).exp_().sum(-1) for r in rows]
        return torch.cat(parts).double().sum(-1)

    def above(self, floor: torch.Tensor) -> Entries:
        """All entries >= floor [R] that are not -inf, and perhaps some that are lower by rounding."""
        return self.entries(*self.search(floor))

    def search(self, floor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What `above` says, as `entries` takes it."""
        blocks = self.blocks(floor)
        return blocks, self.inside(blocks, floor)

    def blocks(self, floor: torch.Tensor) -> torch.Tensor:
        """Blocks, as indexes into [R * P], whose maximum is >= floor [R] and not -inf."""
        return nonzero(at_least(self.maxima, floor.clamp_min(LOWEST)).flatten())

    def inside(self, blocks: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
        """Which entries of [len(blocks), size] are >= floor [R], and perhaps some that are lower by rounding."""
        floor = floor.clamp_min(LOWEST)
        if self.divisors is not None:
            # Numerators are compared, so the floor gets room for the rounding of both quotient and product.
            floor = floor * self.divisors
            floor = (floor - floor.abs() * 1e-6).clamp_min(LOWEST)
        floors = floor[blocks // self.maxima.shape[1]]
        raw = self.raw.view(-1, self.size)
        step = _CACHED // self.size if raw.device.type == "cpu" else max(len(blocks), 1)
        parts = [
            nonzero(at_least(raw.index_select(0, blocks[i : i + step]), floors[i : i + step]).flatten()) + i * self.size
            for i in range(0, len(blocks), step)
        ]
        return torch.cat(parts) if parts else blocks

    def entries(self, blocks: torch.Tensor, inside: torch.Tensor) -> Entries:
        """Entries by their indexes into [len(blocks), size]; blocks are indexes into [R * P]."""
        which, column = inside >> (self.size.bit_length() - 1), inside & (self.size - 1)
        block_rows = blocks // self.maxima.shape[1]
        rows = block_rows[which]
        ids = ((blocks - block_rows * self.maxima.shape[1]) * self.size)[which] + column
        values = self.raw.view(-1)[(blocks * self.size)[which] + column]
        return Entries(rows, ids, self._divide(values, rows))

    def _divide(self, raw: torch.Tensor, rows: torch.Tensor | slice) -> torch.Tensor:
        """Values of numerators, given the row of each, or of each leading index."""
        if self.divisors is None:
            return raw.float()
        divisors = self.divisors[rows]
        return raw.float() / divisors.view(divisors.shape + (1,) * (raw.ndim - divisors.ndim))


def _block_size(width: int) -> int:
    """One that divides the width, so that nothing is copied; else the largest, and a copy is padded."""
    if width <= _NARROW:
        return 1
    divisor = min(width & -width, _BLOCK)
    return divisor if divisor >= _BLOCK // 4 else _BLOCK


def nonzero(flags: torch.Tensor) -> torch.Tensor:
    """Indexes of the true entries of flags [E] -> int64."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flags.numpy()))
    return flags.nonzero().flatten()


def at_least(values: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """values [K, C] >= floor [K], as bool."""
    if values.device.type == "cpu" and values.dtype == torch.float32:
        return torch.from_numpy(values.numpy() >= floor.numpy()[:, None])
    return values >= floor[:, None]


def sort_descending(values: torch.Tensor) -> torch.Tensor:
    """Values of each row of [R, C], largest first; which entry they came from is not kept."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)[:, ::-1].copy())
    return values.sort(dim=-1, descending=True).values


def padded(rows: torch.Tensor, values: torch.Tensor, count: int, fill: float) -> torch.Tensor:
    """Values [E] as a matrix [count, the longest row's], each row in their order; rows [E] ascending."""
    sizes = torch.bincount(rows, minlength=count)
    columns = torch.arange(len(rows), device=rows.device) - (sizes.cumsum(0) - sizes)[rows]
    width = int(sizes.max().item()) if count else 0
    matrix = torch.full((count, max(width, 1)), fill, dtype=values.dtype, device=rows.device)
    matrix[rows, columns] = values
    return matrix


def best_of(entries: Entries, scores: torch.Tensor, rows: int) -> torch.Tensor:
    """Id [R] of the highest score of each row, the lowest if several have it; 0 for a row without entries."""
    best = torch.full((rows,), -torch.inf, device=scores.device)
    best.scatter_reduce_(0, entries.rows, scores, "amax")
    tied = entries.take(nonzero(scores == best[entries.rows]))
    last = torch.iinfo(torch.int64).max
    ids = torch.full((rows,), last, dtype=torch.int64, device=scores.device)
    ids.scatter_reduce_(0, tied.rows, tied.ids, "amin")
    return ids.masked_fill_(ids == last, 0)
