"""The largest entries of wide rows, exactly and without a sort of the row.

Order everywhere: value descending, then id ascending. R rows, V vocabulary, P blocks of a row, E entries.
On a CPU some torch primitives are many times slower than numpy's on the same memory; here are the few that matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from draftwing.core import FloatArray, IntArray

LOWEST = torch.finfo(torch.float32).min
_BLOCK = 256  # entries whose maximum is kept, at most: a power of two
_SMALL_BLOCK = 64  # entries of a block where few of the largest are wanted
_NARROW = 4096  # rows up to this width have blocks of one entry
_CACHED = 1 << 16  # entries searched at once on a CPU, so that they stay in its cache
_FEW = 16  # divides the size of a block, unless that is 1
_NEGLIGIBLE = 30.0  # e**-30 of V entries together is less than the error of float32


@dataclass(frozen=True, slots=True)
class Entries:
    """Some entries of a matrix, by row, then by id: rows, ids [E] int64, values [E] float32."""

    rows: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor

    def take(self, which: torch.Tensor) -> Entries:
        return Entries(self.rows[which], self.ids[which], self.values[which])


@dataclass(frozen=True, slots=True)
class Mass:
    """Sums of e**(entry - maximum) of each row, float64 [R]: of some entries, and bounds of that of all."""

    part: torch.Tensor
    least: torch.Tensor
    most: torch.Tensor


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

    def values(self) -> torch.Tensor:
        """The rows themselves, float32 [R, V]."""
        return self._divide(self.raw, slice(None)).view(len(self.raw), -1)[:, : self.width]

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
        """A value [R] that at least counts [R] entries of each row reach; counts are at most V."""
        values, most = self.maxima, int(counts.max())
        if most > values.shape[1]:
            # The largest of every few entries far apart, if that is enough of them, or all.
            rows = self.raw.view(len(self.raw), -1)
            apart = _FEW if 2 * most <= rows.shape[1] // _FEW else 1
            values = self._divide(rows.view(len(rows), apart, -1).amax(1), slice(None))
        return sort_descending(values).gather(1, (counts - 1)[:, None])[:, 0]

    def at(self, ids: torch.Tensor) -> torch.Tensor:
        """Values [R] of one entry of each row."""
        rows = torch.arange(len(ids), device=ids.device)
        return self._divide(self.raw.view(len(ids), -1)[rows, ids], rows)

    def whole(self, which: torch.Tensor) -> torch.Tensor:
        """Sum of e**(entry - maximum) over each row, float64 [R], right to a relative 1e-5; 0 where not `which` [R].

        Terms are float32, and those below e**-30 may be left out.
        """
        blocks = self.blocks((self.maximum - _NEGLIGIBLE).masked_fill(~which, torch.inf))
        parts = [weights.sum(-1) for _, weights in self._weights(blocks)]
        return self._by_row(blocks, parts)

    def mass(self, value: torch.Tensor, last_id: torch.Tensor) -> Mass:
        """The same sum over the entries up to (value, last_id) [R] in order, and between what the whole one lies."""
        blocks = self.blocks(torch.maximum(value, self.maximum - _NEGLIGIBLE))
        row, column = blocks // self.maxima.shape[1], blocks % self.maxima.shape[1]
        # Entries equal to value count in the blocks before last_id's, not in those after it; in its own, one by one.
        own = last_id.div(self.size, rounding_mode="floor").clamp(0, self.maxima.shape[1] - 1)
        least = torch.where(column < own[row], value[row], value.nextafter(torch.full_like(value, torch.inf))[row])
        counted, seen, at = [], [], 0
        for values, weights in self._weights(blocks):
            seen.append(weights.sum(-1))
            counted.append((weights * at_least(values, least[at : at + len(values)])).sum(-1))
            at += len(values)
        every = torch.arange(len(value), device=value.device)
        equal = self._divide(self.raw[every, own], every) == value[:, None]
        equal &= torch.arange(self.size, device=value.device) <= (last_id - own * self.size)[:, None]
        tied = torch.where(equal.any(-1), equal.sum(-1) * (value - self.maximum).double().exp(), 0.0)
        # Of a block that was not looked at, its maximum is one entry and none is above it.
        rest = (self.maxima - self.maximum[:, None]).double().exp()
        rest.view(-1)[blocks] = 0
        known, unseen = self._by_row(blocks, seen), rest.sum(-1)
        return Mass(self._by_row(blocks, counted) + tied, known + unseen, known + unseen * self.size)

    def _weights(self, blocks: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Values [K, size] of some blocks at a time, and e**(value - maximum)."""
        raw = self.raw.view(-1, self.size)
        step = _CACHED // self.size if raw.device.type == "cpu" else max(len(blocks), 1)
        for i in range(0, len(blocks), step):
            some = blocks[i : i + step]
            row = some // self.maxima.shape[1]
            values = self._divide(raw.index_select(0, some), row)
            yield values, exp(values - self.maximum[row, None])

    def _by_row(self, blocks: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        sums = torch.zeros(len(self.raw), dtype=torch.float64, device=self.raw.device)
        return sums.index_add_(0, blocks // self.maxima.shape[1], torch.cat(parts).double()) if parts else sums

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


def exp(values: torch.Tensor) -> torch.Tensor:
    """e**values, which may be overwritten."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.exp(values.numpy(), out=values.numpy()))
    return values.exp_()


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest entries of each row of float32 [R, V], in no order: values, ids [R, count or V]. Of equal ones, any.

    They lie in the `count` blocks of the highest maxima, so no more is searched on a CPU.
    """
    rows, width = values.shape
    size = min(width & -width, _SMALL_BLOCK)
    if values.device.type != "cpu" or width < 4 * count * size or size < _SMALL_BLOCK // 4:
        top = values.topk(min(count, width), dim=-1)
        return top.values, top.indices
    blocks = values.reshape(rows, -1, size)
    best = _last(blocks.amax(-1).numpy(), count)
    some = blocks.numpy()[np.arange(rows)[:, None], best].reshape(rows, -1)
    place = _last(some, count)
    ids = np.take_along_axis(best, place // size, 1) * size + place % size
    return torch.from_numpy(np.take_along_axis(some, place, 1)), torch.from_numpy(ids)


def _last(values: FloatArray, count: int) -> IntArray:
    """Places of the largest entries of each row, NaN among them."""
    return np.argpartition(values, values.shape[1] - count, axis=1)[:, -count:]


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
