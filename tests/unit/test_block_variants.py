"""DFlash, DFlash 2 and DSpark heads of many sizes and flags draft what a dense computation of the formats says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, FeatureRows, NullController, TargetInfo
from draftwing.drafters.block_drafter import BlockDrafter
from draftwing.drafters.tree import children
from draftwing.testing.drafters import View
from tests.dense_blocks import HIDDEN, TARGET_LAYERS, VOCAB, BlockVariant, DenseBlock, save_head
from tests.variants import TinyTarget, covering

SHARED: dict[str, Sequence[Any]] = {
    "block": (6, 2, 9),
    "windows": ((0, 0), (0,), (4, 4), (5, 0, 5), (1, 0)),
    "causal": (None, False, True),
    "heads": (4, 2),
    "kv_heads": (2, 1),
    "features": (3, 1, 5),
    "listed": (True, False),
    "bias": (False, True),
    "shaping": (False, True),
    "nested": (True, False),
    "own_head": (False, True),
}
OWN: dict[str, dict[str, Sequence[Any]]] = {
    "dflash": {},
    "dflash2": {"taps": (2, 1, 4), "top_k": (4, 1, VOCAB)},
    "dspark": {"markov": ("vanilla", "gated", "rnn"), "confidence": ("", "hidden", "markov")},
}
VARIANTS = [
    BlockVariant(method, **row) for method, more in OWN.items() for row in covering({**SHARED, **more}, draws=2_000)
]
TARGET = TinyTarget(VOCAB, HIDDEN)
PROMPT = 11


def drafter_of(method: str, folder: Path) -> BlockDrafter:
    drafter, checkpoint = BlockDrafter(method), open_checkpoint(str(folder))
    info = TargetInfo(VOCAB, 64, hidden_size=HIDDEN, layers=TARGET_LAYERS, model=TARGET, compile=False)
    drafter.bind(info, checkpoint)
    checkpoint.refuse_unread()
    drafter.reserve(16, 4)
    return drafter


def check_tree(draft: DraftTree, dense: DenseBlock, root: int, features: torch.Tensor, whole: bool) -> None:
    """Nodes have the probabilities of the formulas; where all that were asked for fit, they are the likeliest."""
    rows, below = dense.hidden(root, features), children(draft.parents)
    paths = {-1: [root]}
    assert draft.confidences is not None
    for node in range(len(draft)):
        paths[node] = [*paths[int(draft.parents[node])], int(draft.tokens[node])]
    for node in [-1, *range(len(draft))]:
        if not below[node]:
            continue
        shares, tokens = dense.shares(rows, paths[node]), draft.tokens[below[node]]
        wanted = shares[tokens].numpy()
        if dense.variant.confidence:
            sure = dense.confidence(rows, paths[node])
            others = wanted * (1 - sure) / (1 - float(shares.max()))
            wanted = np.where(tokens == int(shares.argmax()), sure, others)
        np.testing.assert_allclose(draft.confidences[below[node]], wanted, atol=3e-5, rtol=2e-3)
        if whole:
            np.testing.assert_allclose(shares[tokens], shares.sort(descending=True)[0][: len(tokens)], atol=2e-5)


def compare(variant: BlockVariant, formulas: BlockVariant, folder: Path) -> None:
    """A prompt in two chunks, a tree, a step that takes two nodes, and a chain."""
    dense = DenseBlock(formulas, save_head(variant, folder), TARGET.embed.weight, TARGET.head.weight)
    drafter = drafter_of(variant.method, folder)
    assert drafter.traits.hidden_layers == tuple(layer + 1 for layer in variant.layer_ids)
    depth = drafter.traits.max_depth
    assert depth == variant.block - variant.first_slot
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCAB - 1, (PROMPT + 4,), generator=draw).tolist()
    features = torch.randn(PROMPT + 3, variant.features, HIDDEN, generator=draw)

    def taken(start: int, stop: int) -> list[FeatureRows]:
        return [FeatureRows(start, features[start:stop].unbind(1))]

    view = View("it", tokens[: PROMPT + 1], PROMPT, SamplingParams(temperature=0, ignore_eos=True))
    view.table.extend(range(15, -1, -1))
    drafter.prefill([view], taken(0, 7))
    drafter.prefill([view], taken(7, PROMPT))
    (draft,) = drafter.propose([view], StepPlan("it", (DraftShape((2,) * depth, 7),)), NullController())
    check_tree(draft, dense, tokens[PROMPT], features[:PROMPT], whole=False)
    view.tokens += tokens[PROMPT + 1 :]
    drafter.commit([view], [Accepted(np.array([0, 1]), 3)], taken(PROMPT, PROMPT + 3))
    (draft,) = drafter.propose([view], StepPlan("it", (DraftShape((1,) * depth, depth),)), NullController())
    assert len(draft) == depth
    check_tree(draft, dense, tokens[-1], features, whole=True)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_head_drafts_what_the_formats_say(variant: BlockVariant, tmp_path: Path) -> None:
    compare(variant, variant, tmp_path)


@pytest.mark.parametrize(
    ("plain", "misread"),
    [
        (BlockVariant(windows=(4, 4)), {"causal": False}),
        (BlockVariant(windows=(4, 4)), {"windows": (5, 5)}),
        (BlockVariant(windows=(0, 0)), {"causal": True}),
        (BlockVariant(), {"shaping": True}),
        (BlockVariant("dflash2"), {"top_k": 2}),
        (BlockVariant("dspark", confidence="hidden"), {"confidence": ""}),
    ],
    ids=str,
)
def test_a_flag_that_is_misread_is_noticed(plain: BlockVariant, misread: dict[str, Any], tmp_path: Path) -> None:
    """The head is as the flag says, the formulas are without it."""
    compare(plain, plain, tmp_path)
    with pytest.raises(AssertionError):
        compare(plain, replace(plain, **misread), tmp_path)
