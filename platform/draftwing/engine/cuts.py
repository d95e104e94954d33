"""min_p and top_k as one thing: how long a prefix of the row is kept, in the order (value, then id).

Each keeps a prefix in that order, so together they keep the shorter, and a prefix is told by its last entry. The prefix
that top_p keeps of it is in `nucleus`.

R rows, V vocabulary, C candidates of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftwing.engine.processors import SampleRows, to_device
from draftwing.engine.selection import LOWEST, Entries, Peaks, nonzero, padded, sort_descending


@dataclass(frozen=True, slots=True)
class Cut:
    """Kept are entries above value [R], and those equal to it with an id up to last_id [R].

    mass [R]: sum of e**(entry - maximum) over the kept ones, float64; 0 where nobody computed it.
    """

    value: torch.Tensor
    last_id: torch.Tensor
    mass: torch.Tensor

    @classmethod
    def at(cls, value: torch.Tensor, last_id: torch.Tensor) -> Cut:
        return cls(value, last_id, torch.zeros_like(value, dtype=torch.float64))

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

    def take(self, rows: torch.Tensor) -> Cut:
        return Cut(self.value[rows], self.last_id[rows], self.mass[rows])

    def put(self, rows: torch.Tensor, other: Cut) -> None:
        """Replace these rows' by another's."""
        self.value[rows], self.last_id[rows], self.mass[rows] = other.value, other.last_id, other.mass


def find_cut(peaks: Peaks, rows: SampleRows) -> Cut | None:
    """Where min_p and top_k cut each row, None if they cut none."""
    min_p, top_k = rows.parameter("min_p", np.float64), rows.parameter("top_k", np.int64)
    few = np.flatnonzero((top_k > 0) & (top_k < peaks.width))
    if not len(few) and not min_p.any():
        return None
    least = _least(to_device(min_p, peaks.maximum), peaks.maximum)
    cut = Cut.at(least, torch.full_like(least, peaks.width, dtype=torch.int64))
    if len(few):
        some, counts = to_device(few, least), to_device(top_k[few], least)
        cut.put(some, _first(peaks if len(few) == len(rows) else peaks.take(some), least[some], counts))
    return cut


def _first(peaks: Peaks, least: torch.Tensor, counts: torch.Tensor) -> Cut:
    """The cut of the first counts [R] entries of each row that reach least [R]."""
    entries = peaks.above(torch.maximum(least, peaks.floor(counts)))
    entries = entries.take(nonzero(entries.values >= least[entries.rows]))
    ordered = sort_descending(padded(entries.rows, entries.values, len(counts), -torch.inf))
    first = torch.arange(ordered.shape[1], device=counts.device) < counts[:, None]
    cut = first_of(entries, ordered, counts)
    weights = (ordered - peaks.maximum[:, None]).double().exp()
    return Cut(cut.value, cut.last_id, torch.where(first, weights, 0.0).sum(-1))


def first_of(entries: Entries, ordered: torch.Tensor, counts: torch.Tensor) -> Cut:
    """The cut that keeps the first counts [R] entries of each row, or all if there are fewer.

    ordered: their values as a matrix [R, C], largest first, then -inf.
    """
    counts = torch.minimum(counts, (ordered > -torch.inf).sum(-1)).clamp_min(1)[:, None]
    last = ordered.gather(1, counts - 1)
    # Of the entries equal to the last one, as many as the prefix holds, lowest ids first.
    equal = entries.take(nonzero(entries.values == last[entries.rows, 0]))
    wanted = counts - (ordered > last).sum(-1, keepdim=True)
    ids = padded(equal.rows, equal.ids, len(counts), 0)
    return Cut.at(last[:, 0], ids.gather(1, wanted - 1)[:, 0])


def _least(min_p: torch.Tensor, maximum: torch.Tensor) -> torch.Tensor:
    """The least float32 value [R] that min_p lets pass, given each row's largest; the lowest number where off."""
    least = maximum + min_p.log()
    rounded = least.float()
    above = rounded.nextafter(torch.full_like(rounded, torch.inf))
    return torch.where(rounded < least, above, rounded).clamp_min(LOWEST)
