"""Streaming text: pieces join to the whole text, half characters and possible stop strings are held back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwing.engine.text import Detokenizer, TextStream


class Bytes:
    """One token a byte."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


class Words:
    """Tokens whose leading space goes when they come first, as in sentencepiece."""

    VOCABULARY = (" the", " cat", "s", " sat", ".")

    def decode(self, ids: list[int]) -> str:
        return "".join(self.VOCABULARY[i] for i in ids).removeprefix(" ")


@given(st.text(max_size=40))
def test_pieces_join_to_the_text_and_are_whole_characters(text: str) -> None:
    stream = TextStream(Bytes(), ())
    pieces = []
    for token in text.encode():
        stream.push(token)
        pieces.append(stream.take())
    stream.finish()
    pieces.append(stream.take())
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_half_a_character_is_held_until_it_is_whole() -> None:
    detokenizer = Detokenizer(Bytes())
    assert [detokenizer.push(b) for b in "é!".encode()] == ["", "é", "!"]


def test_bytes_that_never_become_a_character_come_out_at_the_end() -> None:
    stream = TextStream(Bytes(), ())
    for token in (0x61, 0xFF):
        stream.push(token)
    stream.finish()
    assert stream.take() == "a\ufffd"


def test_leading_spaces_survive_piecewise_decoding() -> None:
    stream = TextStream(Words(), ())
    pieces = []
    for token in (0, 1, 2, 3, 4):
        stream.push(token)
        pieces.append(stream.take())
    assert pieces == ["the", " cat", "s", " sat", "."]


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_stop_strings_end_the_text_at_the_token_that_completes_the_first(text: str, stops: list[str]) -> None:
    stream = TextStream(Bytes(), stops)
    seen, used, hit = "", 0, None
    for token in text.encode():
        used += 1
        hit = stream.push(token)
        seen += stream.take()
        if hit is not None:
            break
    stream.finish()
    seen += stream.take()
    # The stop that completes first, scanned by brute force.
    ends = sorted((text.find(s) + len(s), text.find(s), s) for s in stops if s in text)
    if not ends:
        assert hit is None
        assert seen == text
        return
    end = ends[0][0]
    starts = {s: text[:end].find(s) for s in stops if text[:end].find(s) >= 0}
    assert used == end
    assert hit in starts
    assert seen == text[: min(starts.values())]


def test_text_that_may_become_a_stop_string_is_not_shown() -> None:
    stream = TextStream(Bytes(), ("STOP",))
    shown = []
    for token in b"xSTOy":
        stream.push(token)
        shown.append(stream.take())
    assert shown == ["x", "", "", "", "STOy"]


def test_stop_strings_wait_for_min_tokens() -> None:
    stream = TextStream(Bytes(), ("b",))
    assert stream.push(ord("b"), may_stop=False) is None
    assert stream.push(ord("b")) == "b"


def test_a_stop_string_completed_before_min_tokens_never_stops() -> None:
    stream = TextStream(Bytes(), ["b", "bcd"])
    assert stream.push(ord("b"), may_stop=False) is None  # held: it may become "bcd"
    assert stream.push(ord("x")) is None
    assert stream.take() == "bx"
    assert stream.push(ord("b")) == "b"


def test_no_tokenizer_no_text() -> None:
    stream = TextStream(None, ())
    assert stream.push(5) is None
    stream.finish()
    assert stream.take() == ""


@pytest.mark.parametrize("emitted", range(6))
def test_text_given_back_is_shown_once(emitted: int) -> None:
    stream = TextStream(Bytes(), ("!!",))
    for token in b"hello":
        stream.push(token, may_stop=False)
    stream.give_back(stream.take()[emitted:])
    stream.push(ord("?"))
    assert stream.take() == "hello?"[emitted:]
