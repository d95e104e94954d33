"""How often a node has the target's token among its children: shared noise, rejection and the top of q, side by side.

    python benchmarks/acceptance_rules.py [--goldens FOLDER] [--temperatures 0.7 1] [--widths 1 4 8] [--json]

Trained heads draft chains of three tokens for their tiny targets; the distributions p of the target and q of the head
are kept at every node that was reached, and each rule is worked out on them: shared noise and recursive rejection
without replacement by drawing, the top of q exactly. Width 1 is a chain; there the mean of (1 - TV) / (1 + TV), which
shared noise reaches at least, and of 1 - TV, which no rule exceeds, stand beside.

V vocabulary, D draws of one node, W children.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from draftwing.config_models import Config
from draftwing.core import Request, SamplingParams
from draftwing.drafters import feature_drafter
from draftwing.engine import step
from draftwing.engine.build import build_local
from draftwing.offline import run_all
from draftwing.testing.goldens.case import Case

METHODS = {"eagle1": "eagle", "eagle3": "eagle3", "eagle3_speculators": "eagle3"}
Array = npt.NDArray[np.float64]
Node = tuple[Array, Array]


def nodes_of(case: Case, temperature: float, requests: int, tokens: int) -> list[Node]:
    """(p, q) of every node that decoding reached, after temperature."""
    engine, _ = build_local(config_of(case))
    found: list[Node] = []
    drafted: list[Any] = []
    drafter, engine_step = vars(feature_drafter), vars(step)
    grow, choose = drafter["children"], engine_step["choose"]

    def growing(logits: Any, rows: Any, width: int) -> Any:
        children = grow(logits, rows, width)
        drafted.append((softmax(logits[0].double().numpy() / temperature), int(children.tokens[0, 0])))
        return children

    def choosing(logits: Any, rows: Any) -> Any:
        choice = choose(logits, rows)
        for row, (q, token) in enumerate(drafted):
            found.append((softmax(logits[row].double().numpy() / temperature), q))
            if token != choice.tokens[row]:
                break
        drafted.clear()
        return choice

    source = case if "prompt" in case.tensors else Case(target_of(case).parent)
    prompts = [t.tolist() for name, t in sorted(source.tensors.items()) if name.startswith("prompt")]
    drafter["children"], engine_step["choose"] = growing, choosing
    try:
        for i in range(requests):
            params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=i, ignore_eos=True)
            run_all(engine, [Request(str(i), prompts[i % len(prompts)], params)])
    finally:
        drafter["children"], engine_step["choose"] = grow, choose
    return found


def target_of(case: Case) -> Path:
    folder = case.part("target")
    assert folder is not None
    return folder


def config_of(case: Case) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(target_of(case)), "dtype": "float32", "compile": False},
            "drafters": [{"name": "head", "method": METHODS[case.kind], "path": str(case.part("drafter"))}],
            "policy": {"mode": "fixed:k=3"},
            "limits": {"sequences": 1, "context": 128},
            "cache": {"tokens": 1024},
        }
    )


def softmax(values: Array) -> Array:
    weights = np.exp(values - values.max())
    return np.asarray(weights / weights.sum())


def by_rule(p: Array, q: Array, width: int, draws: int, random: np.random.Generator) -> tuple[float, float, float]:
    """Chance that a child is accepted: shared noise, recursive rejection, top of q."""
    noise = random.gumbel(size=(draws, len(p)))
    with np.errstate(divide="ignore"):
        target = (np.log(p) + noise).argmax(1)
        order = np.argsort(-(np.log(q) + noise), axis=1)[:, :width]
    shared = float((order == target[:, None]).any(1).mean())
    return shared, rejection(p, q, order), float(p[np.argsort(-q)[:width]].sum())


def rejection(p: Array, q: Array, drawn: npt.NDArray[np.int64]) -> float:
    """drawn [D, W]: children in the order in which they were drawn without replacement from q."""
    at = np.arange(len(drawn))
    rest, left, refused = np.tile(p, (len(drawn), 1)), np.tile(q, (len(drawn), 1)), np.ones(len(drawn))
    for child in drawn.T:
        total = left.sum(1, keepdims=True)
        share = np.divide(left, total, out=np.zeros_like(left), where=total > 0)
        chance = np.where(share[at, child] > 0, rest[at, child] / np.maximum(share[at, child], 1e-300), 0.0)
        refused *= 1 - np.minimum(chance, 1.0)
        residue = np.maximum(rest - share, 0.0)
        mass = residue.sum(1, keepdims=True)
        rest = np.where(mass > 0, residue / np.where(mass > 0, mass, 1.0), rest)
        left[at, child] = 0.0
    return float(1 - refused.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goldens", type=Path, default=Path(__file__).resolve().parents[1] / "tests" / "goldens")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = [Case(path.parent) for path in sorted(args.goldens.glob("*/case.json"))]
    table = []
    for case in (c for c in cases if c.kind in METHODS):
        for temperature in args.temperatures:
            nodes = nodes_of(case, temperature, args.requests, args.tokens)
            overlap = np.array([np.minimum(p, q).sum() for p, q in nodes])
            for width in args.widths:
                random = np.random.default_rng(0)
                rates = np.array([by_rule(p, q, width, args.draws, random) for p, q in nodes]).mean(0)
                row = {"case": case.name, "temperature": temperature, "width": width, "nodes": len(nodes)}
                row |= dict(zip(("shared", "rejection", "top"), rates.round(4).tolist(), strict=True))
                if width == 1:
                    bound = (overlap / (2 - overlap)).mean()
                    row |= {"bound": round(float(bound), 4), "optimal": round(float(overlap.mean()), 4)}
                table.append(row)
    if args.json:
        print(json.dumps({"schema": 1, "rows": table}, indent=1))
        return
    columns = ("case", "temperature", "width", "nodes", "shared", "rejection", "top", "bound", "optimal")
    print("".join(f"{name:>13s}" if name != "case" else f"{name:20s}" for name in columns))
    for row in table:
        print("".join(f"{row.get(c, '')!s:>13s}" if c != "case" else f"{row[c]!s:20s}" for c in columns))


if __name__ == "__main__":
    main()
