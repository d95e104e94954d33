"""`draftwing inspect`: what a checkpoint is, in figures that agree with its drafter's, and without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from draftwing.checkpoints.inspection import inspect_checkpoint
from draftwing.cli import main
from draftwing.commands.inspect import document
from tests import gguf_files
from tests.conftest import ROOT
from tests.unit.test_resolve import FOLDERS

GOLDENS = ROOT / "tests" / "goldens"
TARGETS = {"llama": "hf_greedy_llama8", "qwen3": "hf_greedy_qwen3_8"}


def told(folder: str, **options: Any) -> dict[str, Any]:
    return document(inspect_checkpoint(str(GOLDENS / folder), **options))


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_tensors_told_are_those_of_the_case(folder: str) -> None:
    """Parameters and bytes add up to the sizes that the golden case lists, however the tensors are grouped."""
    found = told(folder)
    case = json.loads((GOLDENS / folder).parent.joinpath("case.json").read_text())
    if folder.endswith("/drafter"):
        sizes = [_size(shape) for name, shape in case["checkpoint_keys"].items() if name not in ("d2t", "t2d")]
        assert found["parameters"] == sum(sizes)
        assert sum(group["count"] for group in found["tensors"]) == len(case["checkpoint_keys"])
    stored = sum(size for part in found["parts"] for size in part["stored_bytes"].values())
    files = sum(path.stat().st_size for path in (GOLDENS / folder).iterdir() if path.suffix != ".json")
    assert 0.5 * files < stored < files
    assert found["layers"] > 0
    assert found["unknown_tensors"] == []


def _size(shape: list[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


@pytest.mark.parametrize(
    ("folder", "entries"),
    [
        ("eagle3_d2t/drafter", 96),
        ("eagle3_fullvocab/drafter", 160),
        ("eagle1_bias/drafter", None),
        ("dflash_full/drafter", None),
        ("dspark_vanilla/drafter", 192),
        ("medusa1/drafter", 160),
        ("mtp_deepseek_v3/target", None),
        ("hf_greedy_llama8/target", None),
    ],
)
def test_the_draft_vocabulary(folder: str, entries: int | None) -> None:
    assert told(folder)["draft_vocabulary"] == entries


def test_feature_layers_and_what_their_ids_mean() -> None:
    assert told("eagle3_speculators/drafter")["feature_layers"] == {
        "field": "eagle_aux_hidden_state_layer_ids",
        "ids": [2, 4, 5],
        "meaning": "inputs",
        "hidden_states": [2, 4, 5],
    }
    dflash = told("dflash_full/drafter")["feature_layers"]
    assert (dflash["meaning"], dflash["hidden_states"]) == ("outputs", [2, 4, 6])
    assert told("dflash_full/drafter", reading="inputs")["feature_layers"]["hidden_states"] == [1, 3, 5]
    assert told("eagle3_d2t/drafter")["feature_layers"] is None
    with_target = told("eagle3_d2t/drafter", target=str(GOLDENS / "hf_greedy_llama8" / "target"))
    assert with_target["feature_layers"]["hidden_states"] == [2, 4, 5]
    assert told("medusa1/drafter")["feature_layers"] is None


def test_a_model_and_what_drafts_for_it_are_told_apart() -> None:
    model, module = told("mtp_deepseek_v3/target")["parts"]
    assert (model["name"], model["layers"], module["name"], module["layers"]) == ("model", 3, "mtp", 1)
    assert model["kv_bytes_per_token"] == {"float32": 4 * 3 * (16 + 8), "bfloat16": 2 * 3 * (16 + 8)}
    assert told("mtp_qwen3_next/target")["refused"].endswith("choose a model with attention in every layer")
    assert told("mtp_deepseek_v3/target")["refused"] is None


@pytest.mark.parametrize(
    ("folder", "change", "refusal"),
    [
        ("dflash_full/drafter", {"attention_sink_bias": True}, "attention_sink_bias is True, which is not supported"),
        ("eagle3_d2t/drafter", {"hidden_act": "gelu"}, "hidden_act 'gelu'; expected 'silu'"),
        ("eagle1_bias/drafter", {"rope_scaling": {"rope_type": "dynamic"}}, "rope type 'dynamic'"),
        ("hf_greedy_llama8/target", {"vision_config": {"depth": 1}}, "inputs beside text"),
        ("dspark_vanilla/drafter", {}, None),
        ("eagle3_speculators/drafter", {}, None),
    ],
)
def test_what_this_version_cannot_use_is_refused_in_words(
    folder: str, change: dict[str, Any], refusal: str | None, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(GOLDENS / folder, tmp_path / "it"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **change}))
    found = document(inspect_checkpoint(str(copy)))["refused"]
    assert found is None if refusal is None else refusal in found


def test_no_weight_and_no_torch_is_loaded() -> None:
    """Every golden folder, archives included."""
    code = (
        "import sys; from draftwing.checkpoints.inspection import inspect_checkpoint\n"
        "for folder in sys.argv[1:]: inspect_checkpoint(folder)\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    folders = [str(GOLDENS / folder) for folder in FOLDERS]
    subprocess.run([sys.executable, "-c", code, *folders], check=True, cwd=ROOT)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(GOLDENS / "eagle3_speculators" / "drafter"), "--tensors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "method            eagle3" in lines
    assert "dialect           speculators" in lines
    assert any(line.endswith("lm_head.weight [96, 64] F32") for line in lines)
    assert any("hidden states [2, 4, 5] by eagle_aux_hidden_state_layer_ids" in line for line in lines)


def test_the_table_says_of_a_model_which_drafter_it_could_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(GOLDENS / "hf_greedy_llama8" / "target")]) == 0
    rows = {line[:17].strip(): line[17:].strip() for line in capsys.readouterr().out.splitlines()}
    assert (rows["role"], rows["as a drafter"]) == ("target", "draft_model")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(GOLDENS / "medusa1" / "drafter"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["method"], found["layers"]) == (1, "medusa", 5)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (None, "does not exist; accepted: a folder"),
        ({}, "has no config.json"),
        ({"model.gguf": "x"}, "it holds model.gguf: name that file itself"),
        ({"config.json": "{}"}, "has no weights"),
        ({"config.json": "{"}, "is not valid JSON"),
        ({"config.json": "{}", "a.bin": "x"}, "a.bin can't be read as tensors alone (it is no zip file)"),
        ({"config.json": "{}", "model.safetensors": "x"}, "is not a whole safetensors file"),
    ],
)
def test_a_bad_folder_is_one_clear_line(
    files: dict[str, str] | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "it"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    assert main(["inspect", str(folder)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_gguf_file(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "qwen3", vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    path = gguf_files.write(tmp_path / "a.gguf", model, quantize=gguf.GGMLQuantizationType.Q8_0)
    found = document(inspect_checkpoint(str(path)))
    assert (found["role"], found["dialect"], found["architecture"], found["layers"]) == ("target", "gguf", "qwen3", 2)
    assert found["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert found["parts"][0]["kv_bytes_per_token"]["float32"] == 4 * 2 * 2 * 2 * 16
    assert sum(found["parts"][0]["stored_bytes"].values()) == sum(t.n_bytes for t in gguf.GGUFReader(path).tensors)
    assert found["dimensions"]["vocabulary"] == 96
    names = {group["name"]: group["shape"] for group in found["tensors"]}
    assert names["blk.*.ffn_down.weight"] == (64, 96)


def test_a_file_is_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.gguf").write_text("x" * 30)
    assert main(["inspect", str(tmp_path / "a.txt")]) == 2
    assert "a.txt is a file; accepted: a folder, a .gguf file" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "a.gguf")]) == 2
    assert "is not a whole GGUF file" in capsys.readouterr().err
