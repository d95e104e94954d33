"""Rule R1's choice of one token, written a second time and slowly: the whole row, one step after the other, in numpy.

Shares no code with `draftwing.engine`, so that a test against it is a test against the rule's text.

V vocabulary; histories are plain lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftwing.core import FloatArray, SamplingParams

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _splitmix_finish(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _start(value: int) -> npt.NDArray[np.uint64]:
    return _splitmix_finish(np.array([(value + _GOLDEN) & _WORD], dtype=np.uint64))


def _fold(state: npt.NDArray[np.uint64], values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return _splitmix_finish(state + np.uint64(_GOLDEN) * (values + np.uint64(1)))


def noise(seed: int, choice: int, position: int, vocab_size: int) -> FloatArray:
    """The noise g [V] of every token at a position, float32."""
    key = int(_fold(_start(seed), np.array([choice], dtype=np.uint64))[0])
    at_position = _fold(_start(key), np.array([position], dtype=np.uint64))
    bits = _fold(at_position, np.arange(vocab_size, dtype=np.uint64))
    u = ((bits >> np.uint64(40)).astype(np.float64) + 0.5) * 2.0**-24
    return (-np.log(-np.log(u))).astype(np.float32)


def processed(
    logits: FloatArray,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    end_ids: Collection[int] = (),
) -> FloatArray:
    """Logits [V] after masks, bias, penalties and temperature, before the cuts.

    end_ids: tokens that may not come before min_tokens.
    """
    values = logits.astype(np.float32).copy()
    for token, bias in params.logit_bias.items():
        values[token] += np.float32(bias)
    if len(output) < params.min_tokens:
        values[list(end_ids)] = -np.inf
    for token in set(prompt) | set(output):
        repetition = np.float32(params.repetition_penalty)
        values[token] = values[token] / repetition if values[token] > 0 else values[token] * repetition
    for token, count in Counter(output).items():
        values[token] -= np.float32(params.frequency_penalty) * np.float32(count)
        values[token] -= np.float32(params.presence_penalty)
    return values if params.temperature == 0 else values / np.float32(params.temperature)


@dataclass(frozen=True, slots=True)
class Kept:
    """tokens: ids that the cuts keep, best first. margin [V]: how far each id is from the other side of the cuts.

    The margin is in logits for min_p and top_k, in probability for top_p.
    """

    tokens: npt.NDArray[np.int64]
    margin: npt.NDArray[np.float64]


def kept(values: FloatArray, params: SamplingParams) -> Kept:
    """What min_p, top_k and top_p leave of processed logits [V]."""
    x = values.astype(np.float64)
    order = np.lexsort((np.arange(len(x)), -x))  # value descending, id ascending
    order = order[np.isfinite(x[order])]
    dropped_by = np.zeros(len(x))  # distance by which a dropped id misses
    inside = np.full(len(x), np.inf)  # distance by which a kept id makes it
    if params.min_p > 0:
        distance = x - (x[order[0]] + np.log(params.min_p))
        order = _cut(order, distance[order] >= 0, distance, dropped_by, inside)
    if 0 < params.top_k < len(order):
        last, next_one = x[order[params.top_k - 1]], x[order[params.top_k]]
        rank_keeps = np.arange(len(order)) < params.top_k
        distance = np.full(len(x), np.nan)
        distance[order] = np.where(rank_keeps, x[order] - next_one, x[order] - last)
        order = _cut(order, rank_keeps, distance, dropped_by, inside)
    if params.top_p < 1:
        mass = np.exp(x[order] - x[order[0]])
        before = np.concatenate([[0.0], np.cumsum(mass / mass.sum())[:-1]])
        distance = np.full(len(x), np.nan)
        distance[order] = params.top_p - before
        keep = before < params.top_p
        keep[0] = True
        order = _cut(order, keep, distance, dropped_by, inside)
    margin = np.where(dropped_by > 0, dropped_by, inside)
    return Kept(order, margin)


def _cut(
    order: npt.NDArray[np.int64],
    keep: npt.NDArray[np.bool_],
    distance: npt.NDArray[np.float64],
    dropped_by: npt.NDArray[np.float64],
    inside: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    gone, stays = order[~keep], order[keep]
    dropped_by[gone] = np.maximum(np.abs(distance[gone]), np.finfo(np.float64).tiny)
    inside[stays] = np.minimum(inside[stays], np.abs(distance[stays]))
    return stays


def probabilities(values: FloatArray, params: SamplingParams) -> npt.NDArray[np.float64]:
    """The distribution [V] that processed logits stand for: after the cuts, or one-hot at temperature 0."""
    p: npt.NDArray[np.float64] = np.zeros(len(values))
    if params.temperature == 0:
        p[int(values.argmax())] = 1
        return p
    tokens = kept(values, params).tokens
    p[tokens] = np.exp(values[tokens].astype(np.float64) - values[tokens[0]])
    p /= p.sum()
    return p


@dataclass(frozen=True, slots=True)
class Chosen:
    """gap: how far the choice was from another one (noise included, or to a cut)."""

    token: int
    gap: float


def choose(
    logits: FloatArray,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    choice: int = 0,
    end_ids: Collection[int] = (),
) -> Chosen | None:
    """The token after prompt + output. None where the logits allow no choice: a NaN, +inf, or nothing but -inf."""
    values = processed(logits, params, prompt, output, end_ids)
    if not np.isfinite(values.max()):
        return None
    if params.temperature == 0:
        first, second = np.lexsort((np.arange(len(values)), -values))[:2]
        return Chosen(int(first), float(values[first] - values[second]))
    cut = kept(values, params)
    scores = values + noise(params.seed, choice, len(prompt) + len(output), len(values))
    winner = min(cut.tokens.tolist(), key=lambda token: (-scores[token], token))
    return Chosen(winner, _gap(scores, cut, winner))


def _gap(scores: FloatArray, cut: Kept, winner: int) -> float:
    """The smallest change that could make another token win."""
    behind = (scores[winner] - scores).astype(np.float64)  # negative: a dropped token with a better score
    needed = np.maximum(behind, 0.0)
    dropped = np.ones(len(scores), dtype=np.bool_)
    dropped[cut.tokens] = False
    needed[dropped] = np.maximum(needed[dropped], cut.margin[dropped])
    needed[winner] = cut.margin[winner]
    return float(needed.min())
