"""Text of a growing output: incremental detokenizing, and the window in which a stop string may still complete.

Everything here is a function of the output tokens alone, so a request resumed elsewhere replays its tokens and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    """The one thing the engine needs of a tokenizer."""

    def decode(self, ids: list[int]) -> str: ...


class Detokenizer:
    """Turns tokens into text piece by piece; half a character is held until the rest of it comes.

    A token's text depends on the few tokens before it (leading spaces, byte fallbacks), so each piece is the difference
    between two decodings of a short window.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._window: list[int] = []  # tokens from the last settled boundary on
        self._settled = 0  # how many of them have their text out

    def push(self, token: int) -> str:
        """The text this token completes, possibly empty."""
        before = self._decoder.decode(self._window[: self._settled])
        self._window.append(token)
        after = self._decoder.decode(self._window)
        if len(after) <= len(before) or after.endswith(REPLACEMENT):
            return ""
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        return after[len(before) :]

    def flush(self) -> str:
        """What was held back, as far as it decodes."""
        before = self._decoder.decode(self._window[: self._settled])
        after = self._decoder.decode(self._window)
        self._settled = len(self._window)
        return after[len(before) :]


class TextStream:
    """A request's visible text: detokenizes, finds stop strings, and holds back what may become one.

    decoder None: a target without tokenizer; there is no text, and stop strings were refused at admission.
    """

    def __init__(self, decoder: Decoder | None, stop: Iterable[str]) -> None:
        self._detokenizer = Detokenizer(decoder) if decoder is not None else None
        self._stop = tuple(stop)
        self._reach = max((len(s) for s in self._stop), default=0)
        self._held = ""
        self._ready: list[str] = []

    def push(self, token: int, *, may_stop: bool = True) -> str | None:
        """Take one output token; the stop string that it completed, or None. may_stop False: min_tokens not reached."""
        if self._detokenizer is None:
            return None
        return self._absorb(self._detokenizer.push(token), may_stop)

    def finish(self) -> None:
        """No token follows: all held text becomes ready."""
        if self._detokenizer is not None:
            self._ready.append(self._held + self._detokenizer.flush())
            self._held = ""

    def take(self) -> str:
        """Text that may be shown now and was not taken before."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def give_back(self, text: str) -> None:
        """Make text ready again that was taken but not shown."""
        self._ready.insert(0, text)

    def _absorb(self, piece: str, may_stop: bool) -> str | None:
        if not piece:
            return None
        text = self._held + piece
        if may_stop:
            # What was complete before may have been too early to stop at (min_tokens): a hit ends in the new piece.
            new = len(self._held)
            hits = [(at, s) for s in self._stop if (at := text.find(s, max(new - len(s) + 1, 0))) >= 0]
            if hits:
                at, stop = min(hits)
                self._ready.append(text[:at])
                self._held = ""
                self._detokenizer = None
                return stop
        keep = self._possible_start(text)
        self._ready.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return None

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(self._reach - 1, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0
