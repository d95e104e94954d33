"""The target's own token at every row of a verify, in batched operations: rule R1 of the design.

The next token of a row is the highest of processed logit + noise among the entries its cuts keep, ties to the lowest
id; at temperature 0 the highest processed logit. The noise of a whole row is never drawn: see `_noisy_best`.

M rows, R rows of one chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from draftwing.core import IntArray
from draftwing.engine.cuts import Cut, find_cut
from draftwing.engine.noise import MAX_GUMBEL, draws, gumbel_of, least_draw, reaching, streams
from draftwing.engine.nucleus import Nucleus
from draftwing.engine.processors import SampleRows, divisors, edit, process, to_device
from draftwing.engine.selection import Entries, Peaks, best_of, nonzero

_CHUNK = 1 << 26  # logits processed at once; bounds memory
_CPU_CHUNK = 1 << 21  # fewer, so that they stay in a cache
_HEAD = 32
_SAMPLED = 32  # of so many blocks one is looked at
_MORE = 2.0  # finds e**2 times as many entries
_CROWDED = 0.15  # share of entries in reach above which hashing all is cheaper than finding them


@dataclass(frozen=True, slots=True)
class Choice:
    """tokens [M]: the next token of each row. finite [M]: false where the logits allow no choice; ignore its token.

    That is a NaN, a +inf, nothing but -inf, or masks that leave nothing.
    """

    tokens: IntArray
    finite: npt.NDArray[np.bool_]


@torch.inference_mode()
def choose(logits: torch.Tensor, rows: SampleRows) -> Choice:
    """The target's token at each row: logits [M, V], float32 or bf16."""
    tokens = np.zeros(len(rows), dtype=np.int64)
    finite = np.zeros(len(rows), dtype=np.bool_)
    for picked in _alike(rows, logits):
        some = rows.take(picked)
        values = _take(logits, picked)
        chosen = _argmax(values, some) if some.parameter("temperature")[0] == 0 else _sample(values, some)
        tokens[picked], finite[picked] = chosen.tokens, chosen.finite
    return Choice(tokens, finite)


