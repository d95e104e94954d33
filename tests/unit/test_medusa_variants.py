"""Medusa heads of every layout and size draft what a dense computation of the formats says."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.core import DraftShape, SamplingParams, StepPlan
from draftwing.drafters.base import FeatureRows, NullController, TargetInfo
from draftwing.drafters.medusa import MedusaOptions
from draftwing.drafters.medusa_drafter import MedusaDrafter
from draftwing.drafters.tree import children, depths
from draftwing.testing.drafters import View
from tests.variants import TinyTarget, covering

VOCAB, HIDDEN, DRAFT_VOCAB = 47, 16, 29
TARGET = TinyTarget(VOCAB, HIDDEN)
# The names of a head's blocks and of its projection; None: the target's own is used.
LAYOUTS: dict[str, tuple[str, str | None]] = {
    "heads": ("{head}.{block}.linear", "{head}.{blocks}"),
    "merged": ("medusa_head.{head}.{block}.linear", "medusa_head.{head}.{blocks}"),
    "legacy": ("{head}.{block}.linear", None),
    "merged legacy": ("medusa_head.{head}.{block}.linear", None),
    "converted": ("blocks.{head}.layers.{block}", "lm_heads.{head}"),
    "converted, mapped": ("medusa_heads.blocks.{head}.layers.{block}", "medusa_heads.lm_heads.{head}"),
}
FACTORS: dict[str, Sequence[Any]] = {
    "layout": tuple(LAYOUTS),
    "heads": (4, 1, 2, 11),
    "blocks": (1, 2, 3),
    "bias": (True, False),
}
ROWS = list(covering(FACTORS, draws=3_000))


def save(folder: Path, layout: str, heads: int, blocks: int, bias: bool) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(heads)
    block_name, projection = LAYOUTS[layout]
    made: dict[str, Tensor] = {}
    size = DRAFT_VOCAB if "mapped" in layout else VOCAB
    for head in range(heads):
        for block in range(blocks):
            name = block_name.format(head=head, block=block)
            made[f"{name}.weight"] = torch.randn(HIDDEN, HIDDEN, generator=draw) / math.sqrt(HIDDEN)
            if bias:
                made[f"{name}.bias"] = torch.randn(HIDDEN, generator=draw)
        if projection is not None:
            made[f"{projection.format(head=head, blocks=blocks)}.weight"] = torch.randn(size, HIDDEN, generator=draw)
    if "mapped" in layout:
        made["medusa_heads.token_map"] = torch.randperm(VOCAB, generator=draw)[:size]
    stored = dict(made)
    if "merged" in layout:
        stored["model.embed_tokens.weight"] = torch.zeros(2, 2)  # the target's own lie beside them
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 1}))  # published configs understate it
    return made


def shares(tensors: dict[str, Tensor], layout: str, head: int, blocks: int, hidden: Tensor) -> Tensor:
    """[V] of one head."""
    block_name, projection = LAYOUTS[layout]
    x = hidden.double()
    for block in range(blocks):
        name = block_name.format(head=head, block=block)
        y = tensors[f"{name}.weight"].double() @ x
        x = x + silu(y + tensors[f"{name}.bias"].double() if f"{name}.bias" in tensors else y)
    own = None if projection is None else tensors[f"{projection.format(head=head, blocks=blocks)}.weight"]
    found = ((TARGET.head.weight if own is None else own).double() @ x).softmax(0)
    ids = tensors.get("medusa_heads.token_map", torch.arange(len(found)))
    return torch.zeros(VOCAB, dtype=torch.float64).index_copy(0, ids, found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_heads_draft_what_the_formats_say(row: dict[str, Any], tmp_path: Path) -> None:
    tensors = save(tmp_path, **row)
    drafter, checkpoint = MedusaDrafter(MedusaOptions(path=str(tmp_path))), open_checkpoint(str(tmp_path))
    drafter.bind(TargetInfo(VOCAB, 64, hidden_size=HIDDEN, layers=3, model=TARGET), checkpoint)
    checkpoint.refuse_unread()
    assert drafter.traits.max_depth == row["heads"]
    hidden = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(1))
    view = View("it", [4, 8, 1, 9, 3, 2, 7], 6, SamplingParams(temperature=0, ignore_eos=True))
    drafter.prefill([view], [FeatureRows(0, (hidden,))])
    branching = (3, 2, *(1,) * row["heads"])[: row["heads"]]
    (draft,) = drafter.propose([view], StepPlan("it", (DraftShape(branching, 40),)), NullController())
    assert draft.confidences is not None
    assert depths(draft.parents).max() == row["heads"] or len(draft) == 40
    for node, below in enumerate(children(draft.parents)):
        above = 0 if node == len(draft) else int(depths(draft.parents)[node])
        if not below:
            continue
        wanted = shares(tensors, row["layout"], above, row["blocks"], hidden[-1])
        assert len(below) == branching[above]
        np.testing.assert_allclose(draft.confidences[below], wanted[draft.tokens[below]], atol=2e-5, rtol=1e-3)
        best = wanted.sort(descending=True)[0][: len(below)]
        np.testing.assert_allclose(wanted[draft.tokens[below]], best, atol=2e-5)
