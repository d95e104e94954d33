"""Suffix decoding's data: how often each stretch of tokens occurred, in a request and in the answers before it.

A suffix tree answers two questions: where did the last m tokens occur, and what followed there how often. Here both
are answered without a tree, from the occurrences themselves: every token has a place, places are linked to those before
and after them, and the set of places that match m tokens is narrowed to m + 1 by one gather. The counts are those of a
suffix tree of capped depth, whose size and upkeep would be `depth` times as large.

A draft's *probability* at a node is the share of the matched places that go on through it. The context's own end is a
place like any other that nothing follows, so it counts against every draft, as in the published method (suffix
decoding, Oliaro et al., 2024; numbers: the golden case `suffix`).
"""

from __future__ import annotations

import heapq
from array import array
from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int32]
NOWHERE = 0  # no token is here; what comes before the first place of a stream and after its last
NO_TOKEN = -1
SEARCHED = 32768  # latest occurrences of a match's rarest token that are looked at
SOUGHT = 4  # matches this long are looked for first, shorter ones only if they can matter
COUNTED = 2048  # latest of the matches whose continuations are counted
FEW = 16  # so many places are faster one by one than as arrays
LEAST_COMPACTED = 4096  # places


@dataclass(frozen=True, slots=True)
class Limits:
    """What one draft may be. tokens: at most. A match of m tokens allows m * factor + offset of them.

    least: smallest probability of a node, given the match. branching: most children by depth, the last for all deeper
    levels; (1,): a chain.
    """

    tokens: int
    factor: float = 1.0
    offset: float = 0.0
    least: float = 0.1
    branching: tuple[int, ...] = (1,)

    def reach(self, depth: int) -> int:
        """Levels within a depth that may have nodes."""
        return min(depth, len(self.branching) - 1) if self.branching[-1] == 0 else depth

    def budget(self, match: int) -> int:
        return min(self.tokens, int(match * self.factor + self.offset + 1e-6))


