"""Prompt lookup: find where the last tokens occurred before, and propose what followed there.

A *match* of length n is an earlier end position p such that the n tokens before p equal the last n tokens of the
sequence; tokens[p:] is its continuation. The longest match wins, n between min_match and max_match. Rules differ in
which match of that length they take, and in where they cut:

- `recent` (default): the latest occurrence. Where its continuation runs into the end of the sequence it goes on with
  itself, so that a loop of any period is drafted whole.
- `vllm`: the earliest occurrence, cut at the end of the sequence, as vLLM's `ngram` method.
- `hf`: the earliest occurrence, any n down to 1, cut before the first end-of-sequence token, as transformers' prompt
  lookup.

A plan with branching makes a tree: continuations of further matches, best first, merged into one prefix tree.

The confidence of a draft from a match of length n is n / (n + 1), whose log-odds are log n: no probability, but a
measure from which a policy learns one, since longer matches are right more often.

The defaults come from `benchmarks/ngram_rules.py`. A model that copies goes on from its own latest copy more often than
from the original, so the latest match is right more often; and a draft no longer than its match costs copied text
little, while other text, where most matches are one chance token, stops paying for long drafts.

S tokens of the sequence, the root included.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import (
    ALONE,
    CheckpointReader,
    Controller,
    DrafterMethod,
    DrafterOptions,
    DrafterTraits,
    Mesh,
    MethodFacts,
    SequenceView,
    TargetInfo,
    TokenDrafter,
)
from draftwing.drafters.tree import merged

TRIED_MATCHES = 16  # a tree looks at this many matches at most: more cost time and bring nothing new on real text


class NgramOptions(DrafterOptions):
    """Options of method `ngram`; lengths in tokens.

    draft_per_match: a draft is at most this many times as long as its match, at least one token; None: as long as the
    plan allows, as the published rules do.
    """

    rule: Literal["recent", "vllm", "hf"] = "recent"
    max_match: int = Field(default=8, ge=1, le=64)
    min_match: int = Field(default=1, ge=1, le=64)
    draft_per_match: float | None = Field(
        default_factory=lambda data: 1.0 if data.get("rule") == "recent" else None, gt=0, le=64
    )

    @field_validator("min_match")
    @classmethod
    def _possible(cls, least: int, info: ValidationInfo) -> int:
        if least > (most := info.data.get("max_match", least)):
            raise ValueError(f", more than max_match; expected 1 to {most}")
        if least > 1 and info.data.get("rule") == "hf":
            raise ValueError(", but rule hf lets matches of one token count; expected 1, or rule recent or vllm")
        return least

    @field_validator("draft_per_match")
    @classmethod
    def _published(cls, factor: float | None, info: ValidationInfo) -> float | None:
        if factor is not None and info.data.get("rule") in ("vllm", "hf"):
            raise ValueError(f", but rule {info.data['rule']} knows no such bound; expected null, or rule recent")
        return factor

    def draft_length(self, match: int, depth: int) -> int:
        """Tokens worth drafting after a match of this length: a short one is often chance."""
        return depth if self.draft_per_match is None else min(depth, max(1, int(match * self.draft_per_match)))


def find_matches(tokens: IntArray, max_match: int) -> list[IntArray]:
    """Entry n-1 holds the ends of all matches of length n, ascending; as many entries as the longest match is long."""
    size = len(tokens)
    if size < 2:
        return []
    ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1
    found: list[IntArray] = []
    while len(ends):
        found.append(ends)
        length = len(found)
        if length == max_match:
            break
        if ends[0] <= length:  # this one begins at the first token
            ends = ends[1:]
        ends = ends[tokens[ends - length - 1] == tokens[size - length - 1]]
    return found


def _following(tokens: IntArray, end: int, count: int, repeat: bool) -> list[int]:
    """At most `count` tokens that followed `end`; with repeat the copy runs on into itself and is never shorter."""
    following: list[int] = tokens[end : end + count].tolist()
    return (following * count)[:count] if repeat else following


def lookup_vllm(
    tokens: Seq[int] | IntArray, min_ngram: int, max_ngram: int, num_tokens: int, max_model_len: int
) -> list[int]:
    """The draft of vLLM's `ngram` method (0.33.0): at most num_tokens, and no longer than the context has room."""
    array = np.asarray(tokens, dtype=np.int64)
    found = find_matches(array, max_ngram)
    count = min(num_tokens, max_model_len - len(array))
    if count <= 0 or len(found) < min_ngram:
        return []
    return _following(array, int(found[-1][0]), count, repeat=False)


