"""`draftwing bench acceptance` on the golden heads: both rules, every temperature, by position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml

from draftwing.cli import main
from draftwing.drafters.block_drafter import BlockDrafter

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
HEADS = {
    "hf_greedy_llama8": {"eagle": "eagle1_nobias", "eagle3": "eagle3_d2t", "medusa": "medusa1"},
    "hf_greedy_qwen3_8": {"dflash": "dflash_full", "dspark": "dspark_vanilla"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))


def config(folder: Path, target: str, policy: str) -> str:
    heads = [{"name": m, "method": m, "path": str(GOLDENS / case / "drafter")} for m, case in HEADS[target].items()]
    for head in heads:
        if head["method"] == "eagle3":
            head["tree"] = "static"
    document = {
        "model": {"path": str(GOLDENS / target / "target"), "compile": False},
        "drafters": [*heads, {"method": "auto"}],
        "policy": {"mode": policy},
        "limits": {"context": 128},
        "cache": {"tokens": 2048},
    }
    (path := folder / "draftwing.yaml").write_text(yaml.safe_dump(document))
    return str(path)


@pytest.mark.parametrize(
    ("target", "policy"),
    [
        pytest.param("hf_greedy_llama8", "fixed:k=3", marks=pytest.mark.slow),
        ("hf_greedy_qwen3_8", "fixed:tree=3x2x1"),
    ],
)
def test_every_rule_temperature_and_position(
    target: str, policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = tmp_path / "rows.parquet"
    args = ["-c", config(tmp_path, target, policy), "--max-tokens", "16", "--json", "--parquet", str(parquet)]
    assert main(["bench", "acceptance", *args]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    assert pyarrow.parquet.read_table(parquet).to_pylist() == rows
    found = {(row["drafter"], row["rule"], row["temperature"], row["position"]): row for row in rows}
    for name in [*HEADS[target], "auto"]:
        for rule in ("invariant", "rejection"):
            for temperature in (0.0, 0.7, 1.0):
                shape = [found[name, rule, temperature, position] for position in (1, 2, 3)]
                assert shape[0]["reached"] > 20
                assert [row["reached"] for row in shape] == sorted((row["reached"] for row in shape), reverse=True)
                assert all(row["accepted"] <= row["reached"] for row in shape)
            assert sum(found[name, rule, t, 1]["accepted"] for t in (0.0, 0.7, 1.0)) > 0
        if name != "auto":  # which learns, and so may choose otherwise
            for position in (1, 2, 3):  # greedy tokens are the target's own under either rule
                greedy = [found[name, rule, 0.0, position] for rule in ("invariant", "rejection")]
                assert {**greedy[0], "rule": ""} == {**greedy[1], "rule": ""}


def test_a_drafter_that_fails_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(BlockDrafter, "_grow", broken)
    path = config(tmp_path, "hf_greedy_qwen3_8", "fixed:k=3")
    assert main(["bench", "acceptance", "-c", path, "--max-tokens", "4", "--rule", "rejection"]) == 1
    assert "failed or was refused" in capsys.readouterr().err
