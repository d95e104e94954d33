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

import math
from typing import Final

import torch

MAX_GUMBEL: Final = 17.33  # -log(-log(1 - 2**-25)) = 17.3287, the largest g

_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The signed int64 with the same 64 bits; torch has no unsigned arithmetic."""
    value &= _WORD
    return value - (1 << 64) if value >> 63 else value


def _finish(z: torch.Tensor) -> torch.Tensor:
    """fin(z), in place."""
    # torch shifts int64 arithmetically: the mask clears the copies of the sign bit.
    z ^= (z >> 30).bitwise_and_(_WORD >> 30)
    z *= _signed(_FIRST)
    z ^= (z >> 27).bitwise_and_(_WORD >> 27)
    z *= _signed(_SECOND)
    z ^= (z >> 31).bitwise_and_(_WORD >> 31)
    return z


def _fold(state: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _finish((value + 1).mul_(_signed(_GOLDEN)) + state)


def mix64(first: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    """Hash of int64 tensors that broadcast together -> int64."""
    state = _finish(first + _signed(_GOLDEN))
    for value in rest:
        state = _fold(state, value)
    return state


def request_key(seed: int, choice: int) -> int:
    """mix64(seed, choice) as a signed int64. seed: any 64-bit integer, signed or unsigned."""
    return int(mix64(torch.tensor([_signed(seed)]), torch.tensor([choice])).item())


def streams(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The state all tokens of one (key, position) share: keys [M], positions [M] int64 -> [M] int64."""
    return mix64(keys, positions)


def draws(stream: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The 24 random bits behind g, as int64 below 2**24. stream and tokens broadcast."""
    return (_fold(stream, tokens) >> 40).bitwise_and_(_WORD >> 40)


def gumbel_of(draw: torch.Tensor) -> torch.Tensor:
    """g of the 24 random bits, float32."""
    return draw.double().add_(0.5).mul_(2.0**-24).log_().neg_().log_().neg_().float()


def gumbel_bound(draw: torch.Tensor) -> torch.Tensor:
    """A cheap upper bound of g in float32: -log(1 - u), because -log u >= 1 - u."""
    return (draw - (1 << 24)).neg_().float().sub_(0.5).log_().neg_().add_(24 * math.log(2))


def gumbel(keys: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Noise of tokens: keys [M], positions [M], tokens [M] or [M, T], all int64 -> float32 shaped as tokens."""
    stream = streams(keys, positions)
    return gumbel_of(draws(stream if tokens.ndim == stream.ndim else stream[:, None], tokens))
