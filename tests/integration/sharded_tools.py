"""Two processes that share a target, driven through lists of jobs; drafting heads of any size, made at random."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from safetensors.torch import save_file

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.engine.step import Engine
from draftwing.parallel.group import LeadingRunner
from draftwing.parallel.place import RankPlace
from draftwing.parallel.sharded import Team
from draftwing.testing.run_engine import run_to_end

WAIT_S = 120.0


@dataclass(slots=True)
class Outcome:
    """What one engine gave: tokens of each request, and what it cost. bytes_: of this rank's weights."""

    tokens: dict[str, list[int]]
    accepted: int
    branched: int
    preemptions: int
    hits: int
    failures: int
    weights: int
    kv_per_token: int
    words: list[tuple[int, int, int]] = field(default_factory=list)


def decode(engine: Engine, requests: list[Request]) -> Outcome:
    """Run the requests to their end, and look at the engine."""
    sizes: list[tuple[int, int, int]] = []
    runner = engine.runner
    if isinstance(runner, LeadingRunner):
        _watch(runner, sizes)
    got = run_to_end(engine, requests)
    inner: Any = runner._runner if isinstance(runner, LeadingRunner) else runner
    counters = engine.counters
    kv = sum(keys[0].numel() + values[0].numel() for keys, values in inner.pages)
    return Outcome(
        tokens={name: one.tokens for name, one in got.items()},
        accepted=counters.accepted_tokens,
        branched=counters.branched_tokens,
        preemptions=counters.preemptions,
        hits=counters.prefix_hits,
        failures=engine.drafting.failures + counters.bad_drafts,
        weights=sum(p.numel() for p in inner.model.parameters()),
        kv_per_token=kv,
        words=sizes,
    )


def _watch(runner: LeadingRunner, sizes: list[tuple[int, int, int]]) -> None:
    """Note words, rows and sequences of each packet."""
    pack = runner._packer.pack

    class Watched:
        def pack(self, sequences: Any, moves: Any) -> Any:
            words = pack(sequences, moves)
            sizes.append((len(words), sum(len(s.tokens) for s in sequences), len(sequences)))
            return words

    runner._packer = Watched()  # type: ignore[assignment]


def run_pair(jobs: list[tuple[dict[str, Any], list[Request]]]) -> list[Outcome]:
    """Every job on two ranks: the same two processes, a new group for each."""
    context = mp.get_context("spawn")
    stores, results = context.Queue(), context.Queue()
    ranks = [context.Process(target=_work, args=(rank, jobs, stores, results), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        outcomes = []
        for _ in jobs:
            outcome = results.get(timeout=WAIT_S)
            if isinstance(outcome, str):
                raise AssertionError(outcome)
            outcomes.append(outcome)
        for process in ranks:
            process.join(WAIT_S)
            assert process.exitcode == 0
        return outcomes
    finally:
        for process in ranks:
            process.kill()


def _work(rank: int, jobs: list[tuple[dict[str, Any], list[Request]]], stores: Any, results: Any) -> None:
    torch.set_num_threads(1)

    def report(state: dict[str, Any]) -> None:
        if state["state"] == "store":
            stores.put(state["address"])

    try:
        for document, requests in jobs:
            config = Config.model_validate(document).model_dump_json()
            if rank:
                team = Team(RankPlace(rank, 2, stores.get(timeout=WAIT_S)), report)
                team.follow(config, lambda _: None)
            else:
                team = Team(RankPlace(0, 2), report)
                results.put(decode(team.lead(config, lambda _: None), requests))
            team.stop()
    except Exception:
        results.put(traceback.format_exc())
        raise


def prompts_of(vocab: int, kind: str) -> list[Request]:
    """Three prompts, one of which comes twice; kind: greedy, or sampled under penalties and cuts."""
    params: dict[str, Any] = {"temperature": 0.0}
    if kind == "sampled":
        params = {"temperature": 0.8, "repetition_penalty": 1.1, "top_k": 40, "top_p": 0.95}
    made = []
    for i, length in enumerate((13, 26, 40, 26)):
        seed = 1 if i == 3 else i
        ids = torch.randint(3, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
        made.append(Request(f"{i}", ids, SamplingParams(max_tokens=24, seed=i, ignore_eos=True, **params)))
    return made


def random_eagle3(folder: Path, hidden: int, vocab: int) -> Path:
    """A head of EAGLE-3's layout with the target's own vocabulary, without embedding: it takes the target's."""
    draw = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        drawn: torch.Tensor = torch.randn(shape, generator=draw) / shape[-1] ** 0.5
        return drawn

    layer = "midlayer"
    tensors = {
        "fc.weight": weight(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": weight(vocab, hidden),
        f"{layer}.hidden_norm.weight": torch.ones(hidden),
        f"{layer}.input_layernorm.weight": torch.ones(hidden),
        f"{layer}.post_attention_layernorm.weight": torch.ones(hidden),
        f"{layer}.self_attn.q_proj.weight": weight(32, 2 * hidden),
        f"{layer}.self_attn.k_proj.weight": weight(16, 2 * hidden),
        f"{layer}.self_attn.v_proj.weight": weight(16, 2 * hidden),
        f"{layer}.self_attn.o_proj.weight": weight(hidden, 32),
        f"{layer}.mlp.gate_proj.weight": weight(64, hidden),
        f"{layer}.mlp.up_proj.weight": weight(64, hidden),
        f"{layer}.mlp.down_proj.weight": weight(hidden, 64),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": vocab,
        "draft_vocab_size": vocab,
        "rms_norm_eps": 1e-6,
    }
    return _save(folder, tensors, config)


def random_medusa(folder: Path, hidden: int, vocab: int) -> Path:
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for head in range(3):
        tensors[f"{head}.0.linear.weight"] = torch.randn(hidden, hidden, generator=draw) / hidden**0.5
        tensors[f"{head}.0.linear.bias"] = torch.zeros(hidden)
        tensors[f"{head}.1.weight"] = torch.randn(vocab, hidden, generator=draw)
    return _save(folder, tensors, {"medusa_num_heads": 3, "medusa_num_layers": 1})


def _save(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
