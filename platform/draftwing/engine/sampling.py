"""The target's own token at every row of a verify, in batched operations: rule R1 of the design.

The next token of a row is the highest of (processed logit + noise) among the entries its cuts keep, ties to the lowest
id; at temperature 0 the highest processed logit. The noise of a whole row is never drawn: see `_noisy_best`.

M rows, R rows of one chunk, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from draftwing.core import IntArray
from draftwing.engine.cuts import Cut, find_cut
from draftwing.engine.noise import MAX_GUMBEL, draws, gumbel_bound, gumbel_of, streams
from draftwing.engine.processors import SampleRows, process
from draftwing.engine.selection import Entries, Peaks, best_of, nonzero

_CHUNK = 1 << 22  # logits processed at once; bounds memory
_HEAD = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """tokens [M]: the next token of each row. finite [M]: false where the logits allow no choice; ignore its token.

    That is a NaN, a +inf, nothing but -inf, or masks that leave nothing.
    """

    tokens: IntArray
    finite: npt.NDArray[np.bool_]


def choose(logits: torch.Tensor, rows: SampleRows) -> Choice:
    """The target's token at each row: logits [M, V], float32 or bf16."""
    tokens = np.zeros(len(rows), dtype=np.int64)
    finite = np.zeros(len(rows), dtype=np.bool_)
    plain = np.array([s.params.plain_greedy for s in rows.sequences], dtype=np.bool_)[rows.seq_of_row]
    greedy = np.flatnonzero(plain)
    if len(greedy):
        peaks = Peaks.of(logits if len(greedy) == len(rows) else _take(logits, greedy))
        tokens[greedy] = peaks.argmax().cpu().numpy()
        finite[greedy] = peaks.maximum.isfinite().cpu().numpy()
    others = np.flatnonzero(~plain)
    size = max(1, _CHUNK // logits.shape[1])
    for start in range(0, len(others), size):
        chunk = others[start : start + size]
        picked = rows.take(chunk)
        chosen = _choose_processed(process(_take(logits, chunk), picked), picked)
        tokens[chunk], finite[chunk] = chosen.tokens, chosen.finite
    return Choice(tokens, finite)


def probabilities(logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
    """The distribution each row's token is drawn from, float32 [M, V]; one-hot at temperature 0, NaN if not finite."""
    values = process(logits, rows)
    peaks = Peaks.of(values)
    cut = find_cut(peaks, rows)
    probs = (values if cut is None else cut.apply(values)).softmax(-1)
    greedy = torch.from_numpy(rows.parameter("temperature") == 0).to(values.device) & peaks.maximum.isfinite()
    probs[greedy] = torch.nn.functional.one_hot(peaks.argmax()[greedy], values.shape[1]).float()
    return probs


def _take(logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
    if rows[-1] - rows[0] == len(rows) - 1:
        return logits[int(rows[0]) : int(rows[-1]) + 1]
    return logits[torch.from_numpy(rows).to(logits.device)]


def _choose_processed(values: torch.Tensor, rows: SampleRows) -> Choice:
    """As choose, from processed logits [R, V] before the cuts."""
    peaks = Peaks.of(values)
    finite = peaks.maximum.isfinite().cpu().numpy()
    sampled = finite & (rows.parameter("temperature") > 0)
    tokens = np.zeros(len(rows), dtype=np.int64)
    if not sampled.all():
        tokens[:] = peaks.argmax().cpu().numpy()
    if sampled.any():
        picked = np.flatnonzero(sampled)
        if len(picked) < len(rows):
            peaks, rows = peaks.take(torch.from_numpy(picked).to(values.device)), rows.take(picked)
        tokens[picked] = _noisy_best(peaks, rows, find_cut(peaks, rows)).cpu().numpy()
    return Choice(tokens, finite)


def _noisy_best(peaks: Peaks, rows: SampleRows, cut: Cut | None) -> torch.Tensor:
    """Token [R] with the highest value + noise among the kept entries, exactly, from little noise.

    The best noisy score b of the highest entries bounds the rest: an entry below b - MAX_GUMBEL can't win whatever its
    noise. Of those above, the cheap bound of `gumbel_bound` rules out nearly all before a logarithm in float64.
    """
    device, count = peaks.maximum.device, len(rows)
    keys = np.array([s.key for s in rows.sequences], dtype=np.int64)[rows.seq_of_row]
    stream = streams(torch.from_numpy(keys).to(device), torch.from_numpy(rows.positions).to(device))

    def kept(entries: Entries) -> Entries:
        return entries if cut is None else entries.take(nonzero(cut.keeps(entries)))

    head_floor = peaks.floor(torch.full((count,), min(_HEAD, peaks.maxima.shape[1]), device=device))
    head = kept(peaks.above(head_floor))
    scores = head.values + gumbel_of(draws(stream[head.rows], head.ids))
    best, winner = best_of(head, scores, count)

    # Room for the rounding of value + noise in float32, which grows with the value.
    slack = (best.abs() + 2 * MAX_GUMBEL) * 1e-6
    tail_floor = best - MAX_GUMBEL - slack
    if cut is not None:
        tail_floor = torch.maximum(tail_floor, cut.value)
    deeper = tail_floor < head_floor
    if not deeper.any():
        return winner
    tail = kept(peaks.above(tail_floor.masked_fill(~deeper, torch.inf)))
    draw = draws(stream[tail.rows], tail.ids)
    possible = nonzero(tail.values + gumbel_bound(draw) + (slack + 1e-3)[tail.rows] >= best[tail.rows])
    tail = tail.take(possible)
    return torch.where(deeper, best_of(tail, tail.values + gumbel_of(draw[possible]), count)[1], winner)
