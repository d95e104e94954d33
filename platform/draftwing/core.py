"""The vocabulary of Draftwing as types: what parts hand to each other. No torch here.

A *request* is one choice of one prompt. A *sequence* is a request inside the engine. Each step the policy makes a
`StepPlan`, a drafter turns it into one `DraftTree` a sequence, one verify commits tokens, `Emission`s go out, and a
`StepRecord` says what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen (rule R1). Ranges are checked where requests come in, `draftwing.limits`.

    max_tokens: new tokens at most. temperature 0: greedy. top_k 0, top_p 1, min_p 0: off. Repetition penalty sees
    prompt and output, frequency and presence see output only. seed: 64-bit, unsigned. logprobs: alternatives per
    token, None: none asked for. speculate False: this request is decoded plainly (its output is the same).
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    speculate: bool = True

    @property
    def plain_greedy(self) -> bool:
        """The next token is the argmax of the raw logits."""
        return (
            self.temperature == 0
            and self.repetition_penalty == 1
            and self.frequency_penalty == 0
            and self.presence_penalty == 0
            and not self.logit_bias
            and self.min_tokens == 0
        )


@dataclass(slots=True)
class Request:
    """One choice of one prompt, as it crosses the channel.

    id is unique among live requests. choice: 0..n-1 inside one prompt (enters the noise key). generated_ids: output
    committed before, when a request is resumed elsewhere; positions, limits and usage still count from prompt_ids.
    emitted_chars: characters of text already sent to the client. salt: state that crosses requests (caches, suffix
    trees) is shared only among equal salts (rule R5).
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    choice: int = 0
    generated_ids: list[int] = field(default_factory=list)
    emitted_chars: int = 0
    salt: str = ""


@dataclass(frozen=True, slots=True)
class DraftSources:
    """What the children of a draft's rows were drawn from, without replacement; only `sampling: rejection` needs it.

    ids [R, T] distinct in a row; weights [R, T] add up to 1 in a row. Row 0 is the root, row 1 + i node i; rows from R
    on have no children.
    """

    ids: IntArray
    weights: FloatArray


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A draft after the root, as nodes in an order where parents precede children.

    tokens [n]; parents [n]: index of the parent node, -1 for children of the root; confidences [n] or None: how
    sure the drafter is of each node given its parent, 0 to 1 (`drafters.children`). sources: None where the nodes were
    chosen, not drawn.
    """

    tokens: IntArray
    parents: IntArray
    confidences: FloatArray | None = None
    sources: DraftSources | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def empty() -> DraftTree:
        return DraftTree(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    @staticmethod
    def chain(tokens: list[int] | IntArray) -> DraftTree:
        array = np.asarray(tokens, dtype=np.int64)
        return DraftTree(array, np.arange(-1, len(array) - 1, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class DraftShape:
    """What one sequence may draft in a step.

    branching[d]: most children of a node at depth d (the root is depth 0); its length is the draft length k.
    nodes: the node budget; a drafter never returns more. paths: the very tree to draft, each node as the ranks of
    itself and of those above it, level by level ((0,), (1,), (0, 0)); () where any tree within the rest will do.
    Drafters that choose nodes by confidence keep to the rest alone.
    """

    branching: tuple[int, ...] = ()
    nodes: int = 0
    paths: tuple[tuple[int, ...], ...] = ()

    @property
    def depth(self) -> int:
        return len(self.branching)

    def cut(self, depth: int, nodes: int) -> DraftShape:
        """The same shape within fewer levels and nodes (tokens left, cache blocks)."""
        branching = self.branching[: max(depth, 0)]
        most = min(self.nodes, max(nodes, 0)) if branching else 0
        return DraftShape(branching, most, tuple(path for path in self.paths if len(path) <= depth)[:most])


NO_DRAFT = DraftShape()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The policy's decision for one step: who drafts, and one shape per decoding sequence, in batch order."""

    drafter: str
    shapes: tuple[DraftShape, ...]
    reason: str = ""


@dataclass(slots=True)
class TokenLogprob:
    """Raw model log-probabilities at one returned token: its own, and the best `alternatives` (id, logprob)."""

    token: int
    logprob: float
    alternatives: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class AcceptanceSummary:
    """A request's speculation in numbers: per verify that carried a draft, nodes drafted and accepted.

    Depths, not nodes, bound accepted; max_depth is the largest draft length used.
    """

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    max_depth: int = 0
    verifies: int = 0  # all decode steps, with or without a draft


@dataclass(slots=True)
class Emission:
    """What one step gave one request. token_ids: committed this step. text: what may be shown now.

    text lags behind token_ids where it may be the start of a stop string or half a character. On the last emission
    finish_reason is set, with stop_reason the stop string or token id that ended it, and the summary. cached_tokens:
    tokens of the prompt that came from the prefix cache, the same in every emission.
    """

    request_id: str
    token_ids: list[int]
    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    summary: AcceptanceSummary | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Telemetry of one step; times in seconds of wall clock.

    rows: rows forwarded, of which prefill_rows are prompt. sequences: decoding sequences. drafted: draft nodes
    verified. accepted: draft tokens accepted. committed: tokens that became output. branched: accepted nodes that were
    not the first child. bad_drafts: drafts refused (wrong shape, id out of range, raised). context: cached tokens read.
    """

    step: int
    sequences: int
    rows: int
    prefill_rows: int
    drafted: int
    accepted: int
    committed: int
    branched: int
    bad_drafts: int
    context: int
    waiting: int
    schedule_s: float
    draft_s: float
    forward_s: float
    sample_s: float
    commit_s: float
    drafter: str
    reason: str

    @property
    def total_s(self) -> float:
        return self.schedule_s + self.draft_s + self.forward_s + self.sample_s + self.commit_s


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started, all summable over replicas. Times in seconds.

    drafts: verifies that carried a draft. accepted_per_depth[d]: times the draft token at depth d + 1 was accepted.
    prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and found there, once a request.
    """

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_depth: list[int] = field(default_factory=list)
    branched_tokens: int = 0
    bad_drafts: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    schedule_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """What a policy does now and why, for people to read.

    setting: the last step's plan in words. ratio: tokens over those that plain decoding would have made in the same
    time, half_width: half of its 95 % interval; None while too few steps tell. predicted: the ratio that the cost and
    acceptance models expected. cost_error: median relative error of predicted step times. profile: digest of the
    profile in use, "" if none. schedule: sequences, the draft length they would get, and the ratio expected of it.
    paused: an operator holds speculation off, and the reason says since when.
    """

    mode: str
    drafter: str
    setting: str
    reason: str
    tripped: bool = False
    paused: bool = False
    ratio: float | None = None
    half_width: float | None = None
    predicted: float | None = None
    cost_error: float | None = None
    profile: str = ""
    schedule: list[tuple[int, int, float]] = field(default_factory=list)
