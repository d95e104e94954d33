"""A sequence as a drafter's sampler sees it: its parameters, and the output that penalties count."""

from __future__ import annotations

from dataclasses import dataclass

from draftwing.drafters.base import SequenceView
from draftwing.engine.processors import SamplerState


@dataclass(slots=True)
class Sampled:
    """told: output tokens that the state knows of."""

    state: SamplerState
    told: int = 0

    @classmethod
    def of(cls, sequence: SequenceView, eos_token_ids: tuple[int, ...]) -> Sampled:
        ends = sequence.params.stop_token_ids
        if not sequence.params.ignore_eos:
            ends = (*eos_token_ids, *ends)
        prompt = sequence.tokens[: sequence.prompt_len]
        return cls(SamplerState.create(sequence.params, prompt, choice=sequence.choice, end_ids=ends))

    def follow(self, sequence: SequenceView) -> SamplerState:
        output = sequence.tokens[sequence.prompt_len + self.told :]
        self.state.commit(output)
        self.told += len(output)
        return self.state
