from __future__ import annotations

import pytest

from draftwing.testing.bytes_tokenizer import BOS, EOS, TURN, BytesTokenizer

TOKENIZER = BytesTokenizer()


@pytest.mark.parametrize("text", ["", "plain", "naïve Ω 深 🙂", "\x00\n"])
def test_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids[0] == BOS
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode(TOKENIZER.encode(text, special=False)) == text


def test_half_a_character_is_a_replacement_character() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("深", special=False)[:2]) == "\ufffd"


def test_special_tokens_have_names_and_no_text() -> None:
    assert TOKENIZER.decode([BOS, 97, EOS, TURN]) == "a"
    assert [TOKENIZER.token_text(t) for t in (97, EOS)] == ["a", "<eos>"]


def test_unknown_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="token id 259; ids go from 0 to 258"):
        TOKENIZER.decode([97, 259])


def test_a_chat_ends_with_the_assistants_turn() -> None:
    ids = TOKENIZER.chat([{"role": "user", "content": "hi"}])
    assert TOKENIZER.decode(ids) == "user\nhiassistant\n"
    assert [i for i in ids if i > 255] == [BOS, TURN, TURN]
