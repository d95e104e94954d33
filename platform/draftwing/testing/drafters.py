"""A drafter that is right as often as it is told to be, and a sequence to show to drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters.base import (
    ALONE,
    CheckpointReader,
    Controller,
    DrafterTraits,
    Mesh,
    SequenceView,
    TargetInfo,
    TokenDrafter,
)

Plain = Mapping[tuple[int, ...], Seq[int]] | Callable[[SequenceView], Seq[int]]


@dataclass(slots=True)
class View:
    """A sequence as drafters see it, made by hand."""

    id: str
    tokens: list[int]
    prompt_len: int
    params: SamplingParams = field(default_factory=SamplingParams)
    choice: int = 0
    salt: str = ""
    table: list[int] = field(default_factory=list)
    chain: list[bytes] = field(default_factory=list)


class OracleDrafter(TokenDrafter):
    """Knows plain decoding's output, and proposes it with a set accuracy.

    Every node on the right path has the right next token among its children with probability `accuracy`, at a hashed
    place among them; all others are wrong. Both depend on seed, prompt, choice and position alone: two runs with other
    batches, chunks or plans of the same width see the same drafts. Each level is filled before the next, up to the
    node budget.

    plain: the output of a prompt, or a function of the sequence where the prompt alone doesn't decide it.
    """

    traits = DrafterTraits(trees=True)

    def __init__(self, plain: Plain, accuracy: float = 0.7, seed: int = 0, vocab_size: int = 0) -> None:
        self._plain = plain
        self._accuracy = accuracy
        self._seed = seed
        self._vocab_size = vocab_size

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        self._vocab_size = target.vocab_size

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        bases = base if base is not None else [()] * len(sequences)
        return [
            self._draft(sequence, [*sequence.tokens, *more], shape)
            for sequence, more, shape in zip(sequences, bases, plan.shapes, strict=True)
        ]

    def _draft(self, sequence: SequenceView, tokens: list[int], shape: DraftShape) -> DraftTree:
        prompt = tuple(tokens[: sequence.prompt_len])
        output = self._plain(sequence) if callable(self._plain) else self._plain[prompt]
        done = len(tokens) - sequence.prompt_len
        right = output[done:] if list(output[:done]) == tokens[sequence.prompt_len :] else []
        drafted: list[int] = []
        parents: list[int] = []
        level: list[int] = [-1]  # nodes of the level above
        on_path: int | None = -1  # which of them is right; None once the path is lost
        for depth, width in enumerate(shape.branching):
            draw = self._draw(prompt, sequence.choice, len(tokens) + depth)
            hit = depth < len(right) and draw[0] < self._accuracy
            next_level: list[int] = []
            next_on_path: int | None = None
            for parent in level:
                truth = right[depth] if parent == on_path and depth < len(right) else None
                for token in self._siblings(truth, hit, width, draw[1] + parent):
                    if len(drafted) == shape.nodes:
                        break
                    if token == truth:
                        next_on_path = len(drafted)
                    next_level.append(len(drafted))
                    drafted.append(token)
                    parents.append(parent)
            level, on_path = next_level, next_on_path
        return DraftTree(np.array(drafted, dtype=np.int64), np.array(parents, dtype=np.int64))

    def _siblings(self, truth: int | None, hit: bool, width: int, draw: int) -> list[int]:
        """`width` different tokens; the truth among them if this is a hit, else surely not."""
        first = draw if truth is None else truth
        wrong = [(first + 1 + (draw + i) % (self._vocab_size - 1)) % self._vocab_size for i in range(width)]
        if truth is not None and hit:
            wrong[draw % width] = truth
        return wrong

    def _draw(self, prompt: tuple[int, ...], choice: int, position: int) -> tuple[float, int]:
        """A uniform number and an integer."""
        digest = blake2b(repr((self._seed, prompt, choice, position)).encode(), digest_size=16).digest()
        return int.from_bytes(digest[:8], "big") / 2**64, int.from_bytes(digest[8:], "big")
