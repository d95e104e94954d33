"""Which confidence tells better, above temperature 0, whether a draft token will be accepted?

    python benchmarks/noisy_confidence.py [--goldens FOLDER | --model MODEL --skip 8 11] [--temperatures 0.7 1]
                                           [--requests 24] [--tokens 48] [--json]

A drafter picks the token with the highest log q + g, g the target's own noise. Three confidences of that token:
q       its probability
margin  the logistic function of its score less the runner-up's
share   its share of the softmax over all scores: the same, against all others together

With --goldens, the heads that were trained for tiny targets draft chains of 4 in the engine; each verified token whose
parent was accepted is a label. Heads that grow trees by confidence also draft trees of 8 nodes, by q and by share: what
they make a verify, bonus token included. With --model, a model without some of its layers drafts the next token at each
position of the example prompts. AUC: how often an accepted token has a higher confidence than a refused one. Log loss
in nats: of a logistic regression on the log-odds, fitted to half of the labels and tried on the others.

Shapes: N positions, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file runs by its path

from benchmarks.live_abba import prompts
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.tokenizer import load_tokenizer
from draftwing.config_models import Config
from draftwing.core import DraftShape, Request, SamplingParams, StepPlan
from draftwing.drafters import block_drafter, feature_drafter, medusa_drafter, model_drafter
from draftwing.drafters.children import HASHED, Children, children, in_target_ids
from draftwing.engine.build import build_local
from draftwing.engine.loading import load_target
from draftwing.engine.noise import gumbel
from draftwing.engine.processors import SampleRows, SamplerState, process, to_device
from draftwing.engine.step import Engine
from draftwing.offline import acceptance_length, run_all
from draftwing.policy.base import PlanInputs, StepResult
from draftwing.policy.modes import FixedPolicy
from draftwing.policy.nodes import log_odds, side_by_side
from draftwing.prompts import random_prompts
from draftwing.testing.golden_world import HEADS
from draftwing.testing.goldens.case import Case

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("q", "margin", "share")
CHAIN, TREE = DraftShape((1,) * 4, 4), DraftShape((4, 3, 2, 1), 8)
GROWN = ("eagle1_nobias", "eagle3_d2t", "dflash_full")  # heads whose trees follow confidences
TEXT, TARGETS_BEST, DRAWS = 64, 192, 4  # tokens of a text; of the target that may win; draws of the noise
Floats = npt.NDArray[np.float64]


def confidences(top: Tensor, scores: Tensor) -> Tensor:
    """[N, 3] of the tokens with the best scores. top [N, HASHED]: log q of the likeliest; scores: with noise."""
    best = scores.topk(2, -1)
    q = top.gather(1, best.indices[:, :1])[:, 0].exp()
    margin = (best.values[:, 0] - best.values[:, 1]).sigmoid()
    return torch.stack([q, margin, scores.softmax(-1).amax(-1)], 1)


@dataclass(slots=True)
class Noted:
    """The confidences of the tokens drafted at (noise key, position)."""

    found: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def children(self, logits: Tensor, rows: SampleRows, width: int, *rest: Any, **more: Any) -> Children:
        """In place of the drafters' own: the same, and noted."""
        values = log_q(logits, rows, *rest)
        top, tokens = values.topk(min(HASHED, values.shape[1]), -1)
        keys = np.array([state.key for state in rows.sequences], dtype=np.int64)[rows.seq_of_row]
        noise = gumbel(to_device(keys, values), to_device(rows.positions, values), tokens)
        places = zip(keys.tolist(), rows.positions.tolist(), strict=True)
        self.found |= dict(zip(places, confidences(top, top + noise).tolist(), strict=True))
        return children(logits, rows, width, *rest, **more)


def log_q(logits: Tensor, rows: SampleRows, ids: Tensor | None = None, size: int | None = None) -> Tensor:
    """[N, V] of the drafter, after the request's own processors."""
    own = logits[:, :size] if ids is None or size is None else in_target_ids(logits, ids, size)
    return process(own, rows).log_softmax(-1)


