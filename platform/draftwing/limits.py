"""What one request may ask for at most, and the check of its sampling parameters. All request limits live here.

The numbers are defaults: an operator changes them under `limits:` in the config. A value outside is refused with the
field's name, the value (shortened) and what would be accepted; nothing is clamped.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_TEMPERATURE = 2.0
MAX_PENALTY = 2.0  # frequency and presence, either sign
MAX_REPETITION_PENALTY = 10.0  # beyond it, logits of any size are driven to one token
MAX_LOGIT_BIAS = 100.0  # either sign
MAX_SEED = 2**64 - 1
MAX_TOKENS = 2**31 - 1  # a sanity bound: the context length is checked where the model is known
SHOWN_CHARS = 60  # of a refused value, so that a bad request can't make a large answer


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes of one request. Bytes and depths are checked by the HTTP layer, the rest by `check_params` and it."""

    body_bytes: int = 4 * 2**20
    json_depth: int = 64
    prompts: int = 64  # prompts in one completions request
    n: int = 16  # choices of one prompt
    messages: int = 1024  # messages of one chat
    stop: int = 4  # stop strings
    stop_chars: int = 256  # characters of one stop string
    stop_token_ids: int = 64
    logprobs: int = 20  # alternatives per token
    logit_bias: int = 1024  # entries
    request_id_chars: int = 128


DEFAULT_LIMITS = RequestLimits()


def shown(value: object) -> str:
    """A refused value as text of bounded length, on one line, printable whatever it holds."""
    if isinstance(value, int) and value.bit_length() > 4 * SHOWN_CHARS:
        return f"an integer of {value.bit_length()} bits"
    # Cut before repr: a repr of a huge string costs as much as the string.
    text = ascii(value[: SHOWN_CHARS + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