@torch.inference_mode()
def probabilities(logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
    """The distribution each row's token is drawn from, float32 [M, V]; one-hot at temperature 0, NaN if not finite."""
    values = process(logits, rows)
    peaks = Peaks.of(values)
    finite = peaks.maximum.isfinite()
    cut = find_cut(peaks, rows)
    kept = values if cut is None else cut.apply(values)
    top_p = to_device(rows.parameter("top_p", np.float64), values)
    if len(some := nonzero((top_p < 1) & finite)):
        nucleus = Nucleus.of(peaks.take(some), None if cut is None else cut.take(some), top_p[some])
        kept = kept.index_copy(0, some, nucleus.full().apply(kept[some]))
    probs = kept.softmax(-1)
    greedy = to_device(rows.parameter("temperature") == 0, values) & finite
    probs[greedy] = torch.nn.functional.one_hot(peaks.argmax()[greedy], values.shape[1]).float()
    return probs


def _alike(rows: SampleRows, logits: torch.Tensor) -> Iterator[IntArray]:
    """Rows that are chosen together: the plainly greedy ones, the other greedy ones, those with noise, with top_p."""
    plain = np.array([s.params.plain_greedy for s in rows.sequences], dtype=np.bool_)[rows.seq_of_row]
    noisy = rows.parameter("temperature") > 0
    if plain.any():
        yield np.flatnonzero(plain)
    nucleus = rows.parameter("top_p") < 1
    size = max(1, (_CPU_CHUNK if logits.device.type == "cpu" else _CHUNK) // logits.shape[1])
    for kind in (~plain & ~noisy, noisy & ~nucleus, noisy & nucleus):
        members = np.flatnonzero(kind)
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _take(logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
    if rows[-1] - rows[0] == len(rows) - 1:
        return logits[int(rows[0]) : int(rows[-1]) + 1]
    return logits[to_device(rows, logits)]


def _argmax(logits: torch.Tensor, rows: SampleRows) -> Choice:
    peaks = Peaks.of(edit(logits, rows))
    return Choice(peaks.argmax().cpu().numpy(), peaks.maximum.isfinite().cpu().numpy())


def _sample(logits: torch.Tensor, rows: SampleRows) -> Choice:
    peaks = Peaks.of(edit(logits, rows), divisors(rows, logits))
    finite = peaks.maximum.isfinite().cpu().numpy()
    tokens = np.zeros(len(rows), dtype=np.int64)
    good = np.flatnonzero(finite)
    if len(good):
        if len(good) < len(rows):
            peaks, rows = peaks.take(to_device(good, logits)), rows.take(good)
        cut = find_cut(peaks, rows)
        top_p = rows.parameter("top_p", np.float64)
        nucleus = Nucleus.of(peaks, cut, to_device(top_p, logits)) if top_p[0] < 1 else None
        tokens[good] = _best_inside(peaks, rows, cut, nucleus).cpu().numpy()
    return Choice(tokens, finite)


def _best_inside(peaks: Peaks, rows: SampleRows, cut: Cut | None, nucleus: Nucleus | None) -> torch.Tensor:
    """Token [R] with the highest value + noise among the entries that the cut keeps and top_p too."""
    found, scores = _contenders(peaks, rows, cut, more=0.0 if nucleus is None else _MORE)
    tokens = best_of(found, scores, len(rows))
    if nucleus is None:
        return tokens
    asked = torch.ones_like(tokens, dtype=torch.bool)
    while asked.any():
        asked, closer = nucleus.outside(tokens, asked)
        left = nonzero(~asked[found.rows] | closer.keeps(found.ids, found.values, found.rows))
        found, scores = found.take(left), scores[left]
        tokens = torch.where(asked, best_of(found, scores, len(rows)), tokens)
        none = nonzero(asked & (torch.bincount(found.rows, minlength=len(rows)) == 0))
        if len(none):
            fewer = nucleus.take(none)
            tokens[none] = _best_inside(fewer.peaks, rows.take(none.cpu().numpy()), closer.take(none), fewer)
            asked[none] = False
    return tokens


def _contenders(peaks: Peaks, rows: SampleRows, cut: Cut | None, more: float) -> tuple[Entries, torch.Tensor]:
    """The kept entries of the highest value + noise, and those scores: all above some score, at least one of each row.

    The best noisy score b of some high entries bounds the rest: an entry below b - MAX_GUMBEL can't reach it whatever
    its noise, and of the others only those count whose raw draw could lift the maximum of their block to b. Where most
    entries are in reach (a high temperature) those that are not are hashed with them, and a score lower by `more` finds
    more entries at no cost.
    """
    keys = np.array([s.key for s in rows.sequences], dtype=np.int64)[rows.seq_of_row]
    stream = to_device(streams(keys, rows.positions), peaks.maximum)
    ids, values = peaks.tops(_HEAD)
    if cut is not None:
        values = values.masked_fill(~cut.keeps(ids, values), -torch.inf)
    best = (values + gumbel_of(draws(stream[:, None], ids))).amax(-1)

    reach, floor = _reach(best, cut)
    blocks = peaks.blocks(floor)
    some = blocks[::_SAMPLED]
    crowded = len(peaks.inside(some, floor)) > _CROWDED * len(some) * peaks.size
    if crowded:
        best = best - more
        reach, floor = _reach(best, cut)
        blocks = peaks.blocks(floor)
    places = None if crowded else peaks.inside(blocks, floor)
    row, block = blocks // peaks.maxima.shape[1], blocks % peaks.maxima.shape[1]
    least = least_draw(reach[row] - peaks.maxima.flatten()[blocks])
    found = peaks.entries(blocks, reaching(stream[row], block * peaks.size, least, places, peaks.size))
    if cut is not None:
        found = found.take(nonzero(cut.keeps(found.ids, found.values, found.rows)))
    scores = found.values + gumbel_of(draws(stream[found.rows], found.ids))
    complete = nonzero(scores >= best[found.rows])
    return found.take(complete), scores[complete]


def _reach(best: torch.Tensor, cut: Cut | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [R] to be found, with room for the rounding of value + noise, and a value below which none has them."""
    reach = best - (best.abs() + 2 * MAX_GUMBEL) * 1e-6  # float32: it grows with the value
    floor = reach - MAX_GUMBEL
    return reach, floor if cut is None else torch.maximum(floor, cut.value)
