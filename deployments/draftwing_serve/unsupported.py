"""Fields that clients know from OpenAI or other servers and whose effect is not built here.

Ignoring one of them would silently change what comes out, so any value but a neutral one is refused. Fields that are
neither here nor in the models of `protocol` have no effect anyone could miss: they are accepted and reported back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwing_serve.errors import unsupported

# Field: the values, besides null, that ask for nothing.
_NEUTRAL_ANYWHERE: dict[str, tuple[object, ...]] = {
    "add_special_tokens": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1.0,),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "regex": (),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1.0,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

# The chat template writes the special tokens and the generation prompt itself.
_NEUTRAL_IN_CHAT: dict[str, tuple[object, ...]] = {
    "add_special_tokens": (False,),
    "add_generation_prompt": (True,),
    "echo": (False,),
}


def refuse_unsupported(extra: Mapping[str, Any], *, chat: bool) -> list[str]:
    """RequestError for a field with effect; the names of the others, which will be reported as ignored."""
    table = {**_NEUTRAL_ANYWHERE, **_NEUTRAL_IN_CHAT} if chat else _NEUTRAL_ANYWHERE
    for name in table.keys() & extra.keys():
        value = extra[name]
        if value is not None and value not in table[name]:
            accepted = ["leaving it out", "null", *(repr(v) for v in table[name])]
            raise unsupported(name, value, " or ".join(accepted))
    return [name for name in extra if name not in table]
