from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwing.core import IntArray
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.testing.mock_target import MockBehaviour, MockCacheError, MockTarget

PATH = [3, 1, 4, 1, 5, 9, 2, 6]
SLOTS = np.array([40, 7, 8, 9, 2, 30, 31, 5, 11, 12, 13], dtype=np.int64)


def rows(
    tokens: list[int],
    slots: Sequence[int] | IntArray,
    kv_len: int,
    parents: list[int] | None = None,
    wanted: int | None = None,
) -> SequenceRows:
    order = chain_parents(len(tokens)) if parents is None else np.array(parents)
    return SequenceRows(np.array(tokens), order, np.asarray(slots), kv_len, len(tokens) if wanted is None else wanted)


def after(target: MockTarget, *paths: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.stack([target.logits_after(p) for p in paths]))


def test_chunks_give_the_logits_of_the_whole_path() -> None:
    target = MockTarget()
    target.forward([rows(PATH[:3], SLOTS[:3], 0, wanted=0)])
    got = target.forward([rows(PATH[3:], SLOTS[:8], 3)])
    assert torch.equal(got, after(target, *(PATH[: n + 1] for n in range(3, 8))))


def test_tree_rows_see_their_ancestors_alone() -> None:
    target = MockTarget()
    target.forward([rows(PATH[:4], SLOTS[:4], 0, wanted=1)])
    got = target.forward([rows([5, 10, 11, 20, 21], SLOTS[:9], 4, [-1, 0, 0, 1, 2])])
    head = [*PATH[:4], 5]
    assert torch.equal(got, after(target, head, [*head, 10], [*head, 11], [*head, 10, 20], [*head, 11, 21]))


def test_after_a_right_compaction_the_next_step_is_right() -> None:
    target = MockTarget()
    target.forward([rows(PATH[:4], SLOTS[:4], 0, wanted=1)])
    target.forward([rows([5, 10, 11, 20, 21], SLOTS[:9], 4, [-1, 0, 0, 1, 2])])
    target.move(SLOTS[[6, 8]], SLOTS[[5, 6]])  # nodes 11 and 21 accepted
    got = target.forward([rows([33], SLOTS[:8], 7)])
    assert torch.equal(got, after(target, [*PATH[:4], 5, 11, 21, 33]))


@pytest.mark.parametrize(
    ("source", "to", "then"),
    [
        ([5, 7], [5, 6], SLOTS[:8]),  # the other branch's rows
        ([6, 8], [6, 5], SLOTS[:8]),  # swapped
        ([], [], SLOTS[:8]),  # not moved
        ([6, 8], [5, 6], SLOTS[[1, 0, 2, 3, 4, 5, 6, 7]]),  # slots out of order
    ],
)
def test_a_wrong_compaction_or_slot_shows(source: list[int], to: list[int], then: IntArray) -> None:
    target = MockTarget()
    target.forward([rows(PATH[:4], SLOTS[:4], 0, wanted=1)])
    target.forward([rows([5, 10, 11, 20, 21], SLOTS[:9], 4, [-1, 0, 0, 1, 2])])
    target.move(SLOTS[source], SLOTS[to])
    got = target.forward([rows([33], then, 7)])
    assert not torch.equal(got, after(target, [*PATH[:4], 5, 11, 21, 33]))


def test_a_row_computed_in_another_context_shows_even_with_the_right_token() -> None:
    """As in a transformer: a cached row depends on what its row saw, not on its token alone."""
    target = MockTarget()
    target.forward([rows(PATH[:4], SLOTS[:4], 0, wanted=1)])
    target.forward([rows([5, 10, 11, 20, 20], SLOTS[:9], 4, [-1, 0, 0, 1, 2])])
    target.move(SLOTS[[6, 7]], SLOTS[[5, 6]])  # 11, then the 20 that followed 10
    got = target.forward([rows([33], SLOTS[:8], 7)])
    assert not torch.equal(got, after(target, [*PATH[:4], 5, 11, 20, 33]))