@dataclass(frozen=True, slots=True)
class Speculation:
    """A draft with its parents (-1: the root) and probabilities, whose sum is the score, after a match so long."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    score: float = 0.0
    match: int = 0


class Corpus:
    """Streams of tokens that may all grow at any time, the places of each token, and what followed where."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._token, self._before, self._after = np.zeros((3, 256), dtype=np.int32)
        self._token[NOWHERE] = NO_TOKEN
        self._size = 1
        self._dead = 0
        self._tails: dict[str, int] = {}
        self._places: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def __bool__(self) -> bool:
        return bool(self._tails)

    def extend(self, stream: str, tokens: Seq[int]) -> None:
        tail = self._tails.get(stream, NOWHERE)
        if not tokens:
            return
        start, end = self._size, self._size + len(tokens)
        if end > len(self._token):
            grown = np.zeros((3, 2 * end), dtype=np.int32)
            grown[:, :start] = self._token[:start], self._before[:start], self._after[:start]
            self._token, self._before, self._after = grown
        self._token[start:end] = tokens
        self._before[start:end] = np.arange(start - 1, end - 1)
        self._after[start:end] = np.arange(start + 1, end + 1)
        self._before[start], self._after[end - 1] = tail, NOWHERE
        if tail != NOWHERE:
            self._after[tail] = start
        for place, token in enumerate(tokens, start):
            self._places[token].append(place)
        self._tails[stream], self._size = end - 1, end

    def undo(self, stream: str, count: int) -> None:
        """Take back what the latest `extend` of any stream added; it must have been this one, and so many tokens."""
        first = self._size - count
        for token in self._token[first : self._size].tolist():
            self._places[token].pop()
        tail = int(self._before[first])
        self._size = first
        if tail == NOWHERE:
            del self._tails[stream]
        else:
            self._tails[stream], self._after[tail] = tail, NOWHERE

    def remove(self, stream: str) -> None:
        place = self._tails.pop(stream, NOWHERE)
        while place != NOWHERE:
            self._token[place] = NO_TOKEN
            self._dead += 1
            place = int(self._before[place])
        if self._dead > max(self._size // 2, LEAST_COMPACTED):
            self._compact()

    def _compact(self) -> None:
        """Close the gaps that removed streams left."""
        alive = np.concatenate(([NOWHERE], 1 + np.flatnonzero(self._token[1 : self._size] != NO_TOKEN)))
        moved = np.zeros(self._size, dtype=np.int32)
        moved[alive] = np.arange(len(alive))
        kept = np.stack((self._token[alive], moved[self._before[alive]], moved[self._after[alive]]))
        self._token, self._before, self._after = kept.astype(np.int32)
        self._size, self._dead = len(alive), 0
        self._tails = {stream: int(moved[tail]) for stream, tail in self._tails.items()}
        self._places.clear()
        for place, token in enumerate(self._token[1:].tolist(), 1):
            self._places[token].append(place)

    def speculate(self, context: Seq[int], limits: Limits, above: float = 0.0) -> Speculation:
        """The draft with the highest score over all lengths of match, the longer match on equal scores.

        above: only a higher score is of interest; else the draft is empty, with the longest match.
        """
        context = context[-self._depth :]
        first = min(SOUGHT, len(context) - 1)
        found = self._matches(context, first)
        longest, best = 0, Speculation(score=above)
        tried: Places | None = None
        for match in range(first + len(found) - 1 if found else first - 1, 0, -1):
            budget = limits.budget(match)
            if longest and budget <= best.score:  # no share exceeds 1, and shorter matches have smaller budgets
                break
            places = found[match - first] if match >= first else self._ends(context[-match:])
            if places is tried or len(places) == 0:
                continue
            longest = longest or match
            drafted = self._draft(places[-COUNTED:], budget, self._depth - match, limits, match)
            # The same places with a shorter match allow no more, unless it was the tree's depth that ended the draft.
            tried = places if len(drafted.tokens) < self._depth - match else None
            if drafted.score > best.score:
                best = drafted
        return best if best.match else Speculation(match=longest)

    def _ends(self, tokens: Seq[int]) -> Places:
        """Where these tokens occur, as places of the last one, through the occurrences of the rarest."""
        known = [self._places.get(token, ()) for token in tokens]
        rarest = min(range(len(tokens)), key=lambda i: len(known[i]))
        at = np.array(known[rarest][-SEARCHED:], dtype=np.int32)
        if self._dead:
            at = at[self._token[at] == tokens[rarest]]
        ends = at
        for token in tokens[rarest + 1 :]:
            ends = self._after[ends]
            same = self._token[ends] == token
            at, ends = at[same], ends[same]
        for token in tokens[:rarest][::-1]:
            at = self._before[at]
            same = self._token[at] == token
            at, ends = at[same], ends[same]
        return ends

    def _matches(self, context: Seq[int], first: int) -> list[Places]:
        """Entry i: where the last first + i tokens end, while they do and one is left before; one array if equal."""
        if first < 1:
            return []
        places = at = self._ends(context[-first:])
        for _ in range(first - 1):
            at = self._before[at]
        found: list[Places] = []
        for token in context[-first - 1 :: -1]:
            if len(places) == 0:
                break
            found.append(places)
            if len(places) == 1:
                found += [places] * self._more(int(at[0]), context[len(context) - first - len(found) : 0 : -1])
                break
            at = self._before[at]
            same = self._token[at] == token
            if not same.all():
                places, at = places[same], at[same]
        return found

    def _more(self, place: int, tokens: Seq[int]) -> int:
        """How many of the tokens stand before a place, reading backwards."""
        for count, token in enumerate(tokens):
            place = self._before.item(place)
            if self._token.item(place) != token:
                return count
        return len(tokens)

    def _draft(self, places: Places, budget: int, depth: int, limits: Limits, match: int) -> Speculation:
        """Nodes in order of probability, best first; for a chain that is the path of likeliest tokens."""
        total = len(places)
        few = max(limits.least * total, 1)
        tokens, parents, shares = list[int](), list[int](), list[float]()
        # Entries: minus the count, an order for equal counts, the token, its parent, its depth, its places.
        waiting: list[tuple[int, int, int, int, int, Seq[int] | Places]] = []
        order, node, level, at = 0, -1, 0, places if total > FEW else places.tolist()
        while len(tokens) < budget:
            if len(at) == 1 and not waiting and few <= 1:  # one place is left: what follows it needs no counting
                run = self._following(int(at[0]), min(budget - len(tokens), limits.reach(depth) - level))
                parents += [node, *range(len(tokens), len(tokens) + len(run) - 1)][: len(run)]
                shares += [1 / total] * len(run)
                tokens += run
                break
            if level < depth:
                width = limits.branching[min(level, len(limits.branching) - 1)]
                for token, behind in self._children(at, few)[:width]:
                    heapq.heappush(waiting, (-len(behind), order, token, node, level + 1, behind))
                    order += 1
            if not waiting:
                break
            count, _, token, parent, level, at = heapq.heappop(waiting)
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            shares.append(-count / total)
        return Speculation(tokens, parents, shares, sum(shares), match)

    def _following(self, place: int, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count and (place := self._after.item(place)) != NOWHERE:
            found.append(self._token.item(place))
        return found

    def _children(self, places: Seq[int] | Places, few: float) -> list[tuple[int, Seq[int] | Places]]:
        """Tokens that follow at least `few` of the places, with their places: most first, then the latest."""
        groups: dict[int, Seq[int] | Places] = {}
        if isinstance(places, np.ndarray):
            nexts = self._after[places]
            tokens = self._token[nexts]
            values, counts = np.unique(tokens, return_counts=True)
            frequent = values[(counts >= few) & (values != NO_TOKEN)].tolist()
            for token in frequent:
                behind = nexts[tokens == token]
                groups[token] = behind if len(behind) > FEW else behind.tolist()
        else:
            small: dict[int, list[int]] = {}
            for place in places:
                following = self._after.item(place)
                if following != NOWHERE:
                    small.setdefault(self._token.item(following), []).append(following)
            groups = {token: at for token, at in small.items() if len(at) >= few}
        if len(groups) < 2:
            return list(groups.items())
        return sorted(groups.items(), key=lambda group: (-len(group[1]), -group[1][-1]))


class SuffixCache:
    """A corpus for each running request, prompt and answer, and one per salt with the answers of all its requests.

    depth: longest match and draft together. cached: answers in the shared corpora at most, the oldest request's goes
    first, even while it runs; -1: no bound, 0: nothing is shared. Salts share nothing but that bound (rule R5).
    """

    def __init__(self, depth: int, cached: int) -> None:
        self._depth = depth
        self._cached = cached
        self._local: dict[str, tuple[Corpus, str]] = {}  # of every running request, with its salt
        self._shared: dict[str, Corpus] = {}  # by salt
        self._salts: dict[str, str] = {}  # of every request whose answer is shared, the oldest first

    def start(self, request: str, prompt: Seq[int], salt: str = "") -> None:
        corpus = Corpus(self._depth)
        corpus.extend(request, prompt)
        self._local[request] = corpus, salt
        self._forget(request)
        if self._cached != 0:
            if len(self._salts) == self._cached:
                self._forget(next(iter(self._salts)))
            self._salts[request] = salt

    def extend(self, request: str, tokens: Seq[int]) -> None:
        corpus, salt = self._local[request]
        corpus.extend(request, tokens)
        if tokens and request in self._salts:
            self._shared.setdefault(salt, Corpus(self._depth)).extend(request, tokens)

    def undo(self, request: str, count: int) -> None:
        """Take back the `count` tokens of the latest `extend`, which must have been this request's."""
        if count:
            corpus, salt = self._local[request]
            corpus.undo(request, count)
            if request in self._salts:
                self._shared[salt].undo(request, count)

    def stop(self, request: str) -> None:
        """The request ended; unknown ones are fine."""
        self._local.pop(request, None)

    def speculate(self, request: str, context: Seq[int], limits: Limits) -> Speculation:
        """The better draft of the request's own corpus and the shared one, its own on equal scores."""
        corpus, salt = self._local[request]
        local = corpus.speculate(context, limits)
        if (shared := self._shared.get(salt)) is None:
            return local
        other = shared.speculate(context, limits, above=local.score)
        return other if other.score > local.score else local

    def _forget(self, request: str) -> None:
        salt = self._salts.pop(request, None)
        if salt is not None and (shared := self._shared.get(salt)) is not None:
            shared.remove(request)
            if not shared:
                del self._shared[salt]

    @property
    def cached(self) -> list[str]:
        """Requests whose answers are shared, oldest first."""
        return list(self._salts)
