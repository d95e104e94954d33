"""Suffix decoding: propose what most often followed the longest stretch of tokens seen before.

Unlike prompt lookup it counts: a draft goes as far as its estimated probability allows, and answers to earlier requests
of the same API key help too. It pays where requests resemble each other (agents, code edits, structured output).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
from pydantic import Field

from draftwing.core import DraftShape, DraftTree, StepPlan
from draftwing.drafters.base import (
    Accepted,
    Controller,
    DrafterMethod,
    DrafterOptions,
    DrafterTraits,
    FeatureRows,
    MethodFacts,
    SequenceView,
    TokenDrafter,
)
from draftwing.drafters.suffix_cache import Limits, Speculation, SuffixCache


class SuffixOptions(DrafterOptions):
    """Options of method `suffix`; the defaults are those of vLLM's method of this name.

    max_depth: tokens of match and draft together. A match of m tokens allows m * factor + offset drafted ones.
    min_probability: where a draft ends. max_requests: earlier answers kept over all API keys, 0: none, -1: no bound.
    """

    max_depth: int = Field(default=24, ge=2, le=256)
    factor: float = Field(default=1.0, ge=0, le=64)
    offset: float = Field(default=0.0, ge=-64, le=64)
    min_probability: float = Field(default=0.1, ge=0, le=1)
    max_requests: int = Field(default=10000, ge=-1)


class SuffixDrafter(TokenDrafter):
    traits = DrafterTraits(trees=True, confidence=True, stateful_across_requests=True)

    def __init__(self, options: SuffixOptions | None = None) -> None:
        options = options or SuffixOptions()
        self._depth = options.max_depth
        self._cache = SuffixCache(options.max_depth, options.max_requests)
        self._limits = Limits(0, options.factor, options.offset, options.min_probability)
        self._followed: dict[str, int] = {}  # tokens of each running request that the cache holds

    def prefill(self, sequences: Seq[SequenceView], features: Seq[FeatureRows] | None = None) -> None:
        self._follow(sequences)

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        self._follow(sequences)

    def release(self, sequence: SequenceView) -> None:
        if self._followed.pop(sequence.id, None) is not None:
            self._cache.stop(sequence.id)

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        self._follow(sequences)
        more = base if base is not None else [()] * len(sequences)
        return [
            self._draft(sequence, shape, ahead)
            for sequence, shape, ahead in zip(sequences, plan.shapes, more, strict=True)
        ]

    def _follow(self, sequences: Seq[SequenceView]) -> None:
        for sequence in sequences:
            tokens, known = sequence.tokens, self._followed.get(sequence.id)
            if known is None:
                known = sequence.prompt_len
                self._cache.start(sequence.id, tokens[:known], sequence.salt)
            self._cache.extend(sequence.id, tokens[known:])
            self._followed[sequence.id] = len(tokens)

    def _draft(self, sequence: SequenceView, shape: DraftShape, ahead: Seq[int]) -> DraftTree:
        if shape.depth == 0 or shape.nodes == 0:
            return DraftTree.empty()
        chain = max(shape.branching) == 1
        nodes = min(shape.depth, shape.nodes) if chain else shape.nodes
        limits = replace(self._limits, tokens=nodes, branching=(*shape.branching, 0))
        context = [*sequence.tokens[-self._depth :], *ahead]
        self._cache.extend(sequence.id, ahead)
        try:
            return _tree(self._cache.speculate(sequence.id, context, limits))
        finally:
            self._cache.undo(sequence.id, len(ahead))


def _tree(draft: Speculation) -> DraftTree:
    if not draft.tokens:
        return DraftTree.empty()
    parents = np.array(draft.parents, dtype=np.int64)
    shares = np.array(draft.probabilities, dtype=np.float32)
    given = np.where(parents >= 0, shares[parents], 1).astype(np.float32)
    return DraftTree(np.array(draft.tokens, dtype=np.int64), parents, shares / given)


METHOD = DrafterMethod(
    SuffixOptions,
    SuffixDrafter,
    MethodFacts(
        "suffix decoding: what most often followed, in this request and earlier answers",
        trees=True,
        confidence=True,
        stateful_across_requests=True,
    ),
)
