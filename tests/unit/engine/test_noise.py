"""Noise: fixed vectors, an independent implementation in plain integers, and the bound the exact filter rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.engine.noise import (
    MAX_GUMBEL,
    draws,
    gumbel,
    gumbel_of,
    least_draw,
    mix64,
    reaching,
    request_key,
    streams,
)

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
words = st.integers(0, WORD - 1)

# seed, choice, position, token, key, bits, g; changing one changes every output ever promised for a seed
VECTORS = [
    (0x0, 0, 0, 0, 0xA706DD2F4D197E6F, 0x78AE5A9A6B5FD45E, 0.28498414158821106),
    (0x0, 0, 0, 1, 0xA706DD2F4D197E6F, 0xB9895A2B68592DF1, 1.133434772491455),
    (0x1, 0, 7, 262143, 0x5E41AB087439611E, 0x3FA439772CC17C58, -0.3306780755519867),
    (0x8000000000000000, 3, 1000, 5, 0xFF77DB873E7B691F, 0xF9A462C96E6EB998, 3.6829354763031006),
    (0xFFFFFFFFFFFFFFFF, 127, 131071, 65535, 0xA3131552F009BDED, 0x72E9276E517804B0, 0.22186733782291412),
    (0x123456789ABCDEF, 1, 42, 31999, 0x498D3E51E781CDE0, 0xC6F0A053D81C7C34, 1.3776342868804932),
]


def signed(value: int) -> int:
    return value - WORD if value >= WORD // 2 else value


def fin(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def mix(first: int, *rest: int) -> int:
    h = fin((first + GOLDEN) % WORD)
    for value in rest:
        h = fin((h + GOLDEN * (value + 1)) % WORD)
    return h


def tensor(*values: int) -> torch.Tensor:
    return torch.tensor([signed(v) for v in values])


def test_splitmix64_published_stream() -> None:
    # The first outputs of splitmix64 from seed 1234567, as its authors' code prints them.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [fin((1234567 + GOLDEN * (i + 1)) % WORD) for i in range(4)] == published
    assert mix64(tensor(1234567)).tolist() == [signed(published[0])]


@pytest.mark.parametrize(("seed", "choice", "position", "token", "key", "bits", "g"), VECTORS)
def test_vectors(seed: int, choice: int, position: int, token: int, key: int, bits: int, g: float) -> None:
    assert request_key(seed, choice) == signed(key) == request_key(signed(seed), choice)
    assert mix64(tensor(key), torch.tensor([position]), torch.tensor([token])).tolist() == [signed(bits)]
    got = gumbel(tensor(key), torch.tensor([position]), torch.tensor([token]))
    assert got.dtype == torch.float32
    assert got.item() == np.float32(g)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=5))
def test_mix64_in_plain_integers(triples: list[tuple[int, int, int]]) -> None:
    expected = [signed(mix(*t)) for t in triples]
    columns = [tensor(*column) for column in zip(*triples, strict=True)]
    assert mix64(*columns).tolist() == expected
    assert mix64(*(c.numpy() for c in columns)).tolist() == expected


def test_gumbel_by_row_is_gumbel_by_entry() -> None:
    keys, positions, tokens = tensor(3, WORD - 5), torch.tensor([10, 70_000]), torch.tensor([[1, 2, 3], [9, 2, 262143]])
    rows = gumbel(keys, positions, tokens)
    entries = gumbel(keys.repeat_interleave(3), positions.repeat_interleave(3), tokens.flatten())
    assert torch.equal(rows.flatten(), entries)
    u = ((mix(WORD - 5, 70_000, 262143) >> 40) + 0.5) * 2.0**-24
    assert rows[1, 2].item() == np.float32(-math.log(-math.log(u)))


def test_noise_never_exceeds_its_bound() -> None:
    extremes = gumbel_of(torch.tensor([0, 2**24 - 1]))
    assert -2.9 < extremes[0].item() < -2.8
    assert 17.32 < extremes[1].item() < MAX_GUMBEL


def test_least_draw_never_rules_out_a_winner_and_rules_out_nearly_all_losers() -> None:
    draw = torch.cat([torch.arange(1000), torch.randint(0, 2**24, (5000,)), torch.arange(2**24 - 1000, 2**24)])
    g = gumbel_of(draw)
    assert (least_draw(g) <= draw).all()
    assert (draw - least_draw(g) <= 4).all()
    assert least_draw(torch.tensor([-50.0, 50.0])).tolist() == [0, 2**24 - 2]


@pytest.mark.parametrize("size", [1, 64, 256])
def test_reaching_is_a_comparison_of_draws(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    runs = 70
    stream = streams(torch.randint(-(2**63), 2**63 - 1, (runs,), generator=generator), torch.arange(runs))
    first = torch.randint(0, 1000, (runs,), generator=generator) * size
    least = torch.randint(0, 2**24, (runs,), generator=generator)
    places = torch.arange(0, runs * size, 1 if size == 1 else 3)
    run = places // size
    wanted = draws(stream[run], first[run] + places % size) >= least[run]
    assert torch.equal(reaching(stream, first, least, places, size), places[wanted])
    assert 0 < wanted.sum() < len(places)
    every = torch.arange(runs * size)
    assert torch.equal(reaching(stream, first, least, None, size), reaching(stream, first, least, every, size))
