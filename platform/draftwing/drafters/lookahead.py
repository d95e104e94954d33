"""Lookahead decoding: n-grams that the target itself made while it verified earlier drafts.

A verify gives the target's own token after *every* node of a draft, also after those that were refused. Two things are
made of them (lookahead decoding, Fu et al., 2024; no checkpoint, and lossless as any draft):

- a *window* of W columns of tokens, one per future position. A column's first tokens form the trunk of the draft, a
  chain from the root; the rest of column i branches off trunk node i. After the verify each column gains the target's
  choice at its end, and once it has N - 1 tokens it loses its first: a Jacobi iteration.
- a *pool* of n-grams by first token: the last N - 1 tokens before a choice, and the choice. Those that begin with the
  root are drafted first.

With a plan of chains there is one of both: the pool's latest n-grams, one after another, or else the trunk alone, which
is plain Jacobi decoding. A column nobody knows yet starts with a token of the prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

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
from draftwing.drafters.tree import merged

POOL_TOKENS = 4096  # first tokens that a sequence's pool knows; the least recently seen goes
SPREAD = 2654435761  # odd and large: neighbouring positions take distant tokens of the prompt


class LookaheadOptions(DrafterOptions):
    """ngram: tokens of an n-gram, the first one included. window: columns. guesses: n-grams kept per first token."""

    ngram: int = Field(default=5, ge=2, le=32)
    window: int = Field(default=7, ge=1, le=64)
    guesses: int = Field(default=7, ge=1, le=64)


@dataclass(slots=True)
class _State:
    """known: tokens whose n-grams are in the pool. columns: by position of the first token. draft: what was asked.

    wide: with a plan of trees, where the columns' later tokens are drafted too.
    """

    known: int = 0
    pool: OrderedDict[int, list[tuple[int, ...]]] = field(default_factory=OrderedDict)
    columns: dict[int, list[int]] = field(default_factory=dict)
    draft: DraftTree = field(default_factory=DraftTree.empty)
    wide: bool = False
    drafted_at: int = 0  # length of the sequence then


class LookaheadDrafter(TokenDrafter):
    traits = DrafterTraits(trees=True)

    def __init__(self, options: LookaheadOptions | None = None) -> None:
        self.options = options or LookaheadOptions()
        self._states: dict[str, _State] = {}

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        drafts = []
        for index, (sequence, shape) in enumerate(zip(sequences, plan.shapes, strict=True)):
            state = self._follow(sequence)
            tokens = sequence.tokens
            ahead: dict[int, list[tuple[int, ...]]] = {}
            if base is not None:
                tokens = [*tokens, *base[index]]
                known = OrderedDict((first, list(grams)) for first, grams in state.pool.items())
                self._learn_text(known, tokens, state.known)
                ahead = known
            draft = self._draft(tokens, sequence.prompt_len, state, ahead or state.pool, shape)
            drafts.append(draft)
            if base is None:
                state.draft, state.drafted_at = draft, len(tokens)
                state.wide = max(shape.branching, default=1) > 1
        return drafts

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        for sequence, verified in zip(sequences, accepted, strict=True):
            state = self._follow(sequence)
            choices, draft = verified.choices, state.draft
            root = len(sequence.tokens) - verified.count - 1
            if choices is not None and len(choices) == len(draft) + 1 and state.drafted_at == root + 1:
                self._learn_choices(
                    state, sequence.tokens[max(root + 2 - self.options.ngram, 0) : root + 1], choices.tolist()
                )
                self._iterate(state, root, choices.tolist())
            state.draft = DraftTree.empty()
            for gone in [start for start in state.columns if start < len(sequence.tokens)]:
                del state.columns[gone]

    def release(self, sequence: SequenceView) -> None:
        self._states.pop(sequence.id, None)

    def _follow(self, sequence: SequenceView) -> _State:
        state = self._states.setdefault(sequence.id, _State())
        self._learn_text(state.pool, sequence.tokens, state.known)
        state.known = len(sequence.tokens)
        return state

    def _learn_text(self, pool: OrderedDict[int, list[tuple[int, ...]]], tokens: Seq[int], known: int) -> None:
        size = self.options.ngram
        for end in range(max(known, size - 1), len(tokens)):
            self._learn(pool, tokens[end - size + 1 : end + 1])

    def _learn(self, pool: OrderedDict[int, list[tuple[int, ...]]], gram: Seq[int]) -> None:
        """The newest stands last; a gram met again becomes the newest."""
        first, rest = gram[0], tuple(gram[1:])
        grams = pool.setdefault(first, [])
        if rest in grams:
            grams.remove(rest)
        grams.append(rest)
        del grams[: -self.options.guesses]
        pool.move_to_end(first)
        if len(pool) > POOL_TOKENS:
            pool.popitem(last=False)

    def _learn_choices(self, state: _State, before: Seq[int], choices: list[int]) -> None:
        """Every node's path and the choice after it. before: the tokens up to the root."""
        paths: list[list[int]] = []
        for token, parent, choice in zip(
            state.draft.tokens.tolist(), state.draft.parents.tolist(), choices[1:], strict=True
        ):
            path = [*(paths[parent] if parent >= 0 else before), token][1 - self.options.ngram :]
            paths.append(path)
            if len(path) == self.options.ngram - 1 and choice >= 0:
                self._learn(state.pool, [*path, choice])

    def _iterate(self, state: _State, root: int, choices: list[int]) -> None:
        """One step of every column that was verified: its first token goes, the target's choice at its end comes."""
        children = {
            (parent, token): node
            for node, (parent, token) in enumerate(
                zip(state.draft.parents.tolist(), state.draft.tokens.tolist(), strict=True)
            )
        }
        columns: dict[int, list[int]] = {}
        node: int | None = -1
        for start in range(root + 1, root + 1 + self.options.window):
            column = state.columns.get(start)
            node = None if column is None else children.get((node, column[0])) if node is not None else None
            if column is None or node is None:
                break
            end, rest = node, []
            for token in column[1:]:
                if (below := children.get((end, token))) is None:
                    break
                end = below
                rest.append(token)
            if choices[end + 1] < 0:
                break
            if state.wide and len(rest) + 1 == len(column) < self.options.ngram - 1:
                columns.setdefault(start, [*column, choices[end + 1]])  # still too short to move on
            else:
                columns[start + 1] = [*rest, choices[end + 1]]
        state.columns = columns

    def _draft(
        self,
        tokens: Seq[int],
        prompt_len: int,
        state: _State,
        pool: OrderedDict[int, list[tuple[int, ...]]] | dict[int, list[tuple[int, ...]]],
        shape: DraftShape,
    ) -> DraftTree:
        if shape.depth == 0 or shape.nodes == 0:
            return DraftTree.empty()
        window = range(len(tokens), len(tokens) + min(self.options.window, shape.depth))
        for start in window:
            state.columns.setdefault(start, [tokens[start * SPREAD % prompt_len]])
        columns = [state.columns[start] for start in window]
        trunk = [column[0] for column in columns]
        known = pool.get(tokens[-1], [])[::-1]

        def chains() -> Iterator[Seq[int]]:
            if max(shape.branching) == 1 and not known:
                yield trunk
            for gram in known[: max(shape.branching[0] - 1, 1)]:
                yield _continued(gram, pool, shape.depth)
            yield trunk
            for i, column in enumerate(columns):
                yield [*trunk[: i + 1], *column[1:]]

        return merged(chains(), shape)


def _continued(
    gram: Seq[int], pool: OrderedDict[int, list[tuple[int, ...]]] | dict[int, list[tuple[int, ...]]], depth: int
) -> list[int]:
    """An n-gram, and after its last token the newest that begins with that one."""
    chain = list(gram)
    while len(chain) < depth and (more := pool.get(chain[-1])):
        chain += more[-1]
    return chain


METHOD = DrafterMethod(
    LookaheadOptions,
    LookaheadDrafter,
    MethodFacts("n-grams the target made while verifying, and a Jacobi window", trees=True),
)
