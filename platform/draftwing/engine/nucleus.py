"""top_p as a question about one entry: is the mass before it, in the order (value, then id), below p of the whole?

A draw asks it of its best entry alone, so that no row is sorted: most often it is inside, and where it is not, the
entries before it hold all that top_p keeps and the next draw is among them. The answer is that of sums in float64 over
the sorted row, `_last_kept`. Where quick sums come too close to p, that is computed.

R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftwing.core import FloatArray
from draftwing.engine.cuts import Cut, first_of
from draftwing.engine.selection import Peaks, nonzero, padded, sort_descending

_DOUBT = 2e-5  # relative; twice the error of `Peaks.mass`


@dataclass(frozen=True, slots=True)
class Nucleus:
    """The prefix whose mass reaches top_p [R] of what a cut keeps, or of the whole row.

    total [R]: mass of what the cut keeps; 0 where not yet needed.
    """

    peaks: Peaks
    cut: Cut | None
    top_p: torch.Tensor
    total: torch.Tensor

    @classmethod
    def of(cls, peaks: Peaks, cut: Cut | None, top_p: torch.Tensor) -> Nucleus:
        return cls(peaks, cut, top_p, torch.zeros_like(top_p) if cut is None else cut.mass.clone())

    def take(self, rows: torch.Tensor) -> Nucleus:
        cut = None if self.cut is None else self.cut.take(rows)
        return Nucleus(self.peaks.take(rows), cut, self.top_p[rows], self.total[rows])

    def outside(self, tokens: torch.Tensor, asked: torch.Tensor) -> tuple[torch.Tensor, Cut]:
        """Which of tokens [R], each kept by the cut, are outside; asked [R]: of which rows.

        The cut that comes with it drops each token that is outside, and nothing that is inside.
        """
        values = self.peaks.at(tokens)
        before = Cut.at(values, tokens - 1)
        mass = self.peaks.mass(values.masked_fill(~asked, torch.inf), before.last_id)
        known = self.total > 0
        least = torch.where(known, self.total, mass.least if self.cut is None else 0.0)
        most = torch.where(known, self.total, mass.most)
        unsure = (mass.part >= self.top_p * least * (1 - _DOUBT)) & (mass.part < self.top_p * most * (1 + _DOUBT))
        aim = self.top_p * self._totals(unsure & asked, most)
        outside = asked & (mass.part >= aim)
        for row in nonzero(unsure & asked & ((mass.part - aim).abs() <= _DOUBT * aim)).tolist():
            exact = self._exact(row)
            outside[row] = not exact.keeps(tokens[row], values[row])[0]
            before.put(torch.tensor([row]), exact)
        return outside, before

    def full(self) -> Cut:
        """The cut that keeps the prefix."""
        total = self._totals(torch.ones_like(self.total, dtype=torch.bool), self.total)
        # All entries below this floor together weigh at most 1 - top_p of the total.
        floor = (self.peaks.maximum + ((1 - self.top_p) / self.peaks.width * total).log() - 1e-3).float()
        entries = self.peaks.above(floor if self.cut is None else torch.maximum(floor, self.cut.value))
        if self.cut is not None:
            entries = entries.take(nonzero(self.cut.keeps(entries.ids, entries.values, entries.rows)))
        ordered = sort_descending(padded(entries.rows, entries.values, len(floor), -torch.inf))
        mass = (ordered - self.peaks.maximum[:, None]).double().exp().cumsum(-1)
        aim = (self.top_p * total)[:, None]
        cut = first_of(entries, ordered, (mass < aim).sum(-1) + 1)
        for row in nonzero(((mass - aim).abs() <= _DOUBT * aim).any(-1)).tolist():
            cut.put(torch.tensor([row]), self._exact(row))
        return cut

    def _totals(self, wanted: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The total [R] where wanted [R], something else [R] elsewhere."""
        missing = wanted & (self.total == 0)
        if missing.any():
            if self.cut is None:
                found = self.peaks.whole(missing)
            else:
                found = self.peaks.mass(self.cut.value.masked_fill(~missing, torch.inf), self.cut.last_id).part
            self.total[missing] = found[missing]
        return torch.where(wanted, self.total, other)

    def _exact(self, row: int) -> Cut:
        """The cut of one row [1] that keeps the prefix, by the definition."""
        index = torch.tensor([row], device=self.top_p.device)
        values = self.peaks.take(index).values()
        if self.cut is not None:
            values = self.cut.take(index).apply(values)
        last = _last_kept(values[0].cpu().numpy(), float(self.top_p[row]))
        return Cut.at(values[0, last : last + 1], torch.tensor([last], device=values.device))


def _last_kept(values: FloatArray, top_p: float) -> int:
    """Id of the last entry that top_p keeps of values [V]: the last one before which less than top_p lies."""
    x = values.astype(np.float64)
    order = np.argsort(-x, kind="stable")
    order = order[np.isfinite(x[order])]
    mass = np.exp(x[order] - x[order[0]])
    before = np.cumsum(mass / mass.sum())[:-1]
    return int(order[np.count_nonzero(before < top_p)])