def by_q(logits: Tensor, rows: SampleRows, width: int, *rest: Any, **more: Any) -> Children:
    """The same children, with their probabilities as confidences."""
    made = children(logits, rows, width, *rest, **more)
    shares = log_q(logits, rows, *rest).exp().gather(1, torch.from_numpy(made.tokens))
    return Children(made.tokens, shares.numpy(), made.sources)


class Labels(FixedPolicy):
    """Chains, and what became of them. keys: the noise key of each request. rows: confidences, and 1 if accepted."""

    def __init__(self, drafter: str, noted: Noted, keys: dict[str, int]) -> None:
        super().__init__(drafter, CHAIN)
        self._noted, self._keys = noted, keys
        self.rows: list[list[float]] = []

    def observe(self, inputs: PlanInputs, plan: StepPlan, result: StepResult) -> None:
        nodes = side_by_side(result.drafts)
        accepted = np.zeros(len(nodes), dtype=np.bool_)
        for start, right in zip(nodes.starts[:-1].tolist(), result.accepted, strict=True):
            accepted[start + right] = True
        for i in np.flatnonzero((nodes.parents < 0) | accepted[nodes.parents]).tolist():
            owner = int(nodes.owner[i])
            place = (self._keys[inputs.requests[owner]], int(inputs.contexts[owner] + nodes.depth[i]))
            self.rows.append([*self._noted.found[place], float(accepted[i])])


def with_head(folder: Path, name: str, chosen_by: Any) -> Engine:
    """An engine of a golden case, whose drafter gets its children from `chosen_by`."""
    case = Case(folder / name)
    document = {
        "model": {"path": str(case.part("target")), "compile": False, "cpu_threads": 1},
        "drafters": [{"path": str(case.part("drafter")), **HEADS[name]}],
        "limits": {"context": 128, "sequences": 8},
        "cache": {"tokens": 2048},
    }
    for module in (feature_drafter, block_drafter, medusa_drafter, model_drafter):
        module.children = chosen_by  # type: ignore[attr-defined]
    return build_local(Config.model_validate(document))[0]


def requests(engine: Engine, temperature: float, count: int, tokens: int) -> list[Request]:
    texts = random_prompts(engine.runner.vocab_size)
    params = [SamplingParams(max_tokens=tokens, temperature=temperature, seed=i, ignore_eos=True) for i in range(count)]
    return [Request(f"{i}", texts[i % len(texts)], one) for i, one in enumerate(params)]


def of_trees(folder: Path, name: str, *traffic: Any) -> dict[str, float]:
    """Acceptance length of trees that are grown by q, and by share."""
    found = {}
    for kind, chosen_by in (("q", by_q), ("share", children)):
        engine = with_head(folder, name, chosen_by)
        engine.policy = FixedPolicy(engine.policy.drafter, TREE)
        found[kind] = acceptance_length(run_all(engine, requests(engine, *traffic)))
    return found


def of_head(folder: Path, name: str, *traffic: Any) -> Floats:
    """[labels, 4]: confidences, and 1 where accepted."""
    noted = Noted()
    engine = with_head(folder, name, noted.children)
    asked = requests(engine, *traffic)
    keys = {one.id: SamplerState.create(one.params, one.prompt_ids).key for one in asked}
    labels = engine.policy = Labels(engine.policy.drafter, noted, keys)
    run_all(engine, asked)
    return np.array(labels.rows)


