"""A target on two ranks: token for token what one rank gives, whoever drafts; and each rank holds its share alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwing.checkpoints.split import CHECKED, experts_of
from draftwing.config_models import Config
from draftwing.engine.build import build_engine
from draftwing.parallel.capacity import Hardware, plan_capacity
from tests.integration.sharded_tools import (
    Outcome,
    decode,
    prompts_of,
    random_eagle3,
    random_medusa,
    run_pair,
)
from tests.random_targets import TARGETS, VOCAB, config_of, save_random
from tests.tiny_models import GOLDENS, golden

SIZES = {"llama8": (64, 160), "qwen3_8": (48, 192), "gemma3_6": (32, 128), "mixtral3": (32, 128)}
CUTS = [(name, "tensor") for name in SIZES] + [("mixtral3", "expert")]
PUBLISHED = {"eagle": "eagle1_bias", "eagle3": "eagle3_d2t", "medusa": "medusa1"}  # heads of llama8
RANDOM = {"eagle3": random_eagle3, "medusa": random_medusa}
DRAFTING = {
    "none": (None, "off"),
    "ngram": ("ngram", "fixed:k=4"),
    "ngram trees": ("ngram", "fixed:tree=3x2x1"),
    "eagle": ("eagle", "fixed:k=4"),
    "eagle3": ("eagle3", "fixed:k=4"),
    "eagle3 trees": ("eagle3", "fixed:tree=3x2x1"),
    "medusa": ("medusa", "fixed:k=3"),
    "medusa trees": ("medusa", "fixed:tree=3x2x1"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))


def document(name: str, drafting: str, heads: Path, **parallel: int) -> dict[str, Any]:
    """A config with small blocks and chunks, and too little cache for all requests at once."""
    method, mode = DRAFTING[drafting]
    hidden, vocab = SIZES[name]
    entry: dict[str, Any] = {"method": method}
    if method in PUBLISHED and name == "llama8":
        entry["path"] = str(GOLDENS / PUBLISHED[method] / "drafter")
    elif method in RANDOM:
        folder = heads / name / method
        entry["path"] = str(folder)
        if not folder.exists():
            RANDOM[method](folder, hidden, vocab)
    return {
        "model": {"path": str(golden(name)), "cpu_threads": 1, "compile": False},
        "parallel": parallel,
        "drafters": [entry] if method else [],
        "policy": {"mode": mode},
        "limits": {"prefill_chunk": 7, "sequences": 4, "batch_tokens": 64, "context": 128},
        "cache": {"tokens": 160, "block_tokens": 8},
    }


def test_two_ranks_at_a_glance(tmp_path: Path) -> None:
    chosen = [
        ("llama8", "tensor", "eagle3 trees", "sampled"),
        ("llama8", "tensor", "eagle", "greedy"),  # it takes the target's head
        ("gemma3_6", "tensor", "eagle3", "greedy"),  # and this one its embedding
        ("mixtral3", "expert", "ngram trees", "sampled"),
    ]
    jobs = [
        (document(name, drafting, tmp_path, **{axis: 2}), prompts_of(SIZES[name][1], kind))
        for name, axis, drafting, kind in chosen
    ]
    for (name, axis, drafting, kind), got in zip(chosen, run_pair(jobs), strict=True):
        config = Config.model_validate(document(name, drafting, tmp_path))
        one = decode(build_engine(config), prompts_of(SIZES[name][1], kind))
        assert got.tokens == one.tokens, name
        assert got.accepted == one.accepted, name  # the drafter saw the very hidden states
        check_shares(name, axis, got, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "axis"), CUTS)
def test_two_ranks_give_the_tokens_of_one(name: str, axis: str, tmp_path: Path) -> None:
    _, vocab = SIZES[name]
    known = [drafting for drafting in DRAFTING if drafting != "eagle" or name == "llama8"]
    kinds = [(drafting, kind) for drafting in known for kind in ("greedy", "sampled")]
    cut = [(document(name, drafting, tmp_path, **{axis: 2}), prompts_of(vocab, kind)) for drafting, kind in kinds]
    got = dict(zip(kinds, run_pair(cut), strict=True))
    for kind in ("greedy", "sampled"):
        plain = decode(build_engine(Config.model_validate(document(name, "none", tmp_path))), prompts_of(vocab, kind))
        for drafting in known:
            assert got[drafting, kind].tokens == plain.tokens, (drafting, kind)
    check_work(name, got)
    check_shares(name, axis, got["none", "greedy"], tmp_path)


def check_work(name: str, got: dict[tuple[str, str], Outcome]) -> None:
    """Drafts were taken, cache ran short, prefixes were found; and no packet was longer than it may be."""
    assert all(outcome.failures == 0 for outcome in got.values())
    assert got["ngram", "greedy"].hits > 0
    assert sum(outcome.preemptions for outcome in got.values()) > 0
    if name == "llama8":
        assert got["eagle3", "greedy"].accepted > 5
        assert got["eagle3 trees", "greedy"].branched > 0
        assert got["medusa trees", "sampled"].accepted > 0
    for outcome in got.values():
        assert outcome.words
        assert all(4 * words <= 16 * rows + 4096 for words, rows, _ in outcome.words)


def check_shares(name: str, axis: str, outcome: Outcome, heads: Path) -> None:
    """Rank 0 holds what the capacity plan says of it, in weights and in cache."""
    plan = plan_capacity(Config.model_validate(document(name, "none", heads, **{axis: 2})), Hardware(None, 2))
    assert 4 * outcome.weights == plan.weight_bytes_per_rank
    assert 4 * outcome.kv_per_token == plan.kv_bytes_per_token_per_rank
    assert plan.weight_bytes_per_rank < 0.62 * plan.weight_bytes


@pytest.mark.slow
def test_every_architecture_that_may_be_cut(tmp_path: Path) -> None:
    """Windows, caps, biases, shared experts and latents, drafted for by trees: the tokens of one rank."""
    names = [name for name in TARGETS if config_of(name).model_type in CHECKED]
    assert {config_of(name).model_type for name in names} == set(CHECKED)
    cuts = [(name, "tensor") for name in names] + [(n, "expert") for n in names if experts_of(config_of(n))]
    for name in names:
        save_random(name, tmp_path / name)
    jobs = []
    for name, axis in cuts:
        base = document("llama8", "ngram trees", tmp_path, **{axis: 2})
        base["model"]["path"] = str(tmp_path / name)
        jobs.append((base, prompts_of(VOCAB, "greedy")))
    for (name, axis), (base, requests), got in zip(cuts, jobs, run_pair(jobs), strict=True):
        one = decode(build_engine(Config.model_validate(base | {"parallel": {}})), prompts_of(VOCAB, "greedy"))
        assert got.tokens == one.tokens, (name, axis)
        plan = plan_capacity(Config.model_validate(base), Hardware(None, 2))
        assert 4 * got.weights == plan.weight_bytes_per_rank, (name, axis)
        assert 4 * got.kv_per_token == plan.kv_bytes_per_token_per_rank, (name, axis)
        assert len(requests) == len(got.tokens)
