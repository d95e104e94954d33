"""The riskiest step alone: one ragged forward through unpatched transformers models, equal to separate plain forwards.

A batch of two prompts of different length (one of them decoding a draft tree), a plain decode row and a prefill chunk
goes through each target with our pages and our one attention function; every row is compared with a plain forward
over just that row's own history. Then: how often does the argmax of a row differ between a batch of 1 row and of 9?

usage: python benchmarks/ragged_forward.py [MODEL_FOLDER ...]     (default: the golden targets)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch

from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import ModelConfig
from draftwing.engine.loading import load_target
from draftwing.engine.runner import ModelRunner, probe_layers
from draftwing.testing.plain_loop import TransformersTarget
from draftwing.testing.ragged import ragged_deviation, rows

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = Path(os.environ.get("DRAFTWING_GOLDENS", ROOT / "tests" / "goldens"))
TOLERANCE = 1e-5
SLOTS = 512


def load(folder: Path) -> tuple[ModelRunner, TransformersTarget]:
    """A target as the engine runs it, and as transformers does."""
    model = resolve_model(ModelConfig(path=str(folder)))
    plain = load_target(model, dtype="float32", device="cpu", attn_implementation="eager")
    ours = load_target(model, dtype="float32", device="cpu")
    layers = probe_layers(ours.model, ours.device)
    runner = ModelRunner(
        ours.model, slots=SLOTS, layers=layers, device=ours.device, dtype=ours.dtype, vocab_size=ours.vocab_size
    )
    return runner, TransformersTarget(plain.model)


def flips(runner: ModelRunner, rng: np.random.Generator, trials: int = 60) -> tuple[int, int]:
    """(rows whose argmax differs, rows compared) between nine rows in one batch and each alone."""
    slots = np.arange(9 * 40).reshape(9, 40)
    different = 0
    for _ in range(trials):
        prompts = [rng.integers(3, runner.vocab_size, int(rng.integers(5, 39))).tolist() for _ in range(9)]
        runner.forward([rows(p[:-1], slots[i], 0) for i, p in enumerate(prompts)])
        last = [rows([p[-1]], slots[i], len(p) - 1) for i, p in enumerate(prompts)]
        together = runner.forward(last).argmax(-1)
        alone = torch.cat([runner.forward([one]).argmax(-1) for one in last])
        different += int((together != alone).sum())
    return different, 9 * trials


def main(folders: list[str]) -> int:
    torch.set_num_threads(1)
    targets = [Path(f) for f in folders] or sorted(GOLDENS.glob("hf_greedy_*/target"))
    if not targets:
        print(f"no target found in {GOLDENS}; name model folders or set DRAFTWING_GOLDENS", file=sys.stderr)
        return 2
    failed = False
    for folder in targets:
        (runner, plain), rng = load(folder), np.random.default_rng(0)
        worst = max(ragged_deviation(runner, plain, rng, slots=SLOTS).largest for _ in range(5))
        changed, compared = flips(runner, rng)
        failed |= worst > TOLERANCE
        verdict = "equal" if worst <= TOLERANCE else "DIFFERENT"
        name = folder.parent.name if folder.name == "target" else folder.name
        ratio = f"{changed} of {compared} differ"
        print(f"{name:24s} {verdict}: largest difference {worst:.2e}; argmax 1 row against 9: {ratio}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
