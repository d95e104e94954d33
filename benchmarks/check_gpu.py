"""What a GPU must prove: rule R1 in float32, how often bf16 flips a choice, and what a verify costs there.

Needs torch, transformers and this project's engine; no Ray, no downloads: large targets have random weights.

usage: python benchmarks/check_gpu.py [--json FILE] [--device cuda|cpu] [--tiny]
Without a GPU it says so and exits 0. --tiny shrinks every size, to try the script itself on a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

from draftwing.core import Request, SamplingParams
from draftwing.drafters.base import Drafter, TargetInfo
from draftwing.drafters.none import NoneDrafter
from draftwing.engine import attention
from draftwing.engine.assemble import TargetFacts, assemble
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.runner import ModelRunner, probe_layers
from draftwing.engine.scheduler import Limits
from draftwing.offline import run_all
from draftwing.policy.modes import parse_mode
from draftwing.testing.drafters import OracleDrafter

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = Path(os.environ.get("DRAFTWING_GOLDENS", ROOT / "tests" / "goldens"))
MODES = ("fixed:k=1", "fixed:k=4", "fixed:k=8", "fixed:k=4,width=2", "fixed:tree=3x2x1")
KINDS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "top_p": 0.95},
}
GEMMA = {
    "hidden_size": 640,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 2048,
    "vocab_size": 262144,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
}
EIGHT_B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 512, "head_dim": 16}


def runner_for(model: Any, slots: int, device: torch.device) -> ModelRunner:
    layers = probe_layers(model, device)
    vocab = model.config.get_text_config().vocab_size
    return ModelRunner(model, slots=slots, layers=layers, device=device, dtype=model.dtype, vocab_size=vocab)


def random_target(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    return model.eval().requires_grad_(False)


def invariance(folder: Path, device: torch.device) -> dict[str, Any]:
    """Speculation against plain decoding, one request at a time, on a golden target in float32."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention.NAME, local_files_only=True
    ).to(device)
    runner = runner_for(model.eval().requires_grad_(False), 4096, device)
    facts = TargetFacts(context=512, eos_token_ids=(2,))
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, runner.vocab_size, int(n)).tolist() for n in rng.integers(3, 40, 5)]

    def decode(requests: list[Request], mode: str, drafter: Drafter) -> tuple[list[list[int]], int]:
        drafter.bind(TargetInfo(vocab_size=runner.vocab_size, context_length=512, eos_token_ids=(2,)))
        limits = Limits(sequences=8, queue=64, batch_tokens=256, prefill_chunk=7)
        policy = parse_mode(mode, "oracle", drafter.traits)
        engine = assemble(runner, facts, pool=BlockPool(256, 16), limits=limits, drafter=drafter, policy=policy)
        outputs = [o.token_ids for o in run_all(engine, requests)]
        return outputs, engine.counters.accepted_tokens

    compared = different = accepted = 0
    for settings in KINDS.values():
        params = SamplingParams(max_tokens=40, ignore_eos=True, **settings)  # type: ignore[arg-type]
        requests = [Request(str(i), prompt, params) for i, prompt in enumerate(prompts)]
        plain = [decode([request], "off", NoneDrafter())[0][0] for request in requests]
        known = {tuple(prompt): output for prompt, output in zip(prompts, plain, strict=True)}
        for mode in MODES:
            outputs, count = decode(requests, mode, OracleDrafter(known, accuracy=0.7))
            accepted += count
            for a, b in zip(plain, outputs, strict=True):
                same = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
                compared += same
                different += same < len(a)
    return {"target": folder.parent.name, "tokens": compared, "different": different, "accepted": accepted}


