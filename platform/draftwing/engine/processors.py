"""From raw logits to processed ones, each row by its own history: bias and masks, penalties, temperature.

Edits touch few tokens, so they are gathered as (row, token) entries and written by one scatter each; nothing here
loops over rows or nodes, only over the sequences of the batch.

M rows, V vocabulary, E entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from draftwing.core import FloatArray, IntArray, SamplingParams
from draftwing.engine.noise import request_key

Number = TypeVar("Number", bound=np.generic)

_NO_IDS: IntArray = np.empty(0, dtype=np.int64)
_NO_VALUES: FloatArray = np.empty(0, dtype=np.float32)


@dataclass(slots=True)
class History:
    """Which tokens a sequence has seen. ids: sorted, prompt and output; counts: how often in the output."""

    ids: IntArray
    counts: IntArray

    @classmethod
    def of_prompt(cls, prompt_ids: Sequence[int] | IntArray) -> History:
        ids = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        return cls(ids, np.zeros_like(ids))

    def append(self, tokens: Sequence[int] | IntArray) -> None:
        """Add committed output."""
        new, counts = np.unique(np.asarray(tokens, dtype=np.int64), return_counts=True)
        self.ids, self.counts = _merge(self.ids, self.counts, new, counts)


@dataclass(slots=True)
class SamplerState:
    """One sequence as the sampler sees it; make it with `create`, tell it of committed output with `commit`.

    key: noise key of the request. prompt_len: tokens of the prompt. history: None unless a penalty is on.
    end_ids: tokens that may not come before `params.min_tokens` output tokens. bias_*: `params.logit_bias` as arrays.
    """

    params: SamplingParams
    key: int
    prompt_len: int
    history: History | None = None
    end_ids: IntArray = field(default_factory=lambda: _NO_IDS)
    bias_ids: IntArray = field(default_factory=lambda: _NO_IDS)
    bias_values: FloatArray = field(default_factory=lambda: _NO_VALUES)

    @classmethod
    def create(
        cls,
        params: SamplingParams,
        prompt_ids: Sequence[int] | IntArray,
        *,
        choice: int = 0,
        end_ids: Iterable[int] = (),
    ) -> SamplerState:
        """end_ids: all ids that end the sequence, end-of-text and stop tokens alike."""
        return cls(
            params=params,
            key=request_key(params.seed, choice),
            prompt_len=len(prompt_ids),
            history=History.of_prompt(prompt_ids) if _penalised(params) else None,
            end_ids=np.unique(np.fromiter(end_ids, dtype=np.int64)) if params.min_tokens else _NO_IDS,
            bias_ids=np.fromiter(params.logit_bias.keys(), dtype=np.int64),
            bias_values=np.fromiter(params.logit_bias.values(), dtype=np.float32),
        )

    def commit(self, tokens: Sequence[int] | IntArray) -> None:
        if self.history is not None:
            self.history.append(tokens)


@dataclass(slots=True)
class SampleRows:
    """The rows of one verify whose next token is to be chosen.

    seq_of_row [M]: index into sequences. positions [M]: index in prompt + output of the token being chosen.
    path_rows, path_tokens [E]: for each row the draft tokens between the committed output and the token being chosen
    (the row's own node and its ancestors, not the root); read only for sequences with a penalty.
    """

    sequences: list[SamplerState]
    seq_of_row: IntArray
    positions: IntArray
    path_rows: IntArray = field(default_factory=lambda: _NO_IDS)
    path_tokens: IntArray = field(default_factory=lambda: _NO_IDS)

    def __len__(self) -> int:
        return len(self.seq_of_row)

    def take(self, rows: IntArray) -> SampleRows:
        """Only these rows, in this order, and their sequences; rows are distinct."""
        owners, owner = np.unique(self.seq_of_row[rows], return_inverse=True)
        place = np.full(len(self), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        path_rows = place[self.path_rows]
        kept = path_rows >= 0
        return SampleRows(
            [self.sequences[i] for i in owners], owner, self.positions[rows], path_rows[kept], self.path_tokens[kept]
        )

    def parameter(self, name: str, dtype: type[np.generic] = np.float32) -> npt.NDArray[Any]:
        """One sampling parameter of each row [M]."""
        return np.array([getattr(s.params, name) for s in self.sequences], dtype=dtype)[self.seq_of_row]


def edit(logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
    """Logits [M, V] after bias, masks and penalties: float32; `logits` itself where no sequence asks for any."""
    if not edited(rows):
        return logits
    values = logits.to(torch.float32, copy=True)
    _add_bias(values, rows)
    _mask_ends(values, rows)
    _penalise(values, rows)
    return values


def edited(rows: SampleRows) -> bool:
    """Whether any row's logits are changed by more than a temperature."""
    return any(map(_edited, rows.sequences))


def divisors(rows: SampleRows, like: torch.Tensor) -> torch.Tensor | None:
    """What each row's logits are divided by [M]: its temperature, 1 for temperature 0. None: all are 1."""
    temperatures = rows.parameter("temperature")
    temperatures[temperatures == 0] = 1
    return None if (temperatures == 1).all() else to_device(temperatures, like)


def process(logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
    """Logits [M, V] after bias, masks, penalties and temperature, float32 [M, V]; the cuts are not in it."""
    values, divisor = edit(logits, rows).float(), divisors(rows, logits)
    # A tensor divides, on every device; a number would be multiplied as its reciprocal on some.
    return values if divisor is None else values / divisor[:, None]


def _penalised(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0


def _edited(state: SamplerState) -> bool:
    return state.history is not None or len(state.bias_ids) > 0 or len(state.end_ids) > 0


def _add_bias(values: torch.Tensor, rows: SampleRows) -> None:
    index, ids = _spread([s.bias_ids for s in rows.sequences], rows.seq_of_row)
    if len(index):
        biases = _spread([s.bias_values for s in rows.sequences], rows.seq_of_row)[1]
        where = to_device(index, values), to_device(ids, values)
        values[where] = values[where] + to_device(biases, values)


def _mask_ends(values: torch.Tensor, rows: SampleRows) -> None:
    prompt_lens = np.array([s.prompt_len for s in rows.sequences], dtype=np.int64)[rows.seq_of_row]
    early = np.flatnonzero(rows.positions - prompt_lens < rows.parameter("min_tokens", np.int64))
    index, ids = _spread([s.end_ids for s in rows.sequences], rows.seq_of_row[early])
    known = ids < values.shape[1]
    if known.any():
        values[to_device(early[index[known]], values), to_device(ids[known], values)] = -torch.inf


def _penalise(values: torch.Tensor, rows: SampleRows) -> None:
    histories = [s.history for s in rows.sequences]
    index, ids = _spread([_NO_IDS if h is None else h.ids for h in histories], rows.seq_of_row)
    counts = _spread([_NO_IDS if h is None else h.counts for h in histories], rows.seq_of_row)[1]
    width = values.shape[1]
    has_history = np.array([h is not None for h in histories])[rows.seq_of_row]
    on_path = has_history[rows.path_rows]
    path = rows.path_rows[on_path] * width + rows.path_tokens[on_path]
    keys, counts = _merge(index * width + ids, counts, *np.unique(path, return_counts=True))
    if not len(keys):
        return
    index, ids = np.divmod(keys, width)
    where = to_device(index, values), to_device(ids, values)
    repetition, frequency, presence = (
        to_device(rows.parameter(f"{name}_penalty")[index], values) for name in ("repetition", "frequency", "presence")
    )
    seen = values[where]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    seen -= frequency * to_device(counts, values)
    seen -= presence * to_device(counts > 0, values)
    values[where] = seen


def _merge(keys: IntArray, counts: IntArray, new: IntArray, more: IntArray) -> tuple[IntArray, IntArray]:
    """Counts by sorted key, with those of other sorted keys added."""
    if not len(new):
        return keys, counts
    places = np.searchsorted(keys, new)
    known = np.zeros(len(new), dtype=np.bool_)
    known[places < len(keys)] = keys[places[places < len(keys)]] == new[places < len(keys)]
    counts = counts.copy()
    counts[places[known]] += more[known]
    fresh = ~known
    return np.insert(keys, places[fresh], new[fresh]), np.insert(counts, places[fresh], more[fresh])


def _spread(parts: Sequence[npt.NDArray[Number]], owner: IntArray) -> tuple[IntArray, npt.NDArray[Number]]:
    """Each row's copy of its owner's part, one after the other: row of each entry, and the entries."""
    sizes = np.array([len(p) for p in parts], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    counts = sizes[owner]
    rows = np.repeat(np.arange(len(owner), dtype=np.int64), counts)
    inside = np.arange(len(rows), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, np.concatenate(parts)[inside + starts[owner][rows]]


def to_device(array: npt.NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """The array where `like` is."""
    return torch.from_numpy(array).to(like.device)
