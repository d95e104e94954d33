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
from draftwing.engine.processors import SampleRows, edited, process, to_device
from draftwing.engine.selection import largest

HASHED = 64  # best entries of q whose noise is drawn; a lower one wins too seldom to pay for
LEAST = 1e-30  # near temperature 0 a second child has a smaller share, and none would mean no child


@dataclass(frozen=True, slots=True)
class Children:
    """tokens [M, W], best first; confidences [M, W]: how sure the drafter is of each, given its parent.

    A confidence is a token's share of the softmax over the scores that it was picked by: its probability q at
    temperature 0, and above that how far its noisy score leads all others. A target that nearly agrees picks the same
    token the likelier the farther it leads, however unlikely it was before the noise.

    With noise that is a draw without replacement from `sources`: Gumbel noise on log q is one (Kool, van Hoof, Welling:
    Stochastic Beams and Where to Find Them, 2019). None: nobody asked.
    """

    tokens: IntArray
    confidences: FloatArray
    sources: DraftSources | None = None

    def take(self, rows: IntArray) -> Children:
        sources = self.sources and DraftSources(self.sources.ids[rows], self.sources.weights[rows])
        return Children(self.tokens[rows], self.confidences[rows], sources)


@torch.inference_mode()
def children(
    logits: Tensor,
    rows: SampleRows,
    width: int,
    ids: Tensor | None = None,
    vocab_size: int | None = None,
    *,
    sources: bool = False,
) -> Children:
    """The `width` best children of each node: logits [M, V] of the drafter, rows as of the target's own choice.

    ids, vocab_size: as for `in_target_ids`, where the logits are over a draft vocabulary. sources: wanted too; they are
    equally many in all calls of a drafter.
    """
    noisy = rows.parameter("temperature") > 0
    count = min(max(HASHED, width) if sources or noisy.any() else width, logits.shape[1])
    if ids is not None and vocab_size is not None and edited(rows):
        logits, ids = in_target_ids(logits, ids, vocab_size), None
    values = process(logits[:, :vocab_size] if ids is None else logits, rows)
    top, places = largest(values, count)
    tokens = places if ids is None else ids.to(places.device)[places]
    scores = top
    if noisy.any():
        keys = np.array([s.key for s in rows.sequences], dtype=np.int64)[rows.seq_of_row]
        noise = gumbel(to_device(keys, values), to_device(rows.positions, values), tokens)
        drawn = to_device(noisy, values)[:, None]
        scores = torch.where(drawn, top + noise, top)
    best = scores.topk(min(width, scores.shape[1]), dim=-1).indices
    shares = scores.softmax(-1).gather(1, best)
    if not noisy.all():
        plain = values.softmax(-1).gather(1, places.gather(1, best))
        shares = torch.where(drawn, shares, plain) if noisy.any() else plain
    shares = shares.clamp_min_(LEAST).masked_fill_(scores.gather(1, best) == -torch.inf, 0)
    drawn_from = DraftSources(tokens.cpu().numpy(), top.softmax(-1).cpu().numpy()) if sources else None
    return Children(tokens.gather(1, best).cpu().numpy(), shares.cpu().numpy(), drawn_from)


def in_target_ids(logits: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """logits [M, V_d] of a drafter -> [M, vocab_size]: tokens that it doesn't know are never drafted.

    ids [V_d]: the target's id of each column, None where they are the same.
    """
    if ids is None:
        return logits[:, :vocab_size]
    return logits.new_full((len(logits), vocab_size), -torch.inf).index_copy_(1, ids.to(logits.device), logits)
