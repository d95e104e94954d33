"""What crosses the channel between a rank and its clients, as types. How they become bytes: `wire.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from draftwing.core import Emission, EngineCounters, PolicyStatus, Request

RankState = Literal["loading", "ready", "draining"]
LostCause = Literal["shutdown", "step_failed", "slow_reader", "rank_lost"]
RefusedKind = Literal["request", "overloaded", "internal"]


@dataclass(frozen=True, slots=True)
class Submit:
    """Client to rank: generate this."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Client to rank: nobody waits for this request any more. Unknown ids are over already."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Client to rank: answer with a Pong of the same nonce."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Client to rank: take no new requests, finish those you have."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Client to rank: stop now; requests in flight are lost (their clients are told)."""


@dataclass(frozen=True, slots=True)
class Events:
    """Rank to client: everything one step gave this client's requests."""

    emissions: list[Emission]


@dataclass(frozen=True, slots=True)
class Refused:
    """Rank to client: the request was not taken. param and code as in RequestError; retry_after_s when overloaded."""

    request_id: str
    kind: RefusedKind
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int = 1


@dataclass(frozen=True, slots=True)
class Lost:
    """Rank to client: all your requests here are over, unfinished; the same work may be done by another replica."""

    cause: LostCause
    reason: str


@dataclass(frozen=True, slots=True)
class Beat:
    """Rank to client: nothing new. Sending it is how a rank notices that a client has gone."""


@dataclass(slots=True)
class RankStats:
    """How a rank is doing. Ages in seconds; kv_use: share of the KV cache in use, 0 to 1.

    last_step_age_s: None before the first step. bad_frames: messages dropped because they could not be decoded.
    policy: None where the engine has none to tell of.
    """

    pid: int
    state: RankState
    detail: str = ""
    uptime_s: float = 0.0
    last_step_age_s: float | None = None
    waiting: int = 0
    running: int = 0
    kv_use: float = 0.0
    policy_generation: int = 0
    clients: int = 0
    bad_frames: int = 0
    counters: EngineCounters = field(default_factory=EngineCounters)
    policy: PolicyStatus | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    """Rank to client: the answer to Ping."""

    nonce: int
    stats: RankStats


@dataclass(frozen=True, slots=True)
class Opened:
    """A sequence that a drafter is to follow: its prompt, and what was committed of its output, in the request."""

    epoch: int
    request: Request


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that became output after base_len tokens. epoch: counts the sequence's commits; the new one."""

    id: str
    epoch: int
    base_len: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A draft after base_len tokens, of at most this shape (`DraftShape`)."""

    id: str
    epoch: int
    base_len: int
    branching: list[int]
    nodes: int


@dataclass(frozen=True, slots=True)
class DraftWork:
    """Target to drafter, in this order: follow these, these grew, forget these, and draft."""

    opened: list[Opened] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RemoteDraft:
    """`DraftTree` on its way. A draft whose epoch and base_len are not the sequence's present ones is dropped."""

    id: str
    epoch: int
    base_len: int
    token_ids: list[int]
    parents: list[int]
    confidences: list[float] | None


@dataclass(frozen=True, slots=True)
class DraftsMade:
    """Drafter to target. unknown: what it doesn't follow, or otherwise than said: to be opened again.

    took_us: drafting alone.
    """

    drafts: list[RemoteDraft]
    unknown: list[str]
    took_us: int


Message = Submit | Cancel | Ping | Drain | Shutdown | Events | Refused | Lost | Beat | Pong | DraftWork | DraftsMade
