"""A drafter elsewhere, as the engine sees it: it sends what was committed, asks for drafts, and waits for a while.

Every draft names the state it is for; one that comes late is dropped. With `ahead`, the next drafts are asked for as
soon as a step's tokens are committed, and whoever steps in turns (mode *alternate*) finds them there. Drafters that
don't answer cost a deadline or two, then nothing: they are asked on, but waited for only once in a while.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import monotonic
from zlib import crc32

import numpy as np
import zmq

from draftwing.config_models import Config
from draftwing.core import NO_DRAFT, DraftShape, DraftTree, Request, StepPlan
from draftwing.drafters.base import Accepted, Controller, DrafterTraits, FeatureRows, SequenceView, TokenDrafter
from draftwing.drafters.registry import check_drafter
from draftwing.drafters.tree import kept
from draftwing.parallel import wire
from draftwing.parallel.channel import client_socket
from draftwing.parallel.endpoint import Endpoint
from draftwing.parallel.messages import Committed, DraftsMade, DraftWork, Opened, RemoteDraft, Wanted

log = logging.getLogger(__name__)
_SEND_QUEUE = 1000
PROBE_EVERY = 64  # rounds: so often a drafter that was late is waited for once more


@dataclass(slots=True)
class Followed:
    """A sequence as its drafter knows it. sent: tokens told. asked: the shape of the draft asked for at this epoch."""

    link: Link
    epoch: int = 0
    sent: int = 0
    asked: DraftShape | None = None
    shape: DraftShape = NO_DRAFT
    draft: RemoteDraft | None = None


class Link:
    """One connection. missed: deadlines in a row without an answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.missed = 0
        self.work = DraftWork()
        self._socket = client_socket(endpoint, _SEND_QUEUE)
        self._socket.connect(endpoint.address)

    def flush(self) -> bool:
        """Send the work noted since; False where nobody takes it, and it is lost (the drafter will say so)."""
        work, self.work = self.work, DraftWork()
        if not (work.opened or work.committed or work.closed or work.wanted):
            return True
        try:
            self._socket.send(wire.encode(work), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self, wait_s: float) -> list[DraftsMade]:
        found = []
        while self._socket.poll(max(round(wait_s * 1000), 0)):
            wait_s = 0.0
            try:
                message = wire.decode(self._socket.recv(zmq.DONTWAIT))
            except (zmq.Again, wire.WireError) as error:
                log.debug("nothing usable from the drafter at %s: %s", self.endpoint.address, error)
                break
            if isinstance(message, DraftsMade):
                found.append(message)
        return found

    def close(self) -> None:
        self._socket.close(linger=0)


@dataclass(slots=True)
class RemoteCounts:
    """late: deadlines that passed. dropped: drafts for a state that was over. waited_s: for drafts, in all."""

    late: int = 0
    dropped: int = 0
    waited_s: float = 0.0
    drafted_s: float = 0.0
    rounds: int = 0


@dataclass(slots=True)
class RemoteOptions:
    """deadline_s: of one wait. ahead: ask for the next drafts when tokens are committed. patience: deadlines missed in
    a row after which a drafter is not waited for."""

    deadline_s: float = 0.1
    ahead: bool = False
    patience: int = 2


