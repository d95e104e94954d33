"""Log-probabilities of returned tokens: the raw model's, before any processor and without the noise."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwing.core import IntArray, TokenLogprob


@torch.inference_mode()
def logprobs(logits: Tensor, rows: IntArray, tokens: list[int], alternatives: int) -> list[TokenLogprob]:
    """One entry per token: logits [M, V], rows: which chose each token, alternatives: how many."""
    if not tokens:
        return []
    values = logits[torch.from_numpy(rows).to(logits.device)].float().log_softmax(-1)
    own = values.gather(1, torch.tensor(tokens, device=values.device)[:, None])[:, 0].tolist()
    best = values.topk(min(alternatives, values.shape[1]), dim=-1) if alternatives else None
    entries = []
    for i, token in enumerate(tokens):
        shown = [] if best is None else list(zip(best.indices[i].tolist(), best.values[i].tolist(), strict=True))
        entries.append(TokenLogprob(token, own[i], shown))
    return entries
