"""min_p, top_k and top_p as one thing: how long a prefix of the row is kept, in the order (value, then id).

Each of the three keeps a prefix in that order, so together they keep the shortest of their prefixes, and a prefix is
told by its last entry.

R rows, V vocabulary, C candidates of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftwing.engine.processors import SampleRows
from draftwing.engine.selection import LOWEST, Peaks, nonzero, padded, sort_descending


@dataclass(frozen=True, slots=True)
class Cut:
    """Kept are entries above value [R], and those equal to it with an id up to last_id [R]."""

    value: torch.Tensor
    last_id: torch.Tensor

    def keeps(self, ids: torch.Tensor, values: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Which are kept of ids and values, [E] of these rows, or [R, C]."""
        value, last = (
            (self.value[:, None], self.last_id[:, None]) if rows is None else (self.value[rows], self.last_id[rows])
        )
        return (values > value) | ((values == value) & (ids <= last))

    def apply(self, values: torch.Tensor) -> torch.Tensor:
        """Values [R, V] with -inf in place of what is not kept."""
        ids = torch.arange(values.shape[1], device=values.device)
        return values.masked_fill(~self.keeps(ids, values), -torch.inf)


@dataclass(frozen=True, slots=True)
class Limits:
    """The three parameters of each row [R]. top_k is at least 1, V or more: off."""

    min_p: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor

    @classmethod
    def of(cls, rows: SampleRows, width: int, device: torch.device) -> Limits:
        top_k = rows.parameter("top_k", np.int64)
        return cls(
            torch.from_numpy(rows.parameter("min_p", np.float64)).to(device),
            torch.from_numpy(np.where(top_k == 0, width, np.minimum(top_k, width))).to(device),
            torch.from_numpy(rows.parameter("top_p", np.float64)).to(device),
        )

    def smallest(self, maximum: torch.Tensor) -> torch.Tensor:
        """The least float32 value [R] that min_p lets pass, given each row's largest; the lowest number where off."""
        least = maximum + self.min_p.log()
        rounded = least.float()
        above = rounded.nextafter(torch.full_like(rounded, torch.inf))
        return torch.where(rounded < least, above, rounded).clamp_min(LOWEST)


def find_cut(peaks: Peaks, rows: SampleRows) -> Cut | None:
    """Where each row is cut, None if no row is."""
    device, width = peaks.maximum.device, peaks.width
    limits = Limits.of(rows, width, device)
    uncut = (limits.min_p == 0) & (limits.top_k == width) & (limits.top_p == 1)
    if uncut.all():
        return None
    floors, totals = _floors(peaks, limits)
    entries = peaks.above(floors.masked_fill(uncut, torch.inf))
    ordered = sort_descending(padded(entries.rows, entries.values, len(rows), -torch.inf))
    count = _prefix(ordered, limits, peaks.maximum, totals)[:, None]
    last = ordered.gather(1, count - 1)
    # Of the entries equal to the last one, as many as the prefix holds, lowest ids first.
    equal = entries.take(nonzero(entries.values == last[entries.rows, 0]))
    wanted = count - (ordered > last).sum(-1, keepdim=True)
    last_id = padded(equal.rows, equal.ids, len(rows), width).gather(1, (wanted - 1).masked_fill(uncut[:, None], 0))
    return Cut(last[:, 0].masked_fill(uncut, -torch.inf), last_id[:, 0].masked_fill(uncut, width))


def _floors(peaks: Peaks, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """A value [R] below which nothing is kept, and the mass [R] that top_p is a share of, relative to e**maximum.

    The mass is that of all entries where top_p alone cuts, else +inf: then it is that of the entries the other two
    keep, and all of those lie above the floor.
    """
    floors = limits.smallest(peaks.maximum)
    total = torch.full_like(limits.top_p, torch.inf)
    few = limits.top_k < peaks.width
    if few.any():
        floors = torch.where(few, torch.maximum(floors, peaks.floor(limits.top_k)), floors)
    alone = (limits.top_p < 1) & ~few & (limits.min_p == 0)
    if alone.any():
        mass = (peaks if alone.all() else peaks.take(nonzero(alone))).mass()
        total[alone] = mass
        # All entries below this floor together weigh at most 1 - top_p of the total.
        share = ((1 - limits.top_p[alone]) / peaks.width) * mass
        floors[alone] = (peaks.maximum[alone] + share.log() - 1e-3).float()
    return floors, total


def _prefix(ordered: torch.Tensor, limits: Limits, maximum: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """Length [R] of the kept prefix of ordered values [R, C], at least 1."""
    count = (ordered >= limits.smallest(maximum)[:, None]).sum(-1)
    count = torch.minimum(count, limits.top_k).clamp_min(1)
    mass = (ordered - maximum[:, None]).exp().double().cumsum(-1)
    total = torch.where(totals.isinf(), mass.gather(1, (count - 1)[:, None])[:, 0], totals)
    short = (mass < (limits.top_p * total)[:, None]).sum(-1)
    return torch.minimum(count, torch.where(limits.top_p < 1, short + 1, count))
