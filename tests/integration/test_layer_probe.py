"""What a drafter's layer ids mean is found by probing, wherever the reading matters; else the usual one is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwing.checkpoints.feature_layers import EAGLE_IDS
from draftwing.cli import main
from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.build import build_engine
from draftwing.errors import ConfigError
from draftwing.layer_probe import Probe, judge
from draftwing.testing.run_engine import run_to_end
from tests.integration.test_inspect import GOLDENS, TARGETS
from tests.layer_pair import LAYER, make_dflash, make_eagle3, make_target


def block(ids: list[int]) -> dict[str, Any]:
    return {"dflash_config": {"mask_token_id": 0, "target_layer_ids": ids}}


INPUTS, OUTPUTS = [LAYER, 4, 5], [LAYER - 1, 4, 5]
# What a checkpoint says, what its ids are by the layer that it was made for, and what its field would have them be.
HEADS: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "eagle3, top level, right": (make_eagle3, {EAGLE_IDS: INPUTS}, "inputs", "inputs"),
    "eagle3, top level, planted": (make_eagle3, {EAGLE_IDS: OUTPUTS}, "outputs", "inputs"),
    "eagle3, nested, right": (make_eagle3, {"eagle_config": {EAGLE_IDS: OUTPUTS[:1] * 3}}, "outputs", "inputs"),
    "eagle3, nested, planted": (make_eagle3, {"eagle_config": {EAGLE_IDS: INPUTS}}, "inputs", "outputs"),
    "dflash, right": (make_dflash, block(OUTPUTS), "outputs", "outputs"),
    "dflash, planted": (make_dflash, block(INPUTS), "inputs", "outputs"),
}  # fmt: skip
SHORT = ("eagle3, top level, planted", "dflash, planted")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("pair") / "target")


def document(target: Path, head: Path, **options: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(target), "cpu_threads": 1, "compile": False},
        "drafters": [{"path": str(head), **options}],
        "policy": {"mode": "fixed:k=1"},
        "limits": {"context": 256},
        "cache": {"tokens": 1024, "block_tokens": 8},
    }


def accepted(target: Path, head: Path, **options: Any) -> tuple[int, tuple[int, ...]]:
    """Of drafts of one token after a prompt, and the hidden states that the drafter took."""
    engine = build_engine(Config.model_validate(document(target, head, **options)))
    run_to_end(engine, [Request("a", [3, 9, 4, 20], SamplingParams(max_tokens=40, ignore_eos=True))])
    return engine.counters.accepted_tokens, engine.drafting.drafter.traits.hidden_layers


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in HEADS],
)
def test_the_reading_that_drafts_right_is_chosen(name: str, target: Path, tmp_path: Path) -> None:
    make, config, right, usual = HEADS[name]
    head = make(tmp_path / "head", **config)
    wrong = "outputs" if right == "inputs" else "inputs"
    best, states = accepted(target, head, layer_ids=right)
    assert best >= 18
    assert states[0] == LAYER
    assert accepted(target, head, layer_ids=wrong)[0] <= 2
    assert accepted(target, head, layer_ids="probe") == (best, states)
    assert (accepted(target, head)[0] == best) == (right == usual)


def test_inspect_probes(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = make_eagle3(tmp_path / "head", **{EAGLE_IDS: OUTPUTS})
    assert main(["inspect", str(head), "--target", str(target), "--probe", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["probe"]["chosen"] == "outputs"
    assert found["probe"]["sure"]
    assert found["probe"]["outputs"]["accepted"] > 50
    assert found["probe"]["inputs"]["accepted"] < 10
    assert found["feature_layers"]["hidden_states"][0] == LAYER


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--probe"], "--probe needs --target"),
        (["--probe", "--target", "nowhere"], "nowhere does not exist"),
    ],
)
def test_a_probe_without_its_target(arguments: list[str], told: str, tmp_path: Path, capsys: Any) -> None:
    head = make_eagle3(tmp_path / "head", **{EAGLE_IDS: OUTPUTS})
    assert main(["inspect", str(head), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_layers_and_probe_contradict_each_other(target: Path, tmp_path: Path) -> None:
    head = make_eagle3(tmp_path / "head", **{EAGLE_IDS: OUTPUTS})
    with pytest.raises(ConfigError, match="has layers and layer_ids: probe; keep one"):
        accepted(target, head, layer_ids="probe", layers=[3, 4, 5])


def hits(*accepted: int) -> Probe:
    return Probe((), {("a", i): bool(hit) for i, hit in enumerate(accepted)})


def test_a_verdict_in_words() -> None:
    found = judge({"inputs": hits(0, 0), "outputs": hits(1, 0)}, "inputs")
    assert (
        str(found)
        == "layer ids are inputs of layers (inputs: 0 of 2 accepted; outputs: 1 of 2 accepted; no clear winner)"
    )


def test_the_usual_reading_stands_unless_the_other_wins_clearly() -> None:
    weak, strong = hits(1, 1, 0, 0), hits(*[1] * 40)
    assert judge({"inputs": weak, "outputs": hits(0, 1, 1, 0)}, "outputs").chosen == "outputs"
    assert not judge({"inputs": weak, "outputs": hits(0, 1, 1, 0)}, "inputs").sure
    found = judge({"inputs": hits(*[0] * 40), "outputs": strong}, "inputs")
    assert (found.chosen, found.sure) == ("outputs", True)
    impossible = judge({"inputs": weak, "outputs": Probe(refused="too deep")}, "outputs")
    assert (impossible.chosen, impossible.sure) == ("inputs", True)
    with pytest.raises(ConfigError, match="too deep; deeper"):
        judge({"inputs": Probe(refused="too deep"), "outputs": Probe(refused="deeper")}, "inputs")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in TARGETS if not case.startswith(("eagle1", "medusa"))])
def test_golden_drafters_keep_their_reading(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Their targets' layers are so alike that neither reading wins; then what the field means has to stand."""
    folder, target = GOLDENS / case / "drafter", GOLDENS / TARGETS[case] / "target"
    assert main(["inspect", str(folder), "--target", str(target), "--probe", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    states = [2, 4, 5] if case.startswith("eagle3") else [2, 4, 6]
    assert found["feature_layers"]["hidden_states"] == states
