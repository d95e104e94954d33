"""Plain decoding as simply as it can be written: the oracle that the engine is tested against.

One sequence at a time, the whole history through the model for every token, and the naive choice of `naive_sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from draftwing.core import FinishReason, FloatArray, SamplingParams
from draftwing.testing.naive_sampling import choose


class PlainTarget(Protocol):
    """A model as a function; `MockTarget` is one."""

    def logits_after(self, path: Sequence[int]) -> FloatArray:
        """Logits [V] after these tokens."""
        ...


class TransformersTarget:
    """A causal model of transformers with its own attention, run over the whole history without any cache."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @torch.inference_mode()
    def logits_after(self, path: Sequence[int]) -> FloatArray:
        ids = torch.tensor([list(path)], device=self.model.device)
        logits = self.model(ids, use_cache=False, logits_to_keep=1).logits
        array: FloatArray = logits[0, -1].float().cpu().numpy()
        return array

    def generate(self, prompt_ids: Sequence[int], max_new_tokens: int, eos_token_ids: Sequence[int] = ()) -> list[int]:
        """New tokens of transformers' own greedy `generate`, with its own cache. No EOS ids: it runs to the end."""
        ids = torch.tensor([list(prompt_ids)], device=self.model.device)
        # generate() fills what is None from the model's own settings, so the end is set there, for the call.
        settings = self.model.generation_config
        own, settings.eos_token_id = settings.eos_token_id, list(eos_token_ids) or None
        try:
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=0
            )
        finally:
            settings.eos_token_id = own
        tokens: list[int] = out[0, len(prompt_ids) :].tolist()
        return tokens


@dataclass(slots=True)
class PlainOutput:
    """gaps: per token, how far its choice was from another. text: what a client would see, "" without decode."""

    tokens: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    text: str = ""


def plain_decode(
    target: PlainTarget,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    choice: int = 0,
    eos_token_ids: Sequence[int] = (),
    decode: Callable[[list[int]], str] | None = None,
) -> PlainOutput:
    """Decode one request to its end. decode: the whole output's text, needed for stop strings."""
    out = PlainOutput()
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    while out.finish_reason is None:
        logits = target.logits_after([*prompt_ids, *out.tokens])
        chosen = choose(logits, params, prompt_ids, out.tokens, choice=choice, end_ids=ends)
        if chosen is None:
            out.finish_reason = "error"
            break
        out.tokens.append(chosen.token)
        out.gaps.append(chosen.gap)
        _end(out, params, eos_token_ids, decode)
        if out.finish_reason is None and len(out.tokens) >= params.max_tokens:
            out.finish_reason = "length"
    return out


def _end(
    out: PlainOutput,
    params: SamplingParams,
    eos_token_ids: Sequence[int],
    decode: Callable[[list[int]], str] | None,
) -> None:
    """Update the text, and end the output at an ending token or at the first stop string the last token completed.

    An ending token has no text, and a stop string and what follows it is not shown.
    """
    token = out.tokens[-1]
    shown = len(out.text.rstrip("\ufffd"))  # half a character at the end becomes a whole one
    may_stop = len(out.tokens) >= params.min_tokens
    if may_stop and (not params.ignore_eos and token in eos_token_ids):
        out.finish_reason = "stop"
        return
    if may_stop and token in params.stop_token_ids:
        out.finish_reason, out.stop_reason = "stop", token
        return
    if decode is None:
        return
    out.text = decode(out.tokens)
    hits = [(at, stop) for stop in params.stop if (at := out.text.find(stop, max(shown - len(stop) + 1, 0))) >= 0]
    if may_stop and hits:
        at, stop = min(hits)
        out.finish_reason, out.stop_reason, out.text = "stop", stop, out.text[:at]


def gap_after(
    target: PlainTarget, prompt_ids: Sequence[int], output: Sequence[int], params: SamplingParams, **more: Any
) -> float:
    """Plain decoding's gap at the token after `output`: one forward, for the few places where tokens differ."""
    chosen = choose(target.logits_after([*prompt_ids, *output]), params, prompt_ids, output, **more)
    return float(np.inf) if chosen is None else chosen.gap
