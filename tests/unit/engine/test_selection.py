"""Searching wide rows by blocks gives what a plain look at every entry gives."""

from __future__ import annotations

import pytest
import torch

from draftwing.engine.selection import Entries, Peaks, best_of, largest, padded, sort_descending

# Blocks of one entry, of 256 by division, of 128, and padded.
WIDTHS = [1, 7, 4096, 8192, 8320, 5003]


def matrix(width: int, *, ties: bool, seed: int = 0) -> torch.Tensor:
    values = torch.randn(3, width, generator=torch.Generator().manual_seed(seed)) * 3
    values = values.round() if ties else values
    return values.masked_fill(torch.rand(3, width, generator=torch.Generator().manual_seed(seed + 1)) < 0.2, -torch.inf)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("divisor", [None, 0.7, 1e-4])
def test_above_finds_every_entry(width: int, ties: bool, divisor: float | None) -> None:
    raw = matrix(width, ties=ties)
    divisors = None if divisor is None else torch.tensor([divisor, 1.0, 2.0])
    values = raw if divisors is None else raw / divisors[:, None]
    peaks = Peaks.of(raw, divisors)
    assert torch.equal(peaks.maximum, values.amax(-1))
    floor = torch.stack([values[0].quantile(0.9), values[1].amax(), torch.tensor(-torch.inf)])
    found = peaks.above(floor)
    rows, ids = torch.nonzero((values >= floor[:, None]) & (values > -torch.inf), as_tuple=True)
    kept = found.take(torch.nonzero(found.values >= floor[found.rows]).flatten())
    assert torch.equal(kept.rows, rows)
    assert torch.equal(kept.ids, ids)
    assert torch.equal(kept.values, values[rows, ids])
    assert len(found.rows) - len(rows) <= (0 if divisor is None else 1 + width // 50)  # few are lower by rounding


@pytest.mark.parametrize("width", WIDTHS)
def test_argmax_takes_the_lowest_id(width: int) -> None:
    values = matrix(width, ties=True)
    expected = [int((row == row.max()).nonzero()[0]) for row in values]
    assert Peaks.of(values).argmax().tolist() == expected
    assert Peaks.of(values.bfloat16()).argmax().tolist() == expected


def test_a_nan_is_the_maximum() -> None:
    values = matrix(8192, ties=False)
    values[1, 5000] = torch.nan
    peaks = Peaks.of(values)
    assert peaks.maximum.isnan().tolist() == [False, True, False]
    assert peaks.argmax()[1] == 5000


@pytest.mark.parametrize("width", WIDTHS)
def test_tops_are_entries(width: int) -> None:
    values = matrix(width, ties=False)
    divisors = torch.tensor([0.3, 1.0, 2.0])
    ids, tops = Peaks.of(values, divisors).tops(32)
    assert torch.equal(tops, (values / divisors[:, None]).gather(1, ids))
    assert torch.equal(tops[:, 0], (values / divisors[:, None]).amax(-1))


@pytest.mark.parametrize("width", WIDTHS)
def test_floor_is_reached_by_as_many_as_asked(width: int) -> None:
    values = matrix(width, ties=True)
    counts = torch.tensor([1, 20, 5000]).clamp_max(width)
    floor = Peaks.of(values).floor(counts)
    assert ((values >= floor[:, None]).sum(-1) >= counts).all()
    assert floor[0] == values[0].max()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("divisor", [None, 0.3, 1e-4])
def test_mass_up_to_an_entry(width: int, ties: bool, divisor: float | None) -> None:
    raw = matrix(width, ties=ties)
    divisors = None if divisor is None else torch.tensor([divisor, 1.0, 2.0])
    values = raw if divisors is None else raw / divisors[:, None]
    peaks = Peaks.of(raw, divisors)
    weights = (values.double() - values.amax(-1, keepdim=True).double()).exp()
    whole = peaks.whole(torch.tensor([True, True, False]))
    torch.testing.assert_close(whole[:2], weights.sum(-1)[:2], rtol=1e-5, atol=0)
    assert whole[2] == 0
    ids = torch.arange(width)
    for id_ in {0, width // 3, width - 1}:
        for last_id in (id_, id_ - 1):
            value = peaks.at(torch.full((3,), id_))
            assert torch.equal(value, values[:, id_])
            before = (values > value[:, None]) | ((values == value[:, None]) & (ids <= last_id))
            expected = torch.where(before, weights, 0.0).sum(-1)
            mass = peaks.mass(value, torch.full((3,), last_id))
            torch.testing.assert_close(mass.part, expected, rtol=1e-5, atol=1e-9)
            assert (mass.least <= weights.sum(-1) * (1 + 1e-5)).all()
            assert (mass.most >= weights.sum(-1) * (1 - 1e-5)).all()


def test_padded_rows_keep_their_order() -> None:
    values = padded(torch.tensor([0, 0, 2]), torch.tensor([1.0, 2.0, 3.0]), 3, -torch.inf)
    assert values.tolist() == [[1, 2], [-torch.inf, -torch.inf], [3, -torch.inf]]
    assert sort_descending(values).tolist() == [[2, 1], [-torch.inf, -torch.inf], [3, -torch.inf]]
    assert padded(torch.tensor([1]), torch.tensor([7]), 2, 9).tolist() == [[9], [7]]


def test_best_of_takes_the_lowest_id_of_equals() -> None:
    entries = Entries(torch.tensor([0, 0, 0, 2]), torch.tensor([3, 5, 8, 6]), torch.zeros(4))
    assert best_of(entries, torch.tensor([1.0, 2.0, 2.0, 0.0]), 3).tolist() == [5, 0, 6]


@pytest.mark.parametrize("count", [1, 8, 9, 64])
@pytest.mark.parametrize("width", [3, 700, 4096, 16_384, 20_011, 40_016])
@pytest.mark.parametrize("kind", ["spread", "tied", "masked"])
def test_the_largest_entries_are_those_of_topk(kind: str, width: int, count: int) -> None:
    values = torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    if kind == "tied":
        values = values.round()
    if kind == "masked":
        values[1:, 1:] = -torch.inf
        values[2] = -torch.inf
    got, ids = largest(values, count)
    assert torch.equal(got.sort(-1, descending=True).values, values.topk(min(count, width), dim=-1).values)
    assert torch.equal(values.gather(1, ids), got)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_a_row_of_nan_spoils_no_other() -> None:
    values = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0))
    values[1] = torch.nan
    got, ids = largest(values, 64)
    for row in (0, 2):
        assert torch.equal(got[row].sort(descending=True).values, values[row].topk(64).values)
    assert ((ids >= 0) & (ids < 20_000)).all()
