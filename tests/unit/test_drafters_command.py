"""`draftwing drafters`: every method, with facts that agree with its drafter, and without torch."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from draftwing.commands import drafters
from draftwing.drafters.auto import AutoDrafter
from draftwing.drafters.registry import BUILT_IN, find_method


def test_the_list_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert drafters.run(argparse.Namespace(json=True)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    entries = {entry["method"]: entry for entry in document["drafters"]}
    assert set(BUILT_IN) <= set(entries)
    assert entries["suffix"]["options"] == ["factor", "max_depth", "max_requests", "min_probability", "offset"]
    assert entries["draft_model"]["needs_checkpoint"]
    assert not entries["ngram"]["needs_checkpoint"]
    assert all(entries[name]["summary"] for name in BUILT_IN)
    needs = {name: entries[name]["checkpoint"] for name in BUILT_IN}
    alone = {"none", "ngram", "suffix", "auto", "lookahead"}
    assert {name for name, need in needs.items() if need is None} == alone
    assert {name for name, need in needs.items() if need == "optional"} == {"medusa", "mtp"}
    assert {name for name in BUILT_IN if entries[name]["kind"] == "token"} == {*alone, "draft_model"}
    assert {name for name in BUILT_IN if entries[name]["stateful_across_requests"]} == {"suffix", "auto"}
    assert not {name for name in BUILT_IN if entries[name]["own_cache"]} & {*alone, "medusa"}


def test_the_table_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert drafters.run(argparse.Namespace(json=False)) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 1 + len(BUILT_IN)


@pytest.mark.parametrize("name", ["none", "ngram", "suffix", "lookahead"])
def test_facts_agree_with_the_drafter(name: str) -> None:
    method = find_method(name)
    traits, facts = method.make(method.options()).traits, method.facts
    for fact in ("kind", "stop", "trees", "confidence", "stateful_across_requests", "sharding"):
        assert getattr(facts, fact) == getattr(traits, fact), fact


@pytest.mark.parametrize("name", ["eagle", "eagle2", "eagle3", "medusa", "mtp", "dflash", "dflash2", "dspark"])
def test_facts_of_heads_agree_with_the_drafter(name: str) -> None:
    method = find_method(name)
    traits, facts = method.make(method.options.model_validate({"path": "somewhere"})).traits, method.facts
    assert facts.kind == "feature"
    assert (facts.trees, facts.confidence) == (traits.trees, traits.confidence)


def test_auto_shares_statistics() -> None:
    assert AutoDrafter().traits.stateful_across_requests


def test_torch_is_not_loaded() -> None:
    code = (
        "import argparse, sys; from draftwing.commands import drafters; "
        "drafters.run(argparse.Namespace(json=True)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
