"""A request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwing.core import AcceptanceSummary, Request, SamplingParams
from draftwing.engine.processors import SamplerState
from draftwing.engine.text import TextStream


@dataclass(slots=True, eq=False)
class Tracked:
    """A request under way as its drafter sees it (`SequenceView`), in the engine and where a drafter runs elsewhere.

    tokens: prompt and output. chain: digests of its first full blocks (`prefix_cache`), as far as anyone asked.
    """

    request: Request
    tokens: list[int]
    table: list[int] = field(default_factory=list, kw_only=True)
    chain: list[bytes] = field(default_factory=list, kw_only=True)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def choice(self) -> int:
        return self.request.choice

    @property
    def salt(self) -> str:
        return self.request.salt

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_ids)


@dataclass(slots=True, eq=False)
class Sequence(Tracked):
    """kv_len of its tokens have their keys and values in the cache, in the blocks of `table`.

    With one token pending (the root) the sequence decodes, with more it is prefilled. arrival orders fairness.
    cached_tokens: of the prompt, found in the cache when it first ran; None before. lane: see `Limits`. undrafted:
    tokens run or committed since it was last drafted for.
    """

    arrival: int
    sampler: SamplerState
    text: TextStream
    kv_len: int = 0
    cached_tokens: int | None = None
    lane: int = 0
    undrafted: int = 0
    summary: AcceptanceSummary = field(default_factory=AcceptanceSummary)

    @property
    def output_len(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.kv_len

    @property
    def tokens_left(self) -> int:
        return self.params.max_tokens - self.output_len
