"""Sampling noise as a pure function of (seed, choice, position, token): rule R1 of the design.

Any implementation that follows these lines draws the same noise. All integers are 64-bit and wrap:

    G      = 0x9E3779B97F4A7C15
    fin(z) : z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
             (splitmix64's finaliser, shifts are logical)
    mix64(a)         = fin(a + G)
    mix64(a, b)      = fin(mix64(a) + G * (b + 1))
    mix64(a, b, ...) : each further argument c turns h into fin(h + G * (c + 1))

so the last argument walks the splitmix64 stream that starts at the mix of those before it.

    key  = mix64(seed, choice)
    bits = mix64(key, position, token)
    u    = ((bits >> 40) + 0.5) * 2**-24
    g    = float32(-log(-log(u)))          computed in float64
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import torch

from draftwing.core import IntArray

MAX_GUMBEL: Final = 17.33  # -log(-log(1 - 2**-25)) = 17.3287, the largest g

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_CACHED: Final = 1 << 14  # words hashed at once on a CPU, so that they stay in its cache
_LARGEST: Final = 1 << 24  # elsewhere, which bounds memory

Words = TypeVar("Words", torch.Tensor, IntArray)


def _signed(value: int) -> int:
    """The signed int64 with the same 64 bits: torch has no unsigned arithmetic."""
    value &= _WORD
    return value - (1 << 64) if value >> 63 else value


def _scramble(z: Words) -> Words:
    """fin(z) but for its last step, in place."""
    # int64 shifts arithmetically: the mask clears the copies of the sign bit.
    z ^= (z >> 30) & (_WORD >> 30)
    z *= _signed(_FIRST)
    z ^= (z >> 27) & (_WORD >> 27)
    z *= _signed(_SECOND)
    return z


def _finish(z: Words) -> Words:
    """fin(z), in place."""
    z = _scramble(z)
    z ^= (z >> 31) & (_WORD >> 31)
    return z


def _step(state: Words, value: Words) -> Words:
    words = value + 1
    words *= _signed(_GOLDEN)
    return words + state


def mix64(first: Words, *rest: Words) -> Words:
    """Hash of int64 tensors or arrays (not numpy scalars) that broadcast together -> int64."""
    state = _finish(first + _signed(_GOLDEN))
    for value in rest:
        state = _finish(_step(state, value))
    return state


def request_key(seed: int, choice: int) -> int:
    """mix64(seed, choice) as a signed int64. seed: any 64-bit integer, signed or unsigned."""
    return int(mix64(np.array([_signed(seed)]), np.array([choice]))[0])


def streams(keys: Words, positions: Words) -> Words:
    """The state all tokens of one (key, position) share: keys [M], positions [M] int64 -> [M] int64."""
    return mix64(keys, positions)


def draws(stream: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The 24 random bits behind g, as int64 below 2**24. stream and tokens broadcast."""
    # The last step of fin changes the low 33 bits alone.
    return (_scramble(_step(stream, tokens)) >> 40).bitwise_and_(_WORD >> 40)


def gumbel_of(draw: torch.Tensor) -> torch.Tensor:
    """g of the 24 random bits, float32."""
    return draw.double().add_(0.5).mul_(2.0**-24).log_().neg_().log_().neg_().float()


def gumbel(keys: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Noise of tokens: keys [M], positions [M], tokens [M] or [M, T], all int64 -> float32 shaped as tokens."""
    stream = streams(keys, positions)
    return gumbel_of(draws(stream if tokens.ndim == stream.ndim else stream[:, None], tokens))


def least_draw(noise: torch.Tensor) -> torch.Tensor:
    """A draw, at most the smallest, whose g reaches `noise` (float32 or 64) -> int64 below 2**24."""
    u = noise.double().neg().exp_().neg_().exp_()
    return (u * (1 << 24) - 1.5).floor_().clamp_(0, (1 << 24) - 1).long()


def reaching(
    stream: torch.Tensor, first: torch.Tensor, least: torch.Tensor, places: torch.Tensor | None, size: int
) -> torch.Tensor:
    """Those of `places` (None: of all) whose token draws at least as much as asked, in order.

    K runs of `size` tokens (a power of two): run k holds the tokens from first[k] on, draws from stream[k] and asks
    for least[k]. A place is run * size + index inside the run. All int64. This is the only function that hashes much,
    so it does little else: no logarithm, and an addition for the token.
    """
    start = _step(stream, first)
    steps = torch.arange(size, device=stream.device) * _signed(_GOLDEN)
    # Draws are the top bits of unsigned words; with the sign bit flipped, signed words compare alike.
    floor = (least - (1 << 23)) << 40
    if places is None:
        return _all_reaching(start, steps, floor)
    if stream.device.type != "cpu":
        return _reaching(start, steps, floor, places)
    arrays = start.numpy(), steps.numpy(), floor.numpy()
    parts = [_reaching(*arrays, places[i : i + _CACHED].numpy()) for i in range(0, len(places), _CACHED)]
    return torch.from_numpy(np.concatenate(parts)) if parts else places


def _all_reaching(start: torch.Tensor, steps: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Of all places, run by run: without the gathers that single places need."""
    if start.device.type == "cpu":
        return torch.from_numpy(_all_reaching_cpu(start.numpy(), steps.numpy(), floor.numpy()))
    size, parts = len(steps), [start[:0]]
    for i in range(0, len(start), rows := max(_LARGEST // size, 1)):
        words = _scramble(start[i : i + rows, None] + steps) ^ _signed(1 << 63)
        parts.append((words >= floor[i : i + rows, None]).flatten().nonzero().flatten() + i * size)
    return torch.cat(parts)


def _all_reaching_cpu(start: IntArray, steps: IntArray, floor: IntArray) -> IntArray:
    """The same; unsigned words need neither masks nor the flipped sign."""
    size, parts = len(steps), [start[:0]]
    starts, walk = start.view(np.uint64)[:, None], steps.view(np.uint64)
    floors = (floor ^ _signed(1 << 63)).view(np.uint64)[:, None]
    rows = max(2 * _CACHED // size, 1)
    buffers = np.empty((2, min(rows, len(start)), size), dtype=np.uint64)
    for i in range(0, len(starts), rows):
        z, t = buffers[:, : len(starts) - i]
        np.add(starts[i : i + rows], walk, out=z)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            np.right_shift(z, np.uint64(shift), out=t)
            np.bitwise_xor(z, t, out=z)
            np.multiply(z, np.uint64(factor), out=z)
        parts.append(np.flatnonzero(z >= floors[i : i + rows]) + i * size)
    return np.concatenate(parts)


def _reaching(start: Words, steps: Words, floor: Words, places: Words) -> Words:
    size = len(steps)
    run = places >> (size.bit_length() - 1)
    words = start[run]
    words += steps[places & (size - 1)]
    words = _scramble(words)
    words ^= _signed(1 << 63)
    passed: Words = places[words >= floor[run]]
    return passed
