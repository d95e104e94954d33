"""How far drafts are accepted by shared noise, by recursive rejection and with the top of q, on trained heads.

    python benchmarks/acceptance_rules.py [--goldens FOLDER] [--temperatures 0.7 1] [--widths 1 2 4 8] [--json]

Heads that were trained for their tiny targets draft after text that the target wrote. p is the target's distribution at
a node and q the head's, both after temperature; a draft is followed from the root while its nodes are accepted, in many
draws. Width 1 is a chain, width w the tree w x w/2 x 1 x 1. What stands in the table is the acceptance length:
accepted tokens and the bonus token. Beside chains: the least that shared noise reaches, where every node is accepted
with (1 - TV) / (1 + TV), and the most that any rule does, with 1 - TV.

Shared noise and the top of q see the same noise of the target. Exit code 1: shared noise doesn't beat the top of q, or
for four children or more stays over 10 % behind recursive rejection.

V vocabulary, N walks, W children.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.config_models import Config, DrafterConfig
from draftwing.core import DraftShape, SamplingParams, StepPlan
from draftwing.drafters import feature_drafter
from draftwing.drafters.base import FeatureRows, NullController
from draftwing.drafters.children import in_target_ids
from draftwing.drafters.registry import make_drafter
from draftwing.engine.build import target_info
from draftwing.engine.loading import load_target
from draftwing.testing.drafters import View
from draftwing.testing.goldens.case import Case

METHODS = {"eagle1": "eagle", "eagle3": "eagle3", "eagle3_speculators": "eagle3"}
RULES = ("shared", "rejection", "top", "bound", "optimal")
CONTEXT, WRITTEN, DEPTH, BLOCK_TOKENS = 10, 8, 4, 8
Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class Pair:
    """A target and its head, after some texts; what either says after a path of tokens is worked out once."""

    def __init__(self, case: Case, texts: int, temperature: float) -> None:
        folder = case.part("target")
        assert folder is not None
        config = Config.model_validate({"model": {"path": str(folder), "dtype": "float32", "compile": False}})
        loaded = load_target(resolve_model(config.model), dtype="float32", device="cpu", attn_implementation="eager")
        self.model, self.temperature, self.vocab = loaded.model, temperature, loaded.vocab_size
        entry = {"method": METHODS[case.kind], "path": str(case.part("drafter"))}
        self.drafter: Any = make_drafter(DrafterConfig.model_validate(entry))
        self.drafter.bind(target_info(config, loaded, 128, None), open_checkpoint(entry["path"]))
        blocks = 128 // BLOCK_TOKENS
        self.drafter.reserve(blocks * texts, BLOCK_TOKENS)
        self._known: dict[tuple[int, ...], tuple[Array, Array]] = {}
        source = Case(folder.parent)
        stored = [t.tolist() for name, t in sorted(source.tensors.items()) if name.startswith("prompt_")]
        prompts = [prompt[:CONTEXT] for prompt in stored if len(prompt) >= CONTEXT]
        self.views = []
        draw = np.random.default_rng(1)
        for i in range(texts):
            tokens = [int(t) for t in prompts[i % len(prompts)]]
            for _ in range(WRITTEN + 1):
                tokens.append(int(draw.choice(self.vocab, p=self.target([tokens])[0])))
            view = View(str(i), tokens, CONTEXT, SamplingParams(), table=list(range(i * blocks, (i + 1) * blocks)))
            self.views.append(view)
        self.drafter.prefill(self.views, [self._features(view) for view in self.views])

    @torch.inference_mode()
    def target(self, rows: list[list[int]]) -> Array:
        logits = self.model(torch.tensor(rows), use_cache=False, logits_to_keep=1).logits[:, -1]
        return softmax(logits.double().numpy() / self.temperature)

    @torch.inference_mode()
    def _features(self, view: View) -> FeatureRows:
        states = self.model(torch.tensor([view.tokens[:-1]]), output_hidden_states=True, use_cache=False).hidden_states
        return FeatureRows(0, tuple(states[i][0] for i in self.drafter.traits.hidden_layers))

    def after(self, texts: Ids, paths: Ids) -> tuple[Array, Array]:
        """p, q [N, V] after texts [N] and the paths [N, D] that follow them."""
        keys = [(int(text), *path) for text, path in zip(texts, paths.tolist(), strict=True)]
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        for start in range(0, len(new), 64):
            part = new[start : start + 64]
            p = self.target([[*self.views[text].tokens, *path] for text, *path in part])
            self._known.update(zip(part, zip(p, self._draft(part), strict=True), strict=True))
        p, q = zip(*(self._known[key] for key in keys), strict=True)
        return np.array(p), np.array(q)

    def _draft(self, keys: list[tuple[int, ...]]) -> Array:
        """The head's distributions: what it would choose the first draft token from, after hypothetical ones."""
        held: list[Any] = []
        module, chosen = vars(feature_drafter), feature_drafter.children

        def watched(logits: Any, *more: Any, **rest: Any) -> Any:
            held.append(in_target_ids(logits, self.drafter.head.target_ids, self.vocab))
            return chosen(logits, *more, **rest)

        views, bases = [self.views[key[0]] for key in keys], [list(key[1:]) for key in keys]
        module["children"] = watched
        try:
            self.drafter.propose(views, StepPlan("", (DraftShape((1,), 1),) * len(keys)), NullController(), bases)
        finally:
            module["children"] = chosen
        return softmax(held[0].double().numpy() / self.temperature)


