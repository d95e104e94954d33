"""Log-probabilities of returned tokens: the raw model's, before any processor and without the noise."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwing.core import IntArray, TokenLogprob
from draftwing.engine.selection import Peaks, padded


@torch.inference_mode()
def logprobs(logits: Tensor, rows: IntArray, tokens: list[int], alternatives: int) -> list[TokenLogprob]:
    """One entry per token: logits [M, V], rows: which chose each token, alternatives: how many.

    Alternatives come best first, equal ones by id; tokens the model rules out (-inf) are not among them.
    """
    if not tokens:
        return []
    values = logits[torch.from_numpy(rows).to(logits.device)].float()
    peaks = Peaks.of(values)
    norms = (peaks.maximum + peaks.whole(torch.ones_like(peaks.maximum, dtype=torch.bool)).log())[:, None]
    own = (values.gather(1, torch.tensor(tokens, device=values.device)[:, None]) - norms)[:, 0].tolist()
    shown = _best(peaks, norms, alternatives) if alternatives else [[] for _ in tokens]
    return [TokenLogprob(*entry) for entry in zip(tokens, own, shown, strict=True)]


def _best(peaks: Peaks, norms: Tensor, count: int) -> list[list[tuple[int, float]]]:
    counts = torch.full((len(norms),), min(count, peaks.width), device=norms.device)
    entries = peaks.above(peaks.floor(counts))
    values = padded(entries.rows, entries.values, len(norms), -torch.inf)
    ids = padded(entries.rows, entries.ids, len(norms), 0)
    # Entries stand in the order of their ids, and a stable sort keeps it among equals.
    values, order = values.sort(dim=-1, descending=True, stable=True)
    ids, values = ids.gather(1, order)[:, :count], (values - norms)[:, :count]
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [[(i, v) for i, v in zip(*row, strict=True) if v > -torch.inf] for row in rows]
