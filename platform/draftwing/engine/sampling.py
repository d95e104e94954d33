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
from draftwing.engine.processors import SampleRows, divisors, edit, process, to_device
from draftwing.engine.selection import Peaks, best_of, nonzero

_CHUNK = 1 << 26  # logits processed at once; bounds memory
_CPU_CHUNK = 1 << 20  # fewer, so that they stay in a cache
_HEAD = 32
_SAMPLED = 32  # of so many blocks one is looked at
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
    cut = find_cut(peaks, rows)
    probs = (values if cut is None else cut.apply(values)).softmax(-1)
    greedy = to_device(rows.parameter("temperature") == 0, values) & peaks.maximum.isfinite()
    probs[greedy] = torch.nn.functional.one_hot(peaks.argmax()[greedy], values.shape[1]).float()
    return probs


def _alike(rows: SampleRows, logits: torch.Tensor) -> Iterator[IntArray]:
    """Rows that are chosen together: the plainly greedy ones, the other greedy ones, those with noise."""
    plain = np.array([s.params.plain_greedy for s in rows.sequences], dtype=np.bool_)[rows.seq_of_row]
    noisy = rows.parameter("temperature") > 0
    if plain.any():
        yield np.flatnonzero(plain)
    size = max(1, (_CPU_CHUNK if logits.device.type == "cpu" else _CHUNK) // logits.shape[1])
    for kind in (~plain & ~noisy, noisy):
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
        tokens[good] = _noisy_best(peaks, rows, find_cut(peaks, rows)).cpu().numpy()
    return Choice(tokens, finite)


def _noisy_best(peaks: Peaks, rows: SampleRows, cut: Cut | None) -> torch.Tensor:
    """Token [R] with the highest value + noise among the kept entries, exactly, from little noise.

    The best noisy score b of some high entries bounds the rest: an entry below b - MAX_GUMBEL can't win whatever its
    noise, and of the others only those count whose raw draw could lift the maximum of their block to b. Where most
    entries are in reach (a high temperature) those that are not are hashed with them.
    """
    keys = np.array([s.key for s in rows.sequences], dtype=np.int64)[rows.seq_of_row]
    stream = to_device(streams(keys, rows.positions), peaks.maximum)
    ids, values = peaks.tops(_HEAD)
    if cut is not None:
        values = values.masked_fill(~cut.keeps(ids, values), -torch.inf)
    best = (values + gumbel_of(draws(stream[:, None], ids))).amax(-1)

    # Room for the rounding of value + noise in float32, which grows with the value.
    reach = best - (best.abs() + 2 * MAX_GUMBEL) * 1e-6
    floor = reach - MAX_GUMBEL if cut is None else torch.maximum(reach - MAX_GUMBEL, cut.value)
    blocks = peaks.blocks(floor)
    row, block = blocks // peaks.maxima.shape[1], blocks % peaks.maxima.shape[1]
    least = least_draw(reach[row] - peaks.maxima.flatten()[blocks])
    some = blocks[::_SAMPLED]
    crowded = len(peaks.inside(some, floor)) > _CROWDED * len(some) * peaks.size
    places = None if crowded else peaks.inside(blocks, floor)
    found = peaks.entries(blocks, reaching(stream[row], block * peaks.size, least, places, peaks.size))
    if cut is not None:
        found = found.take(nonzero(cut.keeps(found.ids, found.values, found.rows)))
    return best_of(found, found.values + gumbel_of(draws(stream[found.rows], found.ids)), len(rows))
