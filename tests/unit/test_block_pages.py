"""What a block drafter has as context after a hole, a prefix hit, or a block that changed hands: by the formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters.base import FeatureRows, NullController
from draftwing.testing.drafters import View
from tests.dense_blocks import HIDDEN, VOCAB, BlockVariant, DenseBlock, save_head
from tests.unit.test_block_variants import TARGET, check_tree, drafter_of

DRAW = torch.Generator().manual_seed(3)
FEATURES, OTHERS = (torch.randn(12, 3, HIDDEN, generator=DRAW) for _ in range(2))
ROOT = 7
SHAPE = DraftShape((1, 1, 1), 3)
DIGESTS = [b"0", b"1", b"2"]


class World:
    def __init__(self, folder: Path) -> None:
        variant = BlockVariant(windows=(0, 9))
        self.dense = DenseBlock(variant, save_head(variant, folder), TARGET.embed.weight, TARGET.head.weight)
        self.drafter = drafter_of("dflash", folder)

    def view(self, name: str, table: list[int], chain: list[bytes], length: int = 13) -> View:
        tokens = [*(at % VOCAB for at in range(length - 1)), ROOT]
        return View(name, tokens, length - 1, SamplingParams(temperature=0, ignore_eos=True), table=table, chain=chain)

    def run(self, view: View, start: int, features: torch.Tensor = FEATURES) -> None:
        """The target runs the prompt from `start` on, and the drafter drafts."""
        self.drafter.prefill([view], [FeatureRows(start, features[start : len(view.tokens) - 1].unbind(1))])
        (self.draft,) = self.propose(view)

    def propose(self, *views: View) -> list[DraftTree]:
        return self.drafter.propose(views, StepPlan("it", (SHAPE,) * len(views)), NullController())

    def check(self, known: int, features: torch.Tensor = FEATURES) -> None:
        """The latest draft has the features from `known` on as context."""
        assert len(self.draft) == SHAPE.nodes
        check_tree(self.draft, self.dense, ROOT, features[known:], whole=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("start", [0, 1, 5, 8, 11])
def test_what_lies_before_the_first_features_is_no_context(world: World, start: int) -> None:
    world.run(world.view("a", [3, 2, 1, 0], []), start)
    world.check(start)
    assert world.drafter.holes == start


def test_what_never_came_in_between_ends_the_context_before(world: World) -> None:
    view = world.view("a", [3, 2, 1, 0], [])
    world.drafter.prefill([view], [FeatureRows(0, FEATURES[:4].unbind(1))])
    assert len(world.propose(view)[0]) == 0
    world.run(view, 6)
    world.check(6)


def test_features_that_come_twice_count_once(world: World) -> None:
    view = world.view("a", [3, 2, 1, 0], [])
    world.drafter.prefill([view], [FeatureRows(0, FEATURES[:7].unbind(1))])
    world.run(view, 4)
    world.check(0)


def test_a_prefix_hit_has_the_rows_of_the_sequence_before(world: World) -> None:
    first = world.view("a", [3, 2, 1, 0], DIGESTS)
    world.run(first, 0)
    world.drafter.release(first)
    world.run(world.view("b", [3, 2, 8, 9], DIGESTS[:2]), 8)
    world.check(0)
    assert world.drafter.holes == 0


def test_a_block_that_another_writes_is_no_hit_any_more(world: World) -> None:
    world.run(world.view("a", [3, 2, 1, 0], DIGESTS), 0)
    world.run(world.view("b", [2], [], 4), 0, OTHERS)  # writes a part of the second block
    world.run(world.view("c", [3, 2, 8, 9], DIGESTS[:2]), 8)
    world.check(8)


def test_a_block_with_a_hole_is_no_hit(world: World) -> None:
    world.run(world.view("a", [3, 2, 1, 0], DIGESTS), 3)
    world.run(world.view("b", [3, 2, 8, 9], DIGESTS[:2]), 8)
    world.check(8)


def test_a_sequence_that_lost_its_cache_starts_anew(world: World) -> None:
    """After a preemption it comes back under its id, and may have been given other blocks."""
    view = world.view("a", [3, 2, 1, 0], [])
    world.run(view, 0, OTHERS)
    world.drafter.release(view)
    world.run(world.view("a", [7, 6, 5, 4], []), 0)
    world.check(0)


def test_blocks_of_a_batch_keep_their_rows_apart(world: World) -> None:
    views = [world.view("a", [3, 2, 1, 0], []), world.view("b", [7, 6, 5, 4], [])]
    for view, features in zip(views, (FEATURES, OTHERS), strict=True):
        world.drafter.prefill([view], [FeatureRows(0, features.unbind(1))])
    for draft, features in zip(world.propose(*views), (FEATURES, OTHERS), strict=True):
        world.draft = draft
        world.check(0, features)
