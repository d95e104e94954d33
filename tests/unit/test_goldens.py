"""The golden cases as tests, and the runner: what it selects, what it says, and that it can fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draftwing.errors import ConfigError
from draftwing.testing.goldens.case import Case, Verdict
from draftwing.testing.goldens.kinds import KINDS, check_for
from draftwing.testing.goldens.run import FAIL, PASS, case_folders, goldens_folder, run_case, select, table
from tests import run_goldens
from tests.conftest import ROOT

PUBLIC = ROOT / "tests" / "goldens"
FOLDERS = {folder.name: folder for folder in case_folders(goldens_folder(PUBLIC))}
BUILT = [name for name, folder in FOLDERS.items() if KINDS.get(Case(folder).kind, "") is not None]


@pytest.mark.parametrize("name", BUILT)
def test_case(name: str) -> None:
    result = run_case(FOLDERS[name])
    assert result.status == PASS, "\n".join(result.faults)


def test_every_public_kind_is_run() -> None:
    assert {Case(folder).kind for folder in case_folders(PUBLIC)} <= set(KINDS)
    assert all(callable(check_for(kind)) for kind in KINDS)


def edited(tmp_path: Path, name: str, edit: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """A copy of a public case under another root, with its description and tensors changed."""
    folder = tmp_path / name
    shutil.copytree(PUBLIC / name, folder)
    meta = json.loads((folder / "case.json").read_text())
    tensors = load_file(folder / "case.safetensors")
    edit(meta, tensors)
    meta["tensors"] = {key: {"shape": list(tensors[key].shape)} for key in tensors}
    (folder / "case.json").write_text(json.dumps(meta))
    save_file(tensors, folder / "case.safetensors")
    return folder


def wrong_token(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["greedy_2"][40] = (tensors["greedy_2"][40] + 1) % 160


def wrong_logit(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["logits_1"][3, 5] += 1e-3


def early_end(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["greedy_eos_0"] = tensors["greedy_eos_0"][:-1]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (wrong_token, "prompt 2"),
        (wrong_logit, "prompt 1, logits"),
        (early_end, "prompt 0 to EOS: shape (48,), expected (47,)"),
    ],
)
def test_a_changed_greedy_case_fails(tmp_path: Path, edit: Any, says: str) -> None:
    result = run_case(edited(tmp_path, "hf_greedy_llama8", edit))
    assert result.status == FAIL
    assert any(says in fault for fault in result.faults)


def test_other_numbers_of_prompts_lengths_and_ends_need_no_new_code(tmp_path: Path) -> None:
    def edit(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        meta["args"] = {"num_prompts": 3, "max_new_tokens": 20, "eos_token_id": [7, int(tensors["greedy_0"][11])]}
        ends = meta["args"]["eos_token_id"]
        for i in range(4):
            greedy = tensors[f"greedy_{i}"][:20]
            stop = next((at + 1 for at, token in enumerate(greedy) if token in ends), 20)
            tensors |= {
                f"greedy_{i}": greedy,
                f"greedy_eos_{i}": greedy[:stop],
                f"logits_{i}": tensors[f"logits_{i}"][:2],
            }
        for name in ("prompt", "greedy", "greedy_eos", "logits"):
            del tensors[f"{name}_3"]

    result = run_case(edited(tmp_path, "hf_greedy_llama8", edit))
    assert (result.status, result.faults) == (PASS, ())


def test_a_case_may_have_no_end_tokens(tmp_path: Path) -> None:
    def edit(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        meta["args"]["eos_token_id"] = None
        for i in range(4):
            del tensors[f"greedy_eos_{i}"]

    result = run_case(edited(tmp_path, "hf_greedy_gemma3_6", edit))
    assert (result.status, result.faults) == (PASS, ())


def test_changed_drafts_fail(tmp_path: Path) -> None:
    def edit(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["vllm_draft"][0, 0] += 1

    result = run_case(edited(tmp_path, "ngram", edit))
    assert (result.status, len(result.faults)) == (FAIL, 1)
    assert result.faults[0].startswith("vector_0, vLLM rule")


@pytest.mark.parametrize("name", ["mtp_deepseek_v3", "mtp_qwen3_next"])
def test_changed_modules_fail(name: str, tmp_path: Path) -> None:
    def edit(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["recycled_hidden"][1, 0] += 0.01
        tensors["e2e_drafts"][3, 0] += 1

    result = run_case(edited(tmp_path, name, edit))
    assert result.status == FAIL
    for says in ("stored features, recycled hidden", "own features, recycled hidden", "round 3 draft"):
        assert any(fault.startswith(says) for fault in result.faults)


def test_changed_probabilities_fail_and_other_sets_are_run(tmp_path: Path) -> None:
    def keep_two(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        meta["args"]["parameter_sets"] = meta["args"]["parameter_sets"][5:7]
        for name in ("logits_after_penalties", "probs", "spec_probs"):
            tensors[name] = np.ascontiguousarray(tensors[name][5:7])

    def shift(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["spec_probs"][11, 2, :] = np.roll(tensors["spec_probs"][11, 2, :], 1)

    assert run_case(edited(tmp_path / "a", "logits_processors", keep_two)).status == PASS
    result = run_case(edited(tmp_path / "b", "logits_processors", shift))
    assert result.faults[0].startswith("set 11, verify")


def test_an_unknown_sampling_parameter_is_named(tmp_path: Path) -> None:
    def edit(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        meta["args"]["parameter_sets"][0] = {"typical_p": 0.9}

    result = run_case(edited(tmp_path, "logits_processors", edit))
    assert result.status == FAIL
    assert "no sampling parameter typical_p" in result.faults[0]


def test_a_target_in_a_missing_sibling_is_a_clear_error(tmp_path: Path) -> None:
    shutil.copytree(PUBLIC / "medusa1", tmp_path / "medusa1")
    result = run_case(tmp_path / "medusa1")
    assert result.status == FAIL
    assert "target is '../hf_greedy_llama8/target'" in result.faults[0]
    assert "copy it beside the case" in result.faults[0]


def test_broken_folders_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "case.json can't be read" in run_case(tmp_path / "empty").faults[0]
    (tmp_path / "empty" / "case.json").write_text('{"case": "empty", "kind": "ngram"}')
    assert "lacks target, drafter, args" in run_case(tmp_path / "empty").faults[0]

    def unknown(meta: dict[str, Any], tensors: dict[str, Any]) -> None:
        meta["kind"] = "telepathy"

    result = run_case(edited(tmp_path, "ngram", unknown))
    assert result.status == FAIL
    assert result.faults[0].startswith("unknown kind 'telepathy'; known: acceptance")


def test_cases_are_chosen_by_kind_or_name() -> None:
    folders = case_folders(PUBLIC)
    assert [f.name for f in select(folders, ["ngram", "acceptance"])] == [
        "accept_chain",
        "accept_onehot",
        "accept_tree_sampled",
        "accept_tree_topk",
        "ngram",
    ]
    assert len(select(folders, ["hf_greedy_*"])) == 4
    with pytest.raises(ConfigError, match="no case here has kind or name 'telepathy'"):
        select(folders, ["telepathy"])


def test_nothing_compared_is_no_pass() -> None:
    assert not Verdict().passed
    verdict = Verdict()
    verdict.close("x", [1.0, np.nan], [1.0, 1.0], (1e-3, 0.0))
    assert not verdict.passed


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(PUBLIC / "ngram", tmp_path / "ngram")
    shutil.copytree(PUBLIC / "suffix", tmp_path / "suffix")
    monkeypatch.setenv("DRAFTWING_GOLDENS", str(tmp_path))
    assert run_goldens.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["ngram", "ngram", "PASS"]
    assert lines[2].split()[:3] == ["suffix", "suffix", "PASS"]
    assert lines[3] == "2 PASS, 0 FAIL"
    (tmp_path / "ngram" / "case.safetensors").unlink()
    assert run_goldens.main(["ngram"]) == 1
    assert run_goldens.main(["telepathy"]) == 2
    monkeypatch.setenv("DRAFTWING_GOLDENS", str(tmp_path / "nowhere"))
    assert run_goldens.main([]) == 2
    assert "holds no golden cases" in capsys.readouterr().err


def test_the_table_shortens_long_lists_of_faults() -> None:
    result = run_case(PUBLIC / "ngram")
    shown = table([type(result)("a", "b", FAIL, 0.5, tuple(f"fault {i}" for i in range(9)))])
    assert "fault 4" in shown
    assert "fault 5" not in shown
    assert "and 4 more" in shown