def softmax(values: Array) -> Array:
    weights = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def walk(pair: Pair, rule: str, branching: tuple[int, ...], draws: int) -> Array:
    """Acceptance lengths [N] of drafts of this shape after every text."""
    random = np.random.default_rng(0)
    texts = np.repeat(np.arange(len(pair.views)), draws)
    paths, live, length = np.empty((len(texts), 0), dtype=np.int64), np.arange(len(texts)), np.ones(len(texts))
    for width in branching:
        noise, other = random.gumbel(size=(2, len(texts), pair.vocab))
        tests = random.random((len(texts), max(branching)))
        p, q = pair.after(texts[live], paths)
        token, taken = node(rule, p, q, width, noise[live], other[live], tests[live])
        length[live] += taken
        paths = np.concatenate([paths, token[:, None]], axis=1)[taken]
        live = live[taken]
        if not len(live):
            break
    return length


def node(rule: str, p: Array, q: Array, width: int, noise: Array, other: Array, tests: Array) -> tuple[Ids, Any]:
    """The token after each node [N], and whether it was drafted. noise, other [N, V]: Gumbel; tests [N, W]: uniform."""
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    token = (log_p + noise).argmax(1)
    if rule in ("bound", "optimal"):
        overlap = np.minimum(p, q).sum(1)
        return token, tests[:, 0] < (overlap if rule == "optimal" else overlap / (2 - overlap))
    if rule == "rejection":
        return rejection(p, q, np.argsort(-(log_q + other), axis=1)[:, :width], tests)
    scores = log_q + noise if rule == "shared" else log_q
    children = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    return token, (children == token[:, None]).any(1)


def rejection(p: Array, q: Array, drawn: Ids, tests: Array) -> tuple[Ids, Any]:
    """drawn [N, W]: children in the order in which they were drawn without replacement from q."""
    at, taken, token = np.arange(len(p)), np.zeros(len(p), dtype=np.bool_), drawn[:, 0].copy()
    rest, left = p.copy(), q.copy()
    for child, test in zip(drawn.T, tests.T, strict=False):
        total = left.sum(1, keepdims=True)
        share = np.divide(left, total, out=np.zeros_like(left), where=total > 0)
        accepted = ~taken & (share[at, child] > 0) & (test * share[at, child] < rest[at, child])
        token[accepted], taken = child[accepted], taken | accepted
        residue = np.maximum(rest - share, 0.0)
        mass = residue.sum(1, keepdims=True)
        rest = np.where(mass > 0, residue / np.where(mass > 0, mass, 1.0), rest)
        left[at, child] = 0.0
    return token, taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goldens", type=Path, default=Path(__file__).resolve().parents[1] / "tests" / "goldens")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table, faults = [], []
    for case in (Case(path.parent) for path in sorted(args.goldens.glob("*/case.json"))):
        for temperature in args.temperatures if case.kind in METHODS else ():
            pair = Pair(case, args.texts, temperature)
            for width in args.widths:
                branching = (width, max(width // 2, 1), *(1,) * (DEPTH - 2))
                rules = RULES if width == 1 else RULES[:3]
                row: dict[str, Any] = {"case": case.name, "temperature": temperature, "width": width}
                row |= {rule: round(float(walk(pair, rule, branching, args.draws).mean()), 3) for rule in rules}
                table.append(row)
                if row["shared"] <= row["top"] or (width >= 4 and row["shared"] < 0.9 * row["rejection"]):
                    faults.append(row)
    if args.json:
        print(json.dumps({"schema": 2, "walks": args.texts * args.draws, "rows": table, "faults": faults}, indent=1))
        return int(bool(faults))
    columns = ("case", "temperature", "width", *RULES)
    print("".join(f"{name:>13s}" if name != "case" else f"{name:20s}" for name in columns))
    for row in table:
        print("".join(f"{row.get(c, '')!s:>13s}" if c != "case" else f"{row[c]!s:20s}" for c in columns))
    print(f"{len(faults)} of {len(table)} rows miss the bounds" if faults else "every row keeps the bounds")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
