"""How far quantized weights change a model's text: the quantized model beside the original, on the example prompts.

Both read the same tokens (a prompt and the original's greedy continuation), so every position compares the same
context. Reported: positions whose best token differs, all and those where the original was sure (its best token above
one half), the mean divergence of the two distributions, and both perplexities on the prompts' text. Then both decode
freely: how many tokens until the texts part.

usage: python benchmarks/quantized_text.py [--quantization int8|int4] [--model gemma-3-270m] [--tokens 48] [--threads 1]
                                           [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.build import build_local
from draftwing.engine.step import Engine
from draftwing.offline import run_all

PROMPTS = Path(__file__).resolve().parents[1] / "examples" / "prompts"
CACHE = 8192


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def log_probabilities(engine: Engine, tokens: list[int]) -> Tensor:
    """[len(tokens), V]: after each token, in one forward."""
    rows = np.array(tokens, dtype=np.int64)
    count = len(tokens)
    sequence = SequenceRows(rows, chain_parents(count), np.arange(count, dtype=np.int64), 0, count)
    return engine.runner.forward([sequence]).log_softmax(-1)


def complete(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return [out.token_ids for out in run_all(engine, [Request(str(i), p, params) for i, p in enumerate(prompts)])]


def until_they_part(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def compare(original: Engine, quantized: Engine, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    texts, others = complete(original, prompts, tokens), complete(quantized, prompts, tokens)
    positions = differing = sure = sure_differing = scored = 0
    divergence, losses = 0.0, [0.0, 0.0]
    for prompt, text in zip(prompts, texts, strict=True):
        a, b = (log_probabilities(engine, prompt + text) for engine in (original, quantized))
        other = a.argmax(-1) != b.argmax(-1)
        certain = a.amax(-1) > np.log(0.5)
        positions, differing = positions + len(a), differing + int(other.sum())
        sure, sure_differing = sure + int(certain.sum()), sure_differing + int((other & certain).sum())
        divergence += float((a.exp() * (a - b)).sum())
        targets = torch.tensor(prompt[1:])[:, None]
        scored += len(targets)
        for i, scores in enumerate((a, b)):
            losses[i] -= float(scores[: len(targets)].gather(1, targets).sum())
    same = [until_they_part(a, b) for a, b in zip(texts, others, strict=True)]
    return {
        "positions": positions,
        "other_token": differing / positions,
        "sure_positions": sure,
        "other_token_where_sure": sure_differing / sure,
        "divergence_nats": divergence / positions,
        "perplexity": [float(np.exp(loss / scored)) for loss in losses],
        "free_running_tokens": tokens,
        "same_text": sum(n == tokens for n in same) / len(same),
        "tokens_until_they_part": median(same),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--quantization", choices=["int8", "int4"], default="int8")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    engines = []
    for quantization in (None, args.quantization):
        settings = {"path": args.model, "cpu_threads": args.threads, "quantization": quantization}
        config = Config.model_validate({"model": settings, "cache": {"tokens": CACHE}})
        engine, tokenizer = build_local(config, progress=tell)
        engines.append(engine)
    if tokenizer is None:
        raise SystemExit(f"{args.model} has no tokenizer, so it can't read the prompts")
    lines = [line for file in sorted(PROMPTS.glob("*.jsonl")) for line in file.read_text().splitlines()]
    prompts = [tokenizer.encode(json.loads(line)["prompt"]) for line in lines]
    result = compare(engines[0], engines[1], prompts, args.tokens)
    print(f"{len(prompts)} prompts, {result['positions']} positions")
    print(f"another best token: {result['other_token']:.2%} of positions")
    print(f"  where the original was sure: {result['other_token_where_sure']:.2%} of {result['sure_positions']}")
    print(f"mean divergence: {result['divergence_nats']:.5f} nats")
    print("perplexity of the prompts: float32 {:.3f}, quantized {:.3f}".format(*result["perplexity"]))
    print(
        f"decoding freely, {result['same_text']:.0%} of texts are the same over {args.tokens} tokens; "
        f"they part after {result['tokens_until_they_part']:.0f} (median)"
    )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"schema": 1, **result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