def test_a_wrong_mask_shows() -> None:
    target = MockTarget()
    got = target.forward([rows([5, 10, 11], SLOTS[:3], 0, [-1, 0, 1])])
    assert not torch.equal(got, after(target, [5], [5, 10], [5, 11]))


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (rows([1], SLOTS[:3], 2), "never written"),
        (rows([1, 2], [4, 4], 0), "written twice"),
        (rows([1], [4096], 0), "outside the cache"),
        (rows([64], [0], 0), "outside the vocabulary"),
        (rows([1, 2], [0, 1], 0, [-1, 1]), "parents come first"),
    ],
)
def test_impossible_requests_raise(bad: SequenceRows, match: str) -> None:
    with pytest.raises(MockCacheError, match=match):
        MockTarget().forward([bad])


def test_writing_over_another_sequences_rows_raises() -> None:
    target = MockTarget()
    target.forward([rows(PATH[:3], SLOTS[:3], 0)])
    with pytest.raises(MockCacheError, match="written in the same forward"):
        target.forward([rows([5], SLOTS[:4], 3), rows([6], [7], 0)])


def test_moves_are_checked() -> None:
    target = MockTarget()
    target.forward([rows(PATH[:3], SLOTS[:3], 0)])
    with pytest.raises(MockCacheError, match="never written"):
        target.move(np.array([99]), np.array([1]))
    with pytest.raises(MockCacheError, match="distinct target"):
        target.move(SLOTS[:2], np.array([1, 1]))


def entropy(behaviour: MockBehaviour) -> float:
    logits = MockTarget(behaviour).logits_after(PATH).astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return float(-(p * np.log(p + 1e-300)).sum())


def test_sharpness_sets_the_entropy() -> None:
    assert entropy(MockBehaviour(sharpness=0)) == pytest.approx(np.log(64))
    assert np.log(64) > entropy(MockBehaviour(sharpness=1)) > entropy(MockBehaviour(sharpness=4))


def test_seed_and_vocabulary() -> None:
    a, b = (MockTarget(MockBehaviour(vocab_size=300, seed=s)).logits_after(PATH) for s in (0, 1))
    assert a.shape == (300,)
    assert not np.array_equal(a, b)
    assert abs(a.mean()) < 0.6
    assert 2.5 < a.std() < 3.5


def test_an_order_makes_text_repeat_and_surprise_keeps_it_history_bound() -> None:
    def greedy(behaviour: MockBehaviour, length: int = 80) -> list[int]:
        target, path = MockTarget(behaviour), [1]
        for _ in range(length):
            path.append(int(target.logits_after(path).argmax()))
        return path

    loops = greedy(MockBehaviour(vocab_size=16, order=1, surprise=0))
    assert loops[-20:] == loops[-40:-20] or len(set(loops[-40:])) < 16
    pairs = list(pairwise(loops))
    assert len(set(pairs)) <= 16  # a function of one token
    other = greedy(MockBehaviour(vocab_size=16, order=1, surprise=1))
    assert len(set(pairwise(other))) > len(set(other))


def test_grid_makes_ties() -> None:
    logits = MockTarget(MockBehaviour(sharpness=1, grid=0.5)).logits_after(PATH)
    assert len(np.unique(logits)) < 20


def test_eos_comes_as_often_as_asked() -> None:
    target = MockTarget(MockBehaviour(eos_id=2, eos_rate=0.25))
    best = [int(target.logits_after([a, b]).argmax()) for a in range(20) for b in range(20)]
    assert 0.18 < np.mean([token == 2 for token in best]) < 0.32
    assert MockTarget(MockBehaviour(eos_id=2)).logits_after(PATH)[2] == -100


def test_set_distribution_and_nan() -> None:
    table = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    behaviour = MockBehaviour(vocab_size=4, distribution=lambda path: table, nan_after=lambda path: path == (1, 2))
    target = MockTarget(behaviour)
    got = target.forward([rows([1, 2, 3], [0, 1, 2], 0)])
    assert torch.equal(got[0], torch.from_numpy(table.astype(np.float32)))
    assert got[1].isnan().all()
    assert not got[2].isnan().any()
