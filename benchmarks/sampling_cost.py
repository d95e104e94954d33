"""What choosing tokens costs beside the verify it belongs to: CPU milliseconds by setting and rows, one thread.

Logits are the demo model's own at the ends of several texts, and the verify is its forward over a chain of as many
rows, run in turns with the choices: the least of all rounds on both sides, the mean over texts. The design allows noise
and cuts together 10 % of a verify at V = 262,144. `--vocab V` needs no model: logits drawn like a language model's, no
verify.

usage: python benchmarks/sampling_cost.py [--model gemma-3-270m | --vocab V] [--rows 1 4 8] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from draftwing.config_models import Config
from draftwing.core import SamplingParams
from draftwing.engine.batch import SequenceRows, chain_parents
from draftwing.engine.build import build_local
from draftwing.engine.processors import SampleRows, SamplerState
from draftwing.engine.sampling import choose
from draftwing.engine.step import Engine

ROOT = Path(__file__).resolve().parents[1]
BOUND = 0.10
BOUND_ROWS = 8  # rows of the verify that the bound is for
CONTEXT = 128
CUTS: dict[str, dict[str, Any]] = {
    "": {},
    "top_p 0.8": {"top_p": 0.8},
    "top_p 0.9": {"top_p": 0.9},
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.99": {"top_p": 0.99},
    "top_k 50": {"top_k": 50},
    "top_k 50, top_p 0.95": {"top_k": 50, "top_p": 0.95},
    "top_k 2000, top_p 0.95": {"top_k": 2000, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "min_p 0.05, top_p 0.9": {"min_p": 0.05, "top_p": 0.9},
    "min_p 1e-4, top_p 0.9": {"min_p": 1e-4, "top_p": 0.9},
}
SETTINGS: dict[str, SamplingParams] = {
    "temperature 0": SamplingParams(temperature=0),
    **{
        ", ".join(filter(None, (f"temperature {heat:g}", name))): SamplingParams(temperature=heat, **cuts)
        for heat, (name, cuts) in product((0.7, 1.0, 1.5), CUTS.items())
    },
    "temperature 0, penalties": SamplingParams(temperature=0, repetition_penalty=1.1),
    "temperature 1, penalties": SamplingParams(repetition_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.2),
}


def model_like(texts: int, rows: int, vocab: int) -> list[torch.Tensor]:
    """A normal body (standard deviation 3) and, in each row, a head of 400 tokens falling off from its top."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(texts, rows, vocab, generator=generator) * 3
    head = 22 - 1.6 * torch.arange(1, 401).log() + torch.randn(texts, rows, 400, generator=generator)
    where = torch.rand(texts, rows, vocab, generator=generator).topk(400, dim=-1).indices
    return list(logits.scatter_(-1, where, head))


class Model:
    """The demo model: real logits, and the verify that a choice of tokens belongs to."""

    def __init__(self, name: str) -> None:
        config = {
            "model": {"path": name, "cpu_threads": 1},
            "drafters": [{"method": "none"}],
            "cache": {"tokens": 2048},
        }
        engine, tokenizer = build_local(Config.model_validate(config))
        assert tokenizer is not None
        self._engine: Engine = engine
        files = sorted((ROOT / "examples" / "prompts").glob("*.jsonl"))
        lines = [line for path in files for line in path.read_text().splitlines()]
        self._texts = [tokenizer.encode(json.loads(line)["prompt"])[:CONTEXT] for line in lines]

    def _forward(self, tokens: list[int], kv_len: int, wanted: int) -> torch.Tensor:
        slots = np.arange(kv_len + len(tokens), dtype=np.int64)
        ids = np.array(tokens, dtype=np.int64)
        return self._engine.runner.forward([SequenceRows(ids, chain_parents(len(ids)), slots, kv_len, wanted)])

    def logits(self, texts: int, rows: int) -> list[torch.Tensor]:
        """Of the last rows of each of so many texts: [rows, V]."""
        some = [text for text in self._texts if len(text) >= rows][:texts]
        return [self._forward(text, 0, rows).float().clone() for text in some]

    def verify(self, rows: int) -> None:
        self._forward(self._texts[0][:rows], CONTEXT, rows)


def a_verify(params: SamplingParams, rows: int) -> SampleRows:
    """One sequence of 512 prompt and 128 output tokens, drafting a chain of rows - 1 tokens."""
    random = np.random.default_rng(0)
    state = SamplerState.create(params, random.integers(0, 1000, 512))
    state.commit(random.integers(0, 1000, 128))
    chain = random.integers(0, 1000, rows)
    below = np.tril(np.ones((rows, rows), dtype=np.bool_), -1)
    path_rows, path_nodes = np.nonzero(below)
    return SampleRows([state], np.zeros(rows, dtype=np.int64), 640 + np.arange(rows), path_rows, chain[path_nodes])


def timed(work: Callable[[], object]) -> float:
    """CPU ms."""
    begin = process_time()
    work()
    return (process_time() - begin) * 1e3


def measure(
    logits: list[torch.Tensor], counts: list[int], rounds: int, model: Model | None
) -> tuple[dict[int, float], dict[str, dict[int, float]]]:
    """CPU ms of a verify by rows, and of choosing its tokens by setting and rows."""
    verifies = dict.fromkeys(counts, np.inf)
    costs = {name: {rows: np.full(len(logits), np.inf) for rows in counts} for name in SETTINGS}
    for done in range(rounds):
        for rows in counts:
            if model is not None:
                verifies[rows] = min(verifies[rows], *(timed(lambda n=rows: model.verify(n)) for _ in range(3)))  # type: ignore[misc]
            for name, params in SETTINGS.items():
                cost, verify = costs[name][rows], a_verify(params, rows)
                for text, whole in enumerate(logits):
                    part = whole[:rows]
                    verify.positions = 640 + text * rows + np.arange(rows)
                    cost[text] = min(cost[text], *(timed(lambda p=part, v=verify: choose(p, v)) for _ in range(2)))  # type: ignore[misc]
        print(f"round {done + 1} of {rounds}", file=sys.stderr, flush=True)
    means = {name: {rows: float(cost.mean()) for rows, cost in by.items()} for name, by in costs.items()}
    return {rows: float(ms) for rows, ms in verifies.items() if model is not None}, means


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--vocab", type=int, help="logits drawn at random instead of a model's")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = None if args.vocab else Model(args.model)
    logits = (
        model_like(args.texts, max(args.rows), args.vocab)
        if model is None
        else model.logits(args.texts, max(args.rows))
    )
    verifies, costs = measure(logits, args.rows, args.rounds, model)
    shares = {name: {rows: ms / verifies[rows] for rows, ms in by.items() if verifies} for name, by in costs.items()}
    print(f"{f'CPU ms, V = {logits[0].shape[1]}':40s}" + "".join(f"{rows:>9d} rows    " for rows in args.rows))
    if verifies:
        print(f"{'a verify':40s}" + "".join(f"{verifies[rows]:9.2f}         " for rows in args.rows))
    for name, by in costs.items():
        columns = (f"{ms:9.2f}" + (f" {shares[name][rows]:6.1%}  " if verifies else " " * 9) for rows, ms in by.items())
        print(f"{name:40s}" + "".join(columns))
    missed = [name for name, by in shares.items() if by.get(BOUND_ROWS, 0) > BOUND]
    print(f"above {BOUND:.0%} of a verify of {BOUND_ROWS} rows: {'; '.join(missed) or 'none'}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"schema": 1, "bound": BOUND, "verify_ms": verifies, "choose_ms": costs, "missed": missed}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