def lookup_hf(
    tokens: Seq[int] | IntArray,
    max_ngram: int,
    num_tokens: int,
    max_length: int,
    eos_token_id: int | Seq[int] | None = None,
) -> list[int]:
    """The draft of transformers' prompt lookup (5.24.0).

    max_length counts prompt and output; it bounds the place that is copied from. Nothing is proposed one token before
    it is reached, because the target adds a token of its own.
    """
    array = np.asarray(tokens, dtype=np.int64)
    if max_length == len(array) + 1:
        return []
    stops = [] if eos_token_id is None else np.atleast_1d(eos_token_id).tolist()
    for ends in reversed(find_matches(array, max_ngram)):
        start = int(ends[0])
        if start < max_length:
            draft = _following(array, start, min(num_tokens, max_length - start), repeat=False)
            return draft[: min((draft.index(stop) for stop in stops if stop in draft), default=len(draft))]
    return []


def _by_preference(found: list[IntArray], min_match: int, latest_first: bool) -> Iterator[tuple[int, int]]:
    """(end, length) of matches, longer first, then in the rule's order; TRIED_MATCHES at most."""
    seen: set[int] = set()
    for length in range(len(found), min_match - 1, -1):
        ends = found[length - 1][::-1] if latest_first else found[length - 1]
        for end in ends[: TRIED_MATCHES + len(seen)].tolist():
            if len(seen) == TRIED_MATCHES:
                return
            if end not in seen:
                seen.add(end)
                yield end, length


class _Context:
    """A sequence's tokens as an array that grows: converting the whole list at every step would cost O(S)."""

    def __init__(self) -> None:
        self._buffer: IntArray = np.empty(256, dtype=np.int64)
        self._size = 0

    def follow(self, tokens: Seq[int]) -> IntArray:
        size = len(tokens)
        if size > len(self._buffer):
            grown = np.empty(2 * size, dtype=np.int64)
            grown[: self._size] = self._buffer[: self._size]
            self._buffer = grown
        if size > self._size:
            self._buffer[self._size : size] = tokens[self._size :]
            self._size = size
        return self._buffer[:size]


class NgramDrafter(TokenDrafter):
    traits = DrafterTraits(trees=True, confidence=True)

    def __init__(self, options: NgramOptions | None = None) -> None:
        self.options = options or NgramOptions()
        self._target = TargetInfo(vocab_size=0, context_length=0)
        self._contexts: dict[str, _Context] = {}

    def bind(self, target: TargetInfo, checkpoint: CheckpointReader | None = None, mesh: Mesh = ALONE) -> None:
        self._target = target

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        drafts: list[DraftTree] = []
        for index, (sequence, shape) in enumerate(zip(sequences, plan.shapes, strict=True)):
            if shape.depth == 0 or shape.nodes == 0:
                drafts.append(DraftTree.empty())
                continue
            context = self._contexts.setdefault(sequence.id, _Context()).follow(sequence.tokens)
            if base is not None:
                context = np.concatenate((context, np.asarray(base[index], dtype=np.int64)))
            if max(shape.branching) == 1:
                drafts.append(self._chain(context, min(shape.depth, shape.nodes), sequence))
            else:
                drafts.append(self._tree(context, shape))
        return drafts

    def release(self, sequence: SequenceView) -> None:
        self._contexts.pop(sequence.id, None)

    def _chain(self, context: IntArray, depth: int, sequence: SequenceView) -> DraftTree:
        options = self.options
        found = find_matches(context, options.max_match)
        if options.rule == "vllm":
            draft = lookup_vllm(context, options.min_match, options.max_match, depth, self._target.context_length)
        elif options.rule == "hf":
            most = min(sequence.prompt_len + sequence.params.max_tokens, self._target.context_length)
            draft = lookup_hf(context, options.max_match, depth, most, self._target.eos_token_ids)
        elif len(found) < options.min_match:
            draft = []
        else:
            draft = _following(context, int(found[-1][-1]), options.draft_length(len(found), depth), repeat=True)
        return _sure(DraftTree.chain(draft), [len(found)] * len(draft))

    def _tree(self, context: IntArray, shape: DraftShape) -> DraftTree:
        options = self.options
        recent = options.rule == "recent"
        matches = list(_by_preference(find_matches(context, options.max_match), options.min_match, latest_first=recent))
        origins: list[int] = []
        chains = (_following(context, end, options.draft_length(n, shape.depth), repeat=recent) for end, n in matches)
        tree = merged(chains, shape, origins)
        return _sure(tree, [matches[i][1] for i in origins])


def _sure(tree: DraftTree, lengths: list[int]) -> DraftTree:
    """The same tree with confidences by the length of the match behind each node."""
    match = np.array(lengths, dtype=np.float32)
    return DraftTree(tree.tokens, tree.parents, match / (match + 1)) if lengths else tree


METHOD = DrafterMethod(
    NgramOptions,
    NgramDrafter,
    MethodFacts("prompt lookup: what followed the last tokens before", trees=True, confidence=True),
)
