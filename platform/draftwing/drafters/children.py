"""Which children a drafter gives a node: the top of log q + g under the target's own noise (rule R1).

With the same noise, temperature, bias, masks and penalties as the target, drafter and target pick the same token about
as often as their distributions allow; the top of q alone would be picked as if the request were greedy. At temperature
0 both are the same. (Daliri, Musco, Suresh: Coupling without Communication and Drafter-Invariant Speculative Decoding,
2024.)

Shapes: M nodes, W children of each, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwing.core import DraftSources, FloatArray, IntArray
from draftwing.engine.noise import gumbel
from draftwing.engine.processors import SampleRows, process, to_device

HASHED = 64  # best entries of q whose noise is drawn; a lower one wins too seldom to pay for


@dataclass(frozen=True, slots=True)
class Children:
    """tokens [M, W], best first; confidences [M, W]: q of each given its parent, after temperature.

    With noise that is a draw without replacement from `sources`: Gumbel noise on log q is one (Kool, van Hoof, Welling:
    Stochastic Beams and Where to Find Them, 2019).
    """

    tokens: IntArray
    confidences: FloatArray
    sources: DraftSources


@torch.inference_mode()
def children(logits: Tensor, rows: SampleRows, width: int) -> Children:
    """The `width` best children of each node: logits [M, V] of the drafter, rows as of the target's own choice."""
    values = process(logits, rows)
    top = values.topk(min(max(HASHED, width), values.shape[1]), dim=-1)
    keys = np.array([s.key for s in rows.sequences], dtype=np.int64)[rows.seq_of_row]
    noise = gumbel(to_device(keys, values), to_device(rows.positions, values), top.indices)
    noisy = to_device(rows.parameter("temperature") > 0, values)[:, None]
    best = torch.where(noisy, top.values + noise, top.values).topk(min(width, top.values.shape[1]), dim=-1).indices
    chosen = top.values.gather(1, best)
    confidences = (chosen - values.logsumexp(-1, keepdim=True)).exp()
    sources = DraftSources(top.indices.cpu().numpy(), top.values.softmax(-1).cpu().numpy())
    return Children(top.indices.gather(1, best).cpu().numpy(), confidences.float().cpu().numpy(), sources)


def in_target_ids(logits: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """logits [M, V_d] of a drafter -> [M, vocab_size]: tokens that it doesn't know are never drafted.

    ids [V_d]: the target's id of each column, None where they are the same.
    """
    if ids is None:
        return logits[:, :vocab_size]
    return logits.new_full((len(logits), vocab_size), -torch.inf).index_copy_(1, ids.to(logits.device), logits)