@torch.inference_mode()
def of_model(name: str, skipped: list[int], temperatures: list[float]) -> Iterator[tuple[float, Floats]]:
    """The same of a model without some layers, temperature by temperature."""
    folder = resolve_model(Config.model_validate({"model": {"path": name}}).model)
    model = load_target(folder, dtype="float32", device="cpu", threads=1, attn_implementation="eager").model
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise SystemExit(f"{name} has no tokenizer")
    texts = [torch.tensor([tokenizer.encode(text)[:TEXT]]) for text in prompts(None)]
    of_target = [model(ids, use_cache=False).logits[0] for ids in texts]
    decoder: Any = model.model
    decoder.layers = nn.ModuleList(layer for i, layer in enumerate(decoder.layers) if i not in skipped)
    decoder.config.num_hidden_layers = len(decoder.layers)
    of_drafter = [model(ids, use_cache=False).logits[0] for ids in texts]
    for temperature in temperatures:
        found = []
        for target, drafter in zip(of_target, of_drafter, strict=True):
            log_p, candidates = (target / temperature).log_softmax(-1).topk(TARGETS_BEST, -1)
            log_q, drafted = (drafter / temperature).log_softmax(-1).topk(HASHED, -1)
            positions = torch.arange(len(target))
            for key in range(DRAWS):
                keys = torch.full_like(positions, 7919 * key + 13)
                chosen = (log_p + gumbel(keys, positions, candidates)).argmax(-1, keepdim=True)
                scores = log_q + gumbel(keys, positions, drafted)
                same = candidates.gather(1, chosen) == drafted.gather(1, scores.argmax(-1, keepdim=True))
                found.append(torch.cat([confidences(log_q, scores), same], 1).numpy())
        yield temperature, np.concatenate(found).astype(np.float64)


def auc(x: Floats, accepted: npt.NDArray[np.bool_]) -> float:
    """Ties count half."""
    yes, no = x[accepted][:, None], x[~accepted]
    return float((yes > no).mean() + (yes == no).mean() / 2)


def held_out_loss(x: Floats, accepted: npt.NDArray[np.bool_]) -> float:
    order = np.random.default_rng(0).permutation(len(x))
    columns, y = np.column_stack([x, np.ones(len(x))])[order], accepted[order].astype(np.float64)
    fit, test, weights = slice(0, None, 2), slice(1, None, 2), np.zeros(2)

    def chance(rows: slice) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip(columns[rows] @ weights, -20, 20))))

    for _ in range(30):
        p = chance(fit)
        hessian = (columns[fit].T * (p * (1 - p))) @ columns[fit] + 1e-3 * np.eye(2)
        weights = weights + np.linalg.solve(hessian, columns[fit].T @ (y[fit] - p) - 1e-3 * weights)
    return float(-np.log(np.where(y[test] > 0, chance(test), 1 - chance(test))).mean())


def summary(drafter: str, temperature: float, rows: Floats) -> dict[str, Any]:
    accepted = rows[:, -1] > 0
    odds = [log_odds(rows[:, i].astype(np.float32), len(rows)) for i in range(len(KINDS))]
    return {
        "drafter": drafter,
        "temperature": temperature,
        "labels": len(rows),
        "accepted": float(accepted.mean()),
        "auc": {kind: auc(x, accepted) for kind, x in zip(KINDS, odds, strict=True)},
        "loss": {kind: held_out_loss(x, accepted) for kind, x in zip(KINDS, odds, strict=True)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goldens", type=Path, default=ROOT / "tests" / "goldens")
    parser.add_argument("--heads", nargs="+", choices=sorted(HEADS), default=list(HEADS))
    parser.add_argument("--model")
    parser.add_argument("--skip", type=int, nargs="+", default=[8, 11], metavar="LAYER")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.model is None:
        each = [(name, temperature) for name in args.heads for temperature in args.temperatures]
        found = ((*one, of_head(args.goldens, *one, args.requests, args.tokens)) for one in each)
    else:
        name = f"without {' '.join(map(str, args.skip))}"
        found = ((name, *one) for one in of_model(args.model, args.skip, args.temperatures))
    rows = []
    for one in found:
        row = summary(*one)
        if args.model is None and one[0] in GROWN:
            row["tree"] = of_trees(args.goldens, *one[:2], args.requests, args.tokens)
        rows.append(row)
        if not args.json:
            tables = [(what, row[what]) for what in ("auc", "loss", "tree") if what in row]
            told = [f"{what} " + " ".join(f"{kind} {n:.3f}" for kind, n in table.items()) for what, table in tables]
            head = f"{row['drafter']:18} T {row['temperature']}: {row['labels']} labels, {row['accepted']:.2f} accepted"
            print("   ".join([head, *told]), flush=True)
    if args.json:
        print(json.dumps({"schema": 1, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
