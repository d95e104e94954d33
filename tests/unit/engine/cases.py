"""What the sampling tests draw from: parameters of every kind, logits with ties and masks, verifies of a few rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from draftwing.core import SamplingParams
from draftwing.engine.processors import SampleRows, SamplerState

WIDTHS = [2, 5, 64, 500, 4096, 4097, 6144]


@st.composite
def sampling_params(draw: st.DrawFn, width: int) -> SamplingParams:
    """Every parameter off in about half of the draws, at an extreme in some."""

    return SamplingParams(
        temperature=draw(st.sampled_from([1.0, 1.0, 0.7, 1.5, 1e-4, 3.0, 0.0])),
        top_k=draw(st.sampled_from([0, 0, 0, 1, 3, 50, width + 5])),
        top_p=draw(st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.3, 1e-9, 0.99999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.8])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.4, -1.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, -2.0])),
        logit_bias=draw(
            st.dictionaries(st.integers(0, width - 1), st.sampled_from([-100.0, 100.0, 1.5, -2.0]), max_size=2)
        ),
        min_tokens=draw(st.sampled_from([0, 0, 4])),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a verify: what it has seen, and a chain of drafts; each draft and the root is a row."""

    params: SamplingParams
    choice: int
    prompt: list[int]
    output: list[int]
    drafts: list[int]
    end_ids: list[int]

    def state(self) -> SamplerState:
        state = SamplerState.create(self.params, self.prompt, choice=self.choice, end_ids=self.end_ids)
        half = len(self.output) // 2
        state.commit(self.output[:half])
        state.commit(self.output[half:])
        return state

    def histories(self) -> list[list[int]]:
        """The output that each row sees."""
        return [self.output + self.drafts[:n] for n in range(len(self.drafts) + 1)]


@st.composite
def sequences(draw: st.DrawFn, width: int) -> Sequence:
    tokens = st.integers(0, width - 1)
    return Sequence(
        params=draw(sampling_params(width)),
        choice=draw(st.integers(0, 3)),
        prompt=draw(st.lists(tokens, min_size=1, max_size=6)),
        output=draw(st.lists(tokens, max_size=5)),
        drafts=draw(st.lists(tokens, max_size=3)),
        end_ids=draw(st.lists(tokens, max_size=2)),
    )


@st.composite
def logits_of(draw: st.DrawFn, rows: int, width: int) -> torch.Tensor:
    """Seeded, so that failing examples stay small: a scale, sometimes ties, sometimes a mask."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random.normal(size=(rows, width)) * draw(st.sampled_from([0.05, 1.0, 3.0, 8.0])) - 5
    if draw(st.booleans()):
        values = values.round()
    if draw(st.integers(0, 3)) == 0:
        values[random.random((rows, width)) < 0.5] = -np.inf
    return torch.from_numpy(values.astype(np.float32))


def verify_rows(batch: list[Sequence]) -> SampleRows:
    """The rows of a verify over these sequences, in order."""
    owner: list[int] = []
    positions: list[int] = []
    path_rows: list[int] = []
    path_tokens: list[int] = []
    for index, sequence in enumerate(batch):
        start = len(sequence.prompt) + len(sequence.output)
        for depth in range(len(sequence.drafts) + 1):
            path_rows += [len(owner)] * depth
            path_tokens += sequence.drafts[:depth]
            owner.append(index)
            positions.append(start + depth)
    arrays = [np.array(a, dtype=np.int64) for a in (owner, positions, path_rows, path_tokens)]
    return SampleRows([s.state() for s in batch], *arrays)


def one_row(params: SamplingParams, position: int = 1) -> SampleRows:
    """One row of a sequence without history."""
    return SampleRows([SamplerState.create(params, [0])], np.zeros(1, dtype=np.int64), np.array([position]))