class RemoteDrafter(TokenDrafter):
    """Token drafters behind `endpoints`; a sequence stays with the one that its id falls to."""

    def __init__(self, traits: DrafterTraits, options: RemoteOptions, endpoints: Seq[Endpoint] = ()) -> None:
        self.traits = DrafterTraits(
            max_depth=traits.max_depth, trees=traits.trees, confidence=traits.confidence, stateful_across_requests=True
        )
        self._options = options
        self._links: list[Link] = []
        self._followed: dict[str, Followed] = {}
        self._lock = threading.Lock()
        self._next: list[Endpoint] | None = list(endpoints)
        self.counts = RemoteCounts()

    def connect(self, endpoints: Seq[Endpoint]) -> None:
        """These are the drafters from the next step on. From any thread."""
        with self._lock:
            self._next = list(endpoints)

    def propose(
        self,
        sequences: Seq[SequenceView],
        plan: StepPlan,
        controller: Controller,
        base: Seq[Seq[int]] | None = None,
    ) -> list[DraftTree]:
        """What came in time. Hypothetical continuations are not asked for over the wire: with a base, nothing."""
        self._reconnect()
        if base is not None or not self._links:
            return [DraftTree.empty()] * len(sequences)
        for sequence, shape in zip(sequences, plan.shapes, strict=True):
            followed = self._follow(sequence)
            followed.shape = shape
            if shape.nodes and followed.asked is None:
                self._ask(sequence, followed)
        self._flush()
        self._wait(sequences)
        return [self._tree(sequence, shape) for sequence, shape in zip(sequences, plan.shapes, strict=True)]

    def commit(
        self, sequences: Seq[SequenceView], accepted: Seq[Accepted], features: Seq[FeatureRows] | None = None
    ) -> None:
        for sequence in sequences:
            followed = self._followed.get(sequence.id)
            if followed is None or followed.sent == 0:  # it will be opened with all its tokens
                continue
            tokens = list(sequence.tokens[followed.sent :])
            followed.epoch += 1
            followed.asked = followed.draft = None
            followed.link.work.committed.append(Committed(sequence.id, followed.epoch, followed.sent, tokens))
            followed.sent = len(sequence.tokens)
            if self._options.ahead and followed.shape.nodes:
                self._ask(sequence, followed)
        self._flush()

    def release(self, sequence: SequenceView) -> None:
        if (followed := self._followed.pop(sequence.id, None)) is not None:
            followed.link.work.closed.append(sequence.id)

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._links = []

    def _follow(self, sequence: SequenceView) -> Followed:
        followed = self._followed.get(sequence.id)
        if followed is None:
            link = self._links[crc32(sequence.id.encode()) % len(self._links)]
            followed = self._followed[sequence.id] = Followed(link)
        if followed.sent == 0:
            tokens, prompt = list(sequence.tokens), sequence.prompt_len
            request = Request(
                sequence.id, tokens[:prompt], sequence.params, sequence.choice, tokens[prompt:], salt=sequence.salt
            )
            followed.epoch += 1
            followed.sent, followed.asked, followed.draft = len(tokens), None, None
            followed.link.work.opened.append(Opened(followed.epoch, request))
        return followed

    def _ask(self, sequence: SequenceView, followed: Followed) -> None:
        """Later levels than the request has tokens left for are cut when the draft is used."""
        shape = followed.asked = followed.shape
        followed.link.work.wanted.append(
            Wanted(sequence.id, followed.epoch, followed.sent, list(shape.branching), shape.nodes)
        )

    def _flush(self) -> None:
        for link in self._links:
            if not link.flush():
                link.missed = max(link.missed, self._options.patience)

    def _wait(self, sequences: Seq[SequenceView]) -> None:
        """Until every asked draft is here, or the deadline; no waiting for drafters that didn't answer before."""
        begun = monotonic()
        deadline = begun + self._options.deadline_s
        for link in self._links:
            mine = [f for s in sequences if (f := self._followed[s.id]).link is link and f.asked is not None]
            patient = link.missed < self._options.patience or self.counts.rounds % PROBE_EVERY == PROBE_EVERY - 1
            self._take(link, link.receive(0.0))
            while patient and any(f.draft is None and f.asked is not None for f in mine):
                left = deadline - monotonic()
                if left <= 0:
                    link.missed += 1
                    self.counts.late += 1
                    break
                self._take(link, link.receive(left))
        self.counts.waited_s += monotonic() - begun
        self.counts.rounds += 1

    def _take(self, link: Link, answers: Seq[DraftsMade]) -> None:
        for answer in answers:
            self.counts.drafted_s += answer.took_us * 1e-6
            for draft in answer.drafts:
                followed = self._followed.get(draft.id)
                if followed is not None and (draft.epoch, draft.base_len) == (followed.epoch, followed.sent):
                    followed.draft = draft
                    link.missed = 0
                else:
                    self.counts.dropped += 1
            for name in answer.unknown:
                if (followed := self._followed.get(name)) is not None:
                    followed.sent, followed.asked = 0, None  # opened again with the next plan

    def _tree(self, sequence: SequenceView, shape: DraftShape) -> DraftTree:
        draft = self._followed[sequence.id].draft
        if draft is None or not shape.nodes:
            return DraftTree.empty()
        confidences = None if draft.confidences is None else np.array(draft.confidences, dtype=np.float32)
        tree = DraftTree(
            np.array(draft.token_ids, dtype=np.int64), np.array(draft.parents, dtype=np.int64), confidences
        )
        return within(tree, shape)

    def _reconnect(self) -> None:
        """Use the endpoints that `connect` named last; sequences of drafters that are gone are opened anew."""
        with self._lock:
            endpoints, self._next = self._next, None
        if endpoints is None or endpoints == [link.endpoint for link in self._links]:
            return
        kept = {link.endpoint.address: link for link in self._links if link.endpoint in endpoints}
        for link in self._links:
            if link.endpoint.address not in kept:
                link.close()
        self._links = [kept.get(endpoint.address) or Link(endpoint) for endpoint in endpoints]
        self._followed.clear()


def remote_drafter(config: Config) -> RemoteDrafter | None:
    """The drafter of a config that gives it a placement; who starts it tells it where to connect."""
    entry = config.drafters[0] if config.drafters else None
    if entry is None or entry.placement is None:
        return None
    facts = check_drafter(entry, 0)[0].facts
    traits = DrafterTraits(trees=facts.trees, confidence=facts.confidence)
    placement = entry.placement
    options = RemoteOptions(deadline_s=placement.deadline_ms / 1e3, ahead=placement.mode == "alternate")
    return RemoteDrafter(traits, options)


def within(tree: DraftTree, shape: DraftShape) -> DraftTree:
    """The part of a draft that a smaller shape than it was asked with allows: never too deep, wide or large."""
    depths: list[int] = []
    counts: dict[int, int] = {}
    keep: list[int] = []
    inside = set()
    for node, parent in enumerate(tree.parents.tolist()):
        depth = depths[parent] + 1 if parent >= 0 else 0
        depths.append(depth)
        fits = depth < shape.depth and counts.get(parent, 0) < shape.branching[depth] and len(keep) < shape.nodes
        if fits and (parent < 0 or parent in inside):
            counts[parent] = counts.get(parent, 0) + 1
            inside.add(node)
            keep.append(node)
    return tree if len(keep) == len(tree) else kept(tree, keep)
