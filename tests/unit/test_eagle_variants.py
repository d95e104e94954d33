"""EAGLE heads of every dialect and flag draft what a dense computation of the formats says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters.base import Accepted, FeatureRows, NullController, TargetInfo
from draftwing.drafters.eagle import Eagle3Options, EagleOptions
from draftwing.drafters.eagle_drafter import EagleDrafter
from draftwing.drafters.tree import children, shape_of
from draftwing.testing.drafters import View
from tests.dense_eagle import (
    LAYER_IDS,
    TARGET_HIDDEN,
    TARGET_LAYERS,
    VOCAB,
    DenseEagle,
    Rows,
    Variant,
    layers_of,
    save_head,
)
from tests.variants import TinyTarget, covering

FACTORS: dict[str, Sequence[Any]] = {
    "dialect": ("safeailab", "specforge", "speculators", "deepspec"),
    "norm_before_residual": (False, True),
    "norm_before_fc": (False, True),
    "fc_norm": ("", "numbered", "legacy"),
    "norm_output": (False, True),
    "qk_norms": (False, True),
    "bias": (False, True),
    "layers": (1, 2, 3),
    "vocabulary": ("draft", "full", "target"),
    "hidden": (TARGET_HIDDEN, 12, 22),
    "embedding": ("own", "target"),
    "aux": (3, 0, 1, 5),
    "rope": ("", "default", "linear"),
    "kv_heads": (2, 1, 4),
}


EAGLE3 = [Variant(**row) for row in covering(FACTORS, lambda row: Variant(**row).sensible)]
EAGLE1 = [
    Variant(version=1, bias=bias, embedding=embedding, rope=rope, kv_heads=heads, vocabulary="target")
    for bias, embedding, (rope, heads) in product(
        (True, False), ("own", "target"), (("", 2), ("default", 1), ("linear", 4))
    )
]


TARGET = TinyTarget(VOCAB, TARGET_HIDDEN)


def drafter_of(variant: Variant, folder: Path) -> EagleDrafter:
    made = Eagle3Options if variant.version == 3 else EagleOptions
    drafter, checkpoint = EagleDrafter(made(path=str(folder), tree="static")), open_checkpoint(str(folder))
    drafter.bind(TargetInfo(VOCAB, 64, hidden_size=TARGET_HIDDEN, layers=TARGET_LAYERS, model=TARGET), checkpoint)
    checkpoint.refuse_unread()
    drafter.reserve(16, 4)
    return drafter


def check_tree(draft: DraftTree, root: Rows, dense: DenseEagle, branching: Sequence[int], position: int) -> None:
    """Every node's children are the likeliest ones, with their probabilities."""
    below, rows = children(draft.parents), {-1: (root, 0)}
    for node in [-1, *range(len(draft))]:
        if node >= 0:
            above, depth = rows[int(draft.parents[node])]
            if depth + 1 < len(branching):
                rows[node] = dense.run(int(draft.tokens[node]), above.recycled, position + depth, above), depth + 1
            else:
                assert not below[node]
                continue
        row, depth = rows[node]
        tokens = draft.tokens[below[node]]
        assert draft.confidences is not None
        assert len(tokens) == len(set(tokens.tolist())) == branching[depth]
        np.testing.assert_allclose(draft.confidences[below[node]], row.shares[tokens], atol=2e-5, rtol=1e-3)
        np.testing.assert_allclose(row.shares[tokens], row.shares.sort(descending=True)[0][: len(tokens)], atol=2e-5)


def compare(variant: Variant, formulas: Variant, folder: Path) -> None:
    """A prompt in two chunks, a tree, a step that takes one node, and a chain."""
    dense = DenseEagle(formulas, save_head(variant, folder), TARGET.embed.weight, TARGET.head.weight)
    drafter = drafter_of(variant, folder)
    assert drafter.traits.hidden_layers == layers_of(variant)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (9,), generator=draw).tolist()
    count = len(drafter.traits.hidden_layers)
    features = list(torch.randn(count, 12, TARGET_HIDDEN, generator=draw).unbind())
    view = View("it", tokens[:7], 6, SamplingParams(temperature=0, ignore_eos=True), table=list(range(15, -1, -1)))
    drafter.prefill([view], [FeatureRows(0, tuple(part[:4] for part in features))])
    drafter.prefill([view], [FeatureRows(4, tuple(part[4:6] for part in features))])
    for branching in ((2, 2, 1), (1, 1, 1)):
        nodes = sum(np.cumprod(branching).tolist())
        (draft,) = drafter.propose([view], StepPlan("it", (DraftShape(branching, nodes),)), NullController())
        root = dense.committed(view.tokens, features)
        check_tree(draft, root, dense, branching, len(view.tokens) - 1)
        if len(view.tokens) == 7:
            view.tokens += tokens[7:]
            accepted = Accepted(np.array([0]), 2)
            drafter.commit([view], [accepted], [FeatureRows(6, tuple(part[6:8] for part in features))])


@pytest.mark.parametrize("variant", [*EAGLE1, *EAGLE3], ids=str)
def test_a_head_drafts_what_the_formats_say(variant: Variant, tmp_path: Path) -> None:
    compare(variant, variant, tmp_path)


def test_a_tree_whose_nodes_are_named_is_drafted(tmp_path: Path) -> None:
    variant, paths = Variant(), ((0,), (1,), (2,), (1, 0), (1, 1), (2, 0), (1, 1, 0), (2, 0, 0), (2, 0, 1))
    dense = DenseEagle(variant, save_head(variant, tmp_path), TARGET.embed.weight, TARGET.head.weight)
    drafter = drafter_of(variant, tmp_path)
    features = list(torch.randn(3, 6, TARGET_HIDDEN, generator=torch.Generator().manual_seed(1)).unbind())
    view = View("it", [3, 1, 4, 1, 5, 9, 2], 6, SamplingParams(temperature=0), table=list(range(16)))
    drafter.prefill([view], [FeatureRows(0, tuple(features))])
    (draft,) = drafter.propose([view], StepPlan("it", (shape_of(paths),)), NullController())
    rows: dict[tuple[int, ...], Rows] = {(): dense.committed(view.tokens, features)}
    place: dict[tuple[int, ...], int] = {(): -1} | {path: node for node, path in enumerate(paths)}
    for path, token, parent in zip(paths, draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        above = rows[path[:-1]]
        assert (token, parent) == (int(above.shares.argsort(descending=True)[path[-1]]), place[path[:-1]])
        rows[path] = dense.run(token, above.recycled, len(view.tokens) - 2 + len(path), above)


def test_the_cover_has_every_flag_in_every_dialect() -> None:
    assert {(v.dialect, v.norm_output) for v in EAGLE3} == set(product(FACTORS["dialect"], (False, True)))
    assert {v.aux for v in EAGLE3} == {0, *LAYER_IDS}
    assert len(EAGLE3) < 120


@pytest.mark.parametrize(
    "misread", [{"norm_before_residual": True}, {"norm_output": True}, {"rope": "default"}, {"rope": "linear"}], ids=str
)
def test_a_flag_that_is_misread_is_noticed(misread: dict[str, Any], tmp_path: Path) -> None:
    """The head is as the flag says, the formulas are without it."""
    variant = Variant(layers=2, dialect="deepspec")
    flagged = replace(variant, **misread)
    with pytest.raises(AssertionError):
        compare(flagged, variant, tmp_path)