def flip_rate(model: Any, device: torch.device, trials: int) -> dict[str, int]:
    """Rows whose argmax differs between a batch of nine rows and each alone."""
    runner, length = runner_for(model, 9 * 64, device), 48
    rng, flips = np.random.default_rng(2), 0
    slots = np.arange(9 * 64).reshape(9, 64)
    for _ in range(trials):
        prompts = rng.integers(3, runner.vocab_size, (9, length))
        runner.forward(
            [
                SequenceRows(p[:-1], chain_parents(length - 1), slots[i, : length - 1], 0, 1)
                for i, p in enumerate(prompts)
            ]
        )
        last = [SequenceRows(p[-1:], chain_parents(1), slots[i, :length], length - 1, 1) for i, p in enumerate(prompts)]
        together = runner.forward(last).argmax(-1)
        alone = torch.cat([runner.forward([one]).argmax(-1) for one in last])
        flips += int((together != alone).sum())
    return {"rows": 9 * trials, "flips": flips}


def timed(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a call, device work included."""
    seconds = []
    for _ in range(repeats + 2):
        started = perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(perf_counter() - started)
    return median(seconds[2:])


def cost_grid(model: Any, device: torch.device, *, tiny: bool) -> list[dict[str, float]]:
    """Milliseconds of a verify by sequences, rows per sequence and context."""
    batches = (1, 4) if tiny else (1, 4, 16, 64)
    rows_each, contexts = ((1, 4), (32,)) if tiny else ((1, 2, 4, 8, 16), (256, 2048))
    room = max(contexts) + max(rows_each)
    runner = runner_for(model, max(batches) * room, device)
    rng, grid = np.random.default_rng(3), []
    for batch, rows, context in itertools.product(batches, rows_each, contexts):
        sequences = [
            SequenceRows(
                rng.integers(3, runner.vocab_size, rows),
                chain_parents(rows),
                np.arange(i * room, i * room + context + rows),
                context,
                rows,
            )
            for i in range(batch)
        ]
        seconds = timed(lambda sequences=sequences: runner.forward(sequences), device, 3 if tiny else 8)
        grid.append(
            {
                "sequences": batch,
                "rows": batch * rows,
                "context": batch * context,
                "ms": round(seconds * 1e3, 4),
                "rows_per_s": round(batch * rows / seconds, 1),
            }
        )
    return grid


def report(device: torch.device, *, tiny: bool) -> dict[str, Any]:
    attention.register()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    result: dict[str, Any] = {"schema": 1, "device": name, "torch": torch.__version__, "tiny": tiny}
    folders = sorted(GOLDENS.glob("hf_greedy_*/target"))
    result["invariance_float32"] = [invariance(folder, device) for folder in (folders[:1] if tiny else folders)]
    dtype = torch.float32 if tiny else torch.bfloat16
    small = {"num_attention_heads": 4, "num_key_value_heads": 2} if tiny else {}
    sizes = {
        "gemma_270m": Gemma3TextConfig(
            **(GEMMA | ({**TINY, **small, "layer_types": ["full_attention"] * 2} if tiny else {}))
        ),
        "llama_8b": LlamaConfig(**(EIGHT_B | ({**TINY, **small} if tiny else {}))),
    }
    for size, config in sizes.items():
        model = random_target(config, dtype, device)
        result[size] = {
            "flips_bf16": flip_rate(model, device, 2 if tiny else 40),
            "verify_cost": cost_grid(model, device, tiny=tiny),
        }
        del model
        if device.type == "cuda":
            torch.cuda.empty_cache()
        print(f"{size} done", file=sys.stderr, flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "check_gpu.json", metavar="FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing was checked")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = False
    started = perf_counter()
    result = report(torch.device(args.device), tiny=args.tiny)
    result["seconds"] = round(perf_counter() - started, 1)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    for entry in result["invariance_float32"]:
        counts = f"{entry['different']} of {entry['tokens']} tokens differ, {entry['accepted']} were drafted"
        print(f"R1 {entry['target']}: {counts}")
    for size in ("gemma_270m", "llama_8b"):
        flips, grid = result[size]["flips_bf16"], result[size]["verify_cost"]
        print(f"{size}: {flips['flips']} of {flips['rows']} rows flip; 1 row {grid[0]['ms']} ms")
    print(f"written to {args.json}")
    return int(any(entry["different"] for entry in result["invariance_float32"]))


if __name__ == "__main__":
    sys.exit(main())
