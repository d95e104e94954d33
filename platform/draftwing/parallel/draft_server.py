"""A drafter in a process of its own: it follows the sequences of its targets and drafts when asked.

One thread owns drafter and socket. All messages that have arrived are applied before anything is drafted, so a request
for a draft that a later commit has overtaken costs nothing. Whatever a drafter raises or a target gets wrong costs
drafts, never more (rule R3): the target asks again, or decodes plainly.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter

import numpy as np

from draftwing.core import DraftShape, DraftTree, IntArray, StepPlan
from draftwing.drafters.base import Accepted, Drafter, NullController
from draftwing.drafters.tree import children
from draftwing.drafters.validate import checked
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.sequence import Tracked
from draftwing.parallel.channel import ChannelServer, ClientId
from draftwing.parallel.messages import (
    Beat,
    Committed,
    DraftsMade,
    DraftWork,
    Opened,
    Ping,
    Pong,
    RankStats,
    RemoteDraft,
    Shutdown,
    Wanted,
)

log = logging.getLogger(__name__)
POLL_S = 0.25
BEAT_S = 2.0  # sending is how a target that has gone is noticed: it asks for nothing any more


@dataclass(slots=True, eq=False)
class Mirror(Tracked):
    """A target's sequence, in blocks of the drafter's own pool. epoch: commits that it was told. draft: the latest."""

    epoch: int
    draft: DraftTree = field(default_factory=DraftTree.empty)


class DraftServer:
    """Serves one bound drafter. `run` in the thread that is to own both.

    pool: the blocks of its pages, if it has pages (`Drafter.reserve`).
    """

    def __init__(self, drafter: Drafter, channel: ChannelServer, pool: BlockPool | None, vocab_size: int) -> None:
        self._drafter = drafter
        self._channel = channel
        self._pool = pool
        self._vocab_size = vocab_size
        self._mirrors: dict[str, Mirror] = {}  # by client and the client's id
        self._clients: set[ClientId] = set()
        self._next_beat = 0.0
        self._stopped = False
        self._started = monotonic()
        self.failures = 0

    def request_stop(self) -> None:
        self._stopped = True

    def run(self) -> int:
        while not self._stopped:
            self.serve(POLL_S)
        return 0

    def serve(self, wait_s: float) -> None:
        """Apply what has arrived, waiting for something up to wait_s, then draft what is still wanted."""
        asked: dict[ClientId, dict[str, Wanted]] = {}
        for client, message in self._channel.receive(wait_s):
            self._clients.add(client)
            match message:
                case DraftWork():
                    wanted = asked.setdefault(client, {})
                    self._apply(client, message)
                    wanted.update({each.id: each for each in message.wanted})
                case Ping():
                    stats = RankStats(pid=os.getpid(), state="ready", uptime_s=monotonic() - self._started)
                    stats.running, stats.bad_frames = len(self._mirrors), self._channel.bad_frames
                    self._channel.send(client, Pong(message.nonce, stats))
                case Shutdown():
                    self.request_stop()
                case _:
                    log.warning("a target sent a %s, which is none of a drafter's business", type(message).__name__)
        for client, wanted in asked.items():
            if wanted:
                self._channel.send(client, self._made(client, wanted))
        self._beat()

    def _beat(self) -> None:
        """Targets that are no more are forgotten, with all that was kept for them."""
        if (now := monotonic()) < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        for client in [each for each in self._clients if self._channel.send(each, Beat()) == "gone"]:
            self._clients.remove(client)
            for mirror in [each for key, each in self._mirrors.items() if key.startswith(_key(client, ""))]:
                self._close(mirror)

    def _apply(self, client: ClientId, work: DraftWork) -> None:
        for opened in work.opened:
            self._open(client, opened)
        grown = [(m, each) for each in work.committed if (m := self._mirrors.get(_key(client, each.id))) is not None]
        for mirror, each in grown:
            if each.base_len == len(mirror.tokens):
                self._grow(mirror, each)
            else:
                self._close(mirror)  # something was lost: it is unknown from now on, and opened again
        for closed in work.closed:
            if (over := self._mirrors.get(_key(client, closed))) is not None:
                self._close(over)

    def _open(self, client: ClientId, opened: Opened) -> None:
        key = _key(client, opened.request.id)
        if (old := self._mirrors.get(key)) is not None:
            self._close(old)
        tokens = [*opened.request.prompt_ids, *opened.request.generated_ids]
        mirror = self._mirrors[key] = Mirror(replace(opened.request, id=key), tokens, opened.epoch)
        self._safely("prefill", lambda: self._drafter.prefill([mirror]))

    def _grow(self, mirror: Mirror, committed: Committed) -> None:
        mirror.tokens.extend(committed.token_ids)
        mirror.epoch = committed.epoch
        path = _followed(mirror.draft, committed.token_ids)
        mirror.draft = DraftTree.empty()
        accepted = Accepted(path, len(committed.token_ids))
        self._safely("commit", lambda: self._drafter.commit([mirror], [accepted]))

    def _close(self, mirror: Mirror) -> None:
        del self._mirrors[mirror.id]
        self._safely("release", lambda: self._drafter.release(mirror))
        if self._pool is not None:
            self._pool.release(mirror.table)

    def _made(self, client: ClientId, wanted: dict[str, Wanted]) -> DraftsMade:
        """Drafts for those that are as the target believes; the others are unknown."""
        begun = perf_counter()
        current: list[tuple[Mirror, Wanted]] = []
        unknown: list[str] = []
        for name, each in wanted.items():
            known = self._mirrors.get(_key(client, name))
            if known is not None and (each.epoch, each.base_len) == (known.epoch, len(known.tokens)):
                current.append((known, each))
            else:
                unknown.append(name)
        shapes = [DraftShape(tuple(each.branching), each.nodes) for _, each in current]
        mirrors = [mirror for mirror, _ in current]
        room = [self._room(mirror, shape) for mirror, shape in zip(mirrors, shapes, strict=True)]
        plan = StepPlan("", tuple(shape if fits else DraftShape() for shape, fits in zip(shapes, room, strict=True)))
        made = self._safely("propose", lambda: self._drafter.propose(mirrors, plan, NullController()))
        trees = checked(made, plan.shapes, self._vocab_size)[0]
        for mirror, tree in zip(mirrors, trees, strict=True):
            mirror.draft = tree
        drafts = [_on_its_way(each, tree) for (_, each), tree in zip(current, trees, strict=True)]
        return DraftsMade(drafts, unknown, int((perf_counter() - begun) * 1e6))

    def _room(self, mirror: Mirror, shape: DraftShape) -> bool:
        """Blocks for its tokens and the draft; where they run out, others that draft less often give theirs back."""
        if self._pool is None:
            return True
        needed = len(mirror.tokens) + shape.nodes
        while not self._pool.grow(mirror.table, needed):
            other = next((each for each in self._mirrors.values() if each.table and each is not mirror), None)
            if other is None:
                return False
            self._safely("release", lambda other=other: self._drafter.release(other))  # type: ignore[misc]
            self._pool.release(other.table)
        self._mirrors[mirror.id] = self._mirrors.pop(mirror.id)  # the latest is the last to be asked for its blocks
        return True

    def _safely(self, what: str, call: Callable[[], object]) -> object:
        try:
            return call()
        except Exception:
            self.failures += 1
            log.exception("the drafter's %s failed; its targets go on without these drafts", what)
            return None


def _key(client: ClientId, name: str) -> str:
    return f"{client.hex()}/{name}"


def _followed(draft: DraftTree, committed: list[int]) -> IntArray:
    """The draft's nodes that the committed tokens run through, from the root."""
    path: list[int] = []
    below, node = children(draft.parents), -1
    for token in committed:
        node = next((child for child in below[node] if draft.tokens[child] == token), -1)
        if node < 0:
            break
        path.append(node)
    return np.array(path, dtype=np.int64)


def _on_its_way(wanted: Wanted, tree: DraftTree) -> RemoteDraft:
    confidences = None if tree.confidences is None else tree.confidences.tolist()
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    return RemoteDraft(wanted.id, wanted.epoch, wanted.base_len, tokens, parents, confidences)
