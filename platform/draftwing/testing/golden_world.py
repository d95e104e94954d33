"""The golden targets as worlds of the feature matrix, with heads that were trained for them or methods without one.

The engine is built from a config, as any user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config
from draftwing.core import FloatArray
from draftwing.engine.build import engine_for
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.step import Engine
from draftwing.testing.feature_matrix import (
    BLOCK_TOKENS,
    EOS,
    FACTORS,
    Cell,
    Letters,
    Run,
    adapting,
    needs_end,
    sensible,
)
from draftwing.testing.goldens.case import Case
from draftwing.testing.pairwise import Row, pairwise
from draftwing.testing.plain_loop import PlainTarget, TransformersTarget

HEADS: dict[str, dict[str, Any]] = {
    "eagle1_bias": {"method": "eagle"},
    "eagle1_nobias": {"method": "eagle2"},
    "eagle3_d2t": {"method": "eagle3"},
    "eagle3_fullvocab": {"method": "eagle3", "tree": "static"},
    "eagle3_speculators": {"method": "eagle3"},
    "medusa1": {"method": "medusa"},
    "mtp_deepseek_v3": {"method": "mtp"},
    "dflash_full": {"method": "dflash"},
    "dflash_swa_causal": {"method": "dflash"},
    "dflash2": {"method": "dflash2"},
    "dspark_vanilla": {"method": "dspark"},
}
TARGETS = ("hf_greedy_llama8", "hf_greedy_qwen3_8", "hf_greedy_gemma3_6", "hf_greedy_mixtral3")
FACTORS_HERE = {**FACTORS, "ties": (False,)}
SHAPES = {False: "1x1x1x1", True: "3x2x1x1"}


def golden_sensible(row: Row) -> bool:
    """Greedy text that would end, and then doesn't till its limit, is too rare to look for."""
    return sensible(row) and not (row["min_tokens"] and row["ending"] == "length" and row["temperature"] < 0.1)


def golden_cells(drafters: Sequence[str]) -> list[Cell]:
    """Cells in which every two values meet. drafters: golden cases with heads, or methods."""
    return [Cell(**row) for row in pairwise({**FACTORS_HERE, "drafter": tuple(drafters)}, golden_sensible)]


class Remembered:
    """A target in its plain form that runs no text twice."""

    def __init__(self, target: PlainTarget) -> None:
        self._target = target
        self._known: dict[tuple[int, ...], FloatArray] = {}

    def logits_after(self, path: Sequence[int]) -> FloatArray:
        key = tuple(path)
        if key not in self._known:
            self._known[key] = self._target.logits_after(path)
        return self._known[key]


@lru_cache
def _target(folder: Path) -> tuple[LoadedTarget, PlainTarget]:
    """A golden target as the engine takes it, and with transformers' own attention."""
    found = resolve_model(Config.model_validate({"model": {"path": str(folder)}}).model)
    plain = load_target(found, dtype="float32", device="cpu", threads=1, attn_implementation="eager")
    loaded = load_target(found, dtype="float32", device="cpu", threads=1)
    return loaded, Remembered(TransformersTarget(plain.model))


class GoldenWorld:
    """target: folder of a golden target, whose weights are what they are. drafter: of the config."""

    def __init__(self, target: Path, drafter: dict[str, Any]) -> None:
        self._folder, self._drafter = target, drafter
        self._loaded, self.plain = _target(target)
        self.vocab = self._loaded.vocab_size

    def favour_end(self, cell: Cell, seed: int) -> dict[int, float]:
        return {EOS: float(2 + seed % 8)} if needs_end(cell) else {}

    def engine(self, run: Run, blocks: int) -> Engine:
        config = Config.model_validate(
            {
                "model": {"path": str(self._folder), "compile": False},
                "drafters": [self._drafter],
                "policy": {"mode": f"fixed:tree={SHAPES[run.cell.tree]}"},
                "limits": {"prefill_chunk": 7, "sequences": 16, "queue": 64, "batch_tokens": 512, "context": 128},
                "cache": {"tokens": blocks * BLOCK_TOKENS, "block_tokens": BLOCK_TOKENS},
            }
        )
        # A copy, because hooks that capture hidden states stay in a model.
        engine = engine_for(config, replace(self._loaded, model=deepcopy(self._loaded.model)))
        engine.admission.decoder = Letters()
        return adapting(engine, run.cell)


def with_head(goldens: Path) -> Callable[[Cell, int], GoldenWorld]:
    """Worlds of cells whose `drafter` is a case of HEADS: that head and its target. goldens: folder of the cases."""

    def world(cell: Cell, seed: int) -> GoldenWorld:
        case = Case(goldens / cell.drafter)
        target = case.part("target")
        assert target is not None, f"{cell.drafter} has no target"
        return GoldenWorld(target, {"path": str(case.part("drafter")), **HEADS[cell.drafter]})

    return world


def without_head(target: Path, small: Path) -> Callable[[Cell, int], GoldenWorld]:
    """Worlds of cells whose `drafter` is a method. small: the model of `draft_model`."""

    def world(cell: Cell, seed: int) -> GoldenWorld:
        return GoldenWorld(
            target, {"method": cell.drafter, **({"path": str(small)} if cell.drafter == "draft_model" else {})}
        )

    return world
