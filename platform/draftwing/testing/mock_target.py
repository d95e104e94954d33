"""A target without a network that stands where the model runner stands: whole-engine tests in milliseconds.

Its cache keeps, per slot, what a transformer's cache keeps in effect: a digest of the row's token, its position and all
rows it could see when it was computed. Logits are a function of the last row's digest. So a wrong slot, mask, parent,
position or compaction gives other tokens later, exactly as with a real model, and a slot read before it was written
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftwing.core import FloatArray, IntArray
from draftwing.engine.batch import SequenceRows

_MASK = (1 << 64) - 1
Path = tuple[int, ...]


class MockCacheError(AssertionError):
    """The engine asked for something no correct bookkeeping asks for."""


def _scramble(x: int) -> int:
    """murmur3's 64-bit finalizer: on purpose not the mixer of the sampling noise, whose draws it must not resemble."""
    x &= _MASK
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return x ^ (x >> 33)


def _scramble_many(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def _digest(token: int, position: int, seen: int) -> int:
    return _scramble(_scramble(seen + 0x9E3779B97F4A7C15 * (position + 1)) + 0xD1B54A32D192ED03 * (token + 1))


def _unit(digest: int, salt: int) -> float:
    return _scramble(digest ^ (salt * 0xA0761D6478BD642F)) / 2.0**64


@dataclass(frozen=True, slots=True)
class MockBehaviour:
    """What the mock's distributions look like.

    sharpness: standard deviation of the logits; 0 is uniform, 5 nearly one token. order: the logits' main part depends
    on that many last tokens alone, so that text repeats itself and lookup drafters hit; 0: on the whole path.
    surprise: with an order, the size of the part that depends on the whole path; it keeps every bookkeeping error
    visible. grid: logits are rounded to multiples of it, which makes ties; 0: off. eos_id, eos_rate: how often the
    end-of-text token is far the best; otherwise it is far the worst. distribution: path -> logits [V], in place of all
    this. nan_after: paths after which the logits are NaN.
    """

    vocab_size: int = 64
    sharpness: float = 3.0
    order: int = 0
    surprise: float = 1.0
    grid: float = 0.0
    seed: int = 0
    eos_id: int | None = None
    eos_rate: float = 0.0
    distribution: Callable[[Path], FloatArray] | None = None
    nan_after: Callable[[Path], bool] | None = None

    def logits(self, path: Path, digest: int) -> FloatArray:
        """Logits [V] after a path whose last row has this digest."""
        if self.nan_after is not None and self.nan_after(path):
            return np.full(self.vocab_size, np.nan, dtype=np.float32)
        if self.distribution is not None:
            return np.asarray(self.distribution(path), dtype=np.float32)
        if self.order == 0:
            logits = self.sharpness * self._bell(digest)
        else:
            logits = self.sharpness * self._bell(clean_digest(path[-self.order :])) + self.surprise * self._bell(digest)
        if self.grid:
            logits = np.round(logits / self.grid) * self.grid
        if self.eos_id is not None:
            logits[self.eos_id] = 100.0 if _unit(digest, 7) < self.eos_rate else -100.0
        return logits.astype(np.float32)

    def _bell(self, digest: int) -> npt.NDArray[np.float64]:
        """Roughly normal values [V], mean 0, deviation 1: the sum of four uniform 16-bit parts of a hash."""
        counters = np.arange(1, self.vocab_size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = _scramble_many(counters ^ np.uint64(_scramble(digest ^ self.seed)))
        total = sum(((bits >> np.uint64(s)) & np.uint64(0xFFFF)).astype(np.float64) for s in (0, 16, 32, 48))
        return np.asarray((total / 65536.0 - 2.0) * np.sqrt(3.0))


def clean_digest(path: Sequence[int]) -> int:
    """The digest of a path's last row when every row saw exactly its own history."""
    seen = digest = 0
    for position, token in enumerate(path):
        digest = _digest(token, position, seen)
        seen = (seen + _scramble(digest + position)) & _MASK
    return digest


class MockTarget:
    """Implements the engine's `Runner` over `slots` cache rows; `logits_after` is the same model without a cache.

    forwards, rows: counted since the start.
    """

    def __init__(self, behaviour: MockBehaviour | None = None, *, slots: int = 4096) -> None:
        self.behaviour = behaviour or MockBehaviour()
        self.vocab_size = self.behaviour.vocab_size
        self.slots = slots
        self.forwards = 0
        self.rows = 0
        self._digests: dict[int, tuple[int, int]] = {}  # slot -> (digest, token)

    def logits_after(self, path: Sequence[int]) -> FloatArray:
        """Logits [V] after these tokens."""
        return self.behaviour.logits(tuple(path), clean_digest(path))

    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        """Logits [wanted rows, V]. Reads the committed rows of all sequences, then writes the new ones."""
        self.forwards += 1
        written: dict[int, tuple[int, int]] = {}
        out: list[FloatArray] = []
        for sequence in sequences:
            self.rows += len(sequence.tokens)
            out += self._sequence(sequence, written)
        for sequence in sequences:
            if clash := written.keys() & set(sequence.slots[: sequence.kv_len].tolist()):
                raise MockCacheError(f"slots {sorted(clash)} hold committed rows and are written in the same forward")
        self._digests |= written
        return torch.from_numpy(np.stack(out) if out else np.empty((0, self.vocab_size), dtype=np.float32))

    def _sequence(self, rows: SequenceRows, written: dict[int, tuple[int, int]]) -> list[FloatArray]:
        """Compute one sequence's rows in order, parents first, into `written`; the wanted rows' logits."""
        seen, path = self._committed(rows.slots[: rows.kv_len])
        after: list[tuple[int, Path]] = []  # per row: what a child sees, and its path
        digests: list[int] = []
        for i, (token, parent, slot) in enumerate(
            zip(rows.tokens.tolist(), rows.parents.tolist(), rows.slots[rows.kv_len :].tolist(), strict=True)
        ):
            if not -1 <= parent < i:
                raise MockCacheError(f"row {i} has parent {parent}; parents come first")
            self._check(slot, token)
            before, prefix = (seen, path) if parent < 0 else after[parent]
            position = len(prefix)
            digest = _digest(token, position, before)
            if slot in written:
                raise MockCacheError(f"slot {slot} is written twice in one forward")
            written[slot] = (digest, token)
            digests.append(digest)
            after.append(((before + _scramble(digest + position)) & _MASK, (*prefix, token)))
        first = len(digests) - rows.wanted
        return [self.behaviour.logits(after[i][1], digests[i]) for i in range(first, len(digests))]

    def _committed(self, slots: IntArray) -> tuple[int, Path]:
        """What a row after these cached rows sees, and their tokens."""
        seen, tokens = 0, []
        for position, slot in enumerate(slots.tolist()):
            if slot not in self._digests:
                raise MockCacheError(f"slot {slot} is read as position {position} but was never written")
            digest, token = self._digests[slot]
            seen = (seen + _scramble(digest + position)) & _MASK
            tokens.append(token)
        return seen, tuple(tokens)

    def _check(self, slot: int, token: int) -> None:
        if not 0 <= slot < self.slots:
            raise MockCacheError(f"slot {slot} is outside the cache of {self.slots}")
        if not 0 <= token < self.vocab_size:
            raise MockCacheError(f"token {token} is outside the vocabulary of {self.vocab_size}")

    def move(self, source: IntArray, target: IntArray) -> None:
        """Copy cache rows source[i] to target[i], all read before any is written."""
        if len(source) != len(target) or len(set(target.tolist())) != len(target):
            raise MockCacheError(
                f"move from {source.tolist()} to {target.tolist()}: not one source per distinct target"
            )
        missing = [slot for slot in source.tolist() if slot not in self._digests]
        if missing:
            raise MockCacheError(f"move reads slots {missing}, never written")
        read = [self._digests[slot] for slot in source.tolist()]
        self._digests.update(zip(target.tolist(), read, strict=True))
