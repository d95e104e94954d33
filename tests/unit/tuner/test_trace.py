"""Traces come back from disk as they were, and what doesn't fit together is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core import DraftTree
from draftwing.errors import ConfigError
from draftwing_tuner.trace import Proposals, Trace, TraceRequest, level_order, read_trace, write_trace


@st.composite
def trees(draw: st.DrawFn, confident: bool) -> DraftTree:
    size = draw(st.integers(0, 8))
    parents = np.array([draw(st.integers(-1, node - 1)) for node in range(size)], dtype=np.int64)
    tokens = np.array(draw(st.permutations(range(100, 120)))[:size], dtype=np.int64)
    parts = draw(st.lists(st.integers(0, 1024), min_size=size, max_size=size))
    return DraftTree(tokens, parents, (np.array(parts) / 1024).astype(np.float32) if confident else None)


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Of each node, in the order of nodes."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def same(one: DraftTree, other: DraftTree) -> bool:
    assert (one.confidences is None) == (other.confidences is None)
    confident = one.confidences is None or np.array_equal(one.confidences, np.asarray(other.confidences))
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.parents, other.parents) and confident


def small_trace() -> Trace:
    draft = DraftTree(np.array([5, 6, 7]), np.array([-1, -1, 0]), np.array([0.5, 0.25, 1.0], dtype=np.float32))
    requests = (
        TraceRequest("a", "code", 3, (5, 7, 9), prompt=(1, 2, 3), temperature=0.7, seed=2**64 - 1),
        TraceRequest("b", "chat", 900, (4,)),
    )
    sure = (Proposals.of([DraftTree.empty(), draft, DraftTree.empty()]), Proposals.of([DraftTree.empty()]))
    chains = tuple(Proposals.of([DraftTree.chain([8])] * len(request.output)) for request in requests)
    return Trace(requests, {"small": sure, "ngram": chains}, {"model": "none"})


def test_a_trace_comes_back(tmp_path: Path) -> None:
    trace = small_trace()
    write_trace(trace, tmp_path)
    back = read_trace(tmp_path)
    assert back.requests == trace.requests
    assert back.about == trace.about
    assert set(back.proposals) == {"small", "ngram"}
    for name, proposals in trace.proposals.items():
        for one, other, request in zip(proposals, back.proposals[name], trace.requests, strict=True):
            assert all(same(one.at(i), other.at(i)) for i in range(len(request.output) + 2))


@given(st.booleans().flatmap(lambda sure: st.lists(trees(sure), min_size=1, max_size=5)))
def test_proposals_keep_every_tree(drafts: list[DraftTree]) -> None:
    proposals = Proposals.of(drafts)
    for position, draft in enumerate(drafts):
        ordered = proposals.at(position)
        assert sorted(paths(ordered)) == sorted(paths(draft))
        depths = [len(path) for path in paths(ordered)]
        assert depths == sorted(depths)
        for path in {path[:-1] for path in paths(draft)}:  # siblings stay in order
            children = [[p for p in paths(tree) if p[:-1] == path] for tree in (draft, ordered)]
            assert children[0] == children[1]
    assert len(proposals.at(len(drafts))) == 0


def test_level_order_of_two_chains() -> None:
    tree = DraftTree(np.array([1, 2, 3, 4]), np.array([-1, 0, -1, 2]))
    ordered = level_order(tree)
    assert ordered.tokens.tolist() == [1, 3, 2, 4]
    assert ordered.parents.tolist() == [-1, -1, 0, 1]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    trace = small_trace()
    with pytest.raises(ConfigError, match=r"none holds no trace; expected what `draftwing tune collect` wrote"):
        read_trace(tmp_path / "none")
    (tmp_path / "requests.parquet").write_text("not Parquet")
    with pytest.raises(ConfigError, match=r"requests.parquet can't be read"):
        read_trace(tmp_path)
    first, second = trace.proposals["ngram"]
    broken = {
        "come": replace(first, parents=np.array([1, -1, -1])),
        "don't fit": replace(first, starts=np.array([0, 3])),
    }
    for message, wrong in broken.items():
        write_trace(replace(trace, proposals={"ngram": (wrong, second)}), tmp_path)
        with pytest.raises(ConfigError, match=message):
            read_trace(tmp_path)
    write_trace(replace(trace, requests=trace.requests[::-1]), tmp_path)
    write_trace(replace(trace, requests=trace.requests[:1], proposals={}), tmp_path)
    with pytest.raises(ConfigError, match="ids are not those"):
        read_trace(tmp_path)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwing_tuner.trace.SCHEMA", 2)
    write_trace(small_trace(), tmp_path)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="schema version 2; this version of draftwing reads 1"):
        read_trace(tmp_path)
