"""A tokenizer without files: token i is byte i, and three tokens more mark begin, end and the turns of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BOS, EOS, TURN = 256, 257, 258
_NAMES = {BOS: "<bos>", EOS: "<eos>", TURN: "<turn>"}


class BytesTokenizer:
    """Has what engine and gateway need of a tokenizer. Characters beyond ASCII take several tokens, as in real ones."""

    vocab_size = 259
    bos_token_id = BOS
    eos_token_ids = (EOS,)
    has_chat_template = True

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """special: begin with the begin-of-text token."""
        return [*([BOS] if special else []), *text.encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens have no text; incomplete or wrong bytes become U+FFFD. ValueError for an unknown id."""
        if unknown := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(f"token id {unknown[0]}; ids go from 0 to {self.vocab_size - 1}")
        return bytes(i for i in ids if i < BOS).decode("utf-8", errors="replace")

    def token_text(self, token: int) -> str:
        return _NAMES.get(token) or self.decode([token])

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """One turn token, the role, a line feed and the content per message, then the assistant's turn begun."""
        ids = [BOS]
        for message in [*messages, {"role": "assistant", "content": ""}]:
            ids += [TURN, *self.encode(f"{message['role']}\n{message['content']}", special=False)]
        return ids
