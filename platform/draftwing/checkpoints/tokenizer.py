"""Text to token ids and back, by the target's own tokenizer as transformers loads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from draftwing.checkpoints.model_folder import ModelFolder
from draftwing.errors import ConfigError, RequestError


class TextTokenizer:
    """Typed access to one of transformers' tokenizers; safe to use from several threads.

    vocab_size counts added tokens; a target's own vocabulary may be larger (padding). eos_token_ids: the tokenizer's;
    what ends a request is the target's (`LoadedTarget`).
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._decode: Callable[..., str] = tokenizer.decode
        if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
            # Some files carry them; left to transformers, the first of several threads would switch them off.
            backend.no_truncation()
            backend.no_padding()
            self._decode = backend.decode  # an eighth of the time, and decoding is once a token
        self.vocab_size = len(tokenizer)
        eos = tokenizer.eos_token_id
        self.eos_token_ids: tuple[int, ...] = () if eos is None else (int(eos),)
        self._anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)[-1:]

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """special: with the tokens that the model wants around a prompt, such as its beginning-of-text token."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens; a character cut in half reads U+FFFD."""
        return self._decode(ids, skip_special_tokens=True)

    def token_text(self, token: int) -> str:
        """One token as it reads inside a text, leading space and special tokens included."""
        before = self._decode(self._anchor, skip_special_tokens=False)
        whole = self._decode([*self._anchor, token], skip_special_tokens=False)
        return whole[len(before) :]

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Prompt ids of a conversation, up to where the assistant's answer begins.

        RequestError: the model has no chat template, or the template refuses these messages.
        """
        if not self.has_chat_template:
            raise RequestError(
                "this model has no chat template (it is not tuned for chat); use /v1/completions", param="messages"
            )
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return ids


def load_tokenizer(folder: ModelFolder, *, trust_remote_code: bool = False) -> TextTokenizer | None:
    """The folder's tokenizer; None where it has none. ConfigError when its files can't be read."""
    if not folder.has_tokenizer:
        return None
    from transformers import AutoTokenizer

    from draftwing.checkpoints.hf import one_line, quiet

    quiet()
    auto: Any = AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(folder.path, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers raises a plain Exception for a damaged file
        raise ConfigError(f"the tokenizer in {folder.path} can't be loaded ({one_line(error)})") from error
    return TextTokenizer(tokenizer)
