"""What an EAGLE head has as context after a hole, a prefix hit, or a block that changed hands: by the formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from draftwing.core import DraftShape, SamplingParams, StepPlan
from draftwing.drafters.base import FeatureRows, NullController
from draftwing.drafters.eagle_drafter import EagleDrafter
from draftwing.testing.drafters import View
from tests.dense_eagle import TARGET_HIDDEN, VOCAB, DenseEagle, Rows, Variant, save_head
from tests.unit.test_eagle_variants import TARGET, check_tree, drafter_of

DRAW = torch.Generator().manual_seed(3)
TOKENS = torch.randint(0, VOCAB, (13,), generator=DRAW).tolist()
OTHERS = torch.randint(0, VOCAB, (13,), generator=DRAW).tolist()
FEATURES = list(torch.randn(3, 12, TARGET_HIDDEN, generator=DRAW).unbind())
SHAPE = DraftShape((2, 1), 4)
DIGESTS = [b"0", b"1", b"2"]


class World:
    def __init__(self, folder: Path) -> None:
        self.dense = DenseEagle(Variant(), save_head(Variant(), folder), TARGET.embed.weight, TARGET.head.weight)
        self.drafter: EagleDrafter = drafter_of(Variant(), folder)

    def view(self, name: str, table: list[int], chain: list[bytes], tokens: list[int] = TOKENS) -> View:
        params = SamplingParams(temperature=0, ignore_eos=True)
        return View(name, list(tokens), len(tokens) - 1, params, table=table, chain=chain)

    def run(self, view: View, start: int) -> None:
        """The target runs the prompt from `start` on, and the drafter drafts."""
        rows = tuple(part[start : len(view.tokens) - 1] for part in FEATURES)
        self.drafter.prefill([view], [FeatureRows(start, rows)])
        (self.draft,) = self.drafter.propose([view], StepPlan("it", (SHAPE,)), NullController())

    def check(self, known: int) -> None:
        """The latest draft is that after TOKENS, of which the features from `known` on are known."""
        rows: Rows | None = None
        for at in range(known + 1, len(TOKENS)):
            fused = self.dense.fused([part[at - 1] for part in FEATURES])
            rows = self.dense.run(TOKENS[at], fused, at - 1, rows)
        assert rows is not None
        check_tree(self.draft, rows, self.dense, SHAPE.branching, len(TOKENS) - 1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("start", [0, 1, 5, 8, 11])
def test_what_lies_before_the_first_features_is_no_context(world: World, start: int) -> None:
    world.run(world.view("a", [3, 2, 1, 0], []), start)
    world.check(start)
    assert world.drafter.holes == (start > 0)


def test_features_that_do_not_follow_those_before_begin_anew(world: World) -> None:
    for start in (3, 9):  # again, and with a gap
        view = world.view(f"from {start}", [3, 2, 1, 0], [])
        world.drafter.prefill([view], [FeatureRows(0, tuple(part[:7] for part in FEATURES))])
        world.run(view, start)
        world.check(start)
        world.drafter.release(view)


def test_a_prefix_hit_has_the_rows_of_the_sequence_before(world: World) -> None:
    first = world.view("a", [3, 2, 1, 0], DIGESTS)
    world.run(first, 0)
    world.drafter.release(first)
    world.run(world.view("b", [3, 2, 8, 9], DIGESTS[:2]), 8)
    world.check(0)
    assert world.drafter.holes == 0


def test_a_block_that_another_writes_is_no_hit_any_more(world: World) -> None:
    world.run(world.view("a", [3, 2, 1, 0], DIGESTS), 0)
    world.run(world.view("b", [2], [], OTHERS[:4]), 0)  # writes a part of the second block
    world.run(world.view("c", [3, 2, 8, 9], DIGESTS[:2]), 8)
    world.check(8)


def test_blocks_behind_a_hole_are_no_hit(world: World) -> None:
    world.run(world.view("a", [3, 2, 1, 0], DIGESTS), 3)
    world.run(world.view("b", [3, 2, 8, 9], DIGESTS[:2]), 8)
    world.check(8)


def test_a_sequence_that_lost_its_cache_starts_anew(world: World) -> None:
    """After a preemption it comes back under its id, and may have been given other blocks."""
    view = world.view("a", [3, 2, 1, 0], [], OTHERS)
    world.run(view, 0)
    world.drafter.release(view)
    world.run(world.view("a", [7, 6, 5, 4], []), 0)
    world.check(0)


def test_drafts_of_a_batch_keep_their_rows_apart(world: World) -> None:
    one, other = world.view("a", [3, 2, 1, 0], []), world.view("b", [7, 6, 5, 4], [], OTHERS)
    for view in (one, other):
        world.drafter.prefill([view], [FeatureRows(0, tuple(FEATURES))])
    chain = DraftShape((1, 1, 1), 3)
    alone = [world.drafter.propose([view], StepPlan("it", (chain,)), NullController())[0] for view in (one, other)]
    both = world.drafter.propose([one, other], StepPlan("it", (chain,) * 2), NullController())
    for draft, its_own in zip(both, alone, strict=True):
        assert draft.tokens.tolist() == its_own.tokens.tolist()
        assert draft.confidences is not None
        assert its_own.confidences is not None
        np.testing.assert_allclose(draft.confidences, its_own.confidences, rtol=1e-4)
