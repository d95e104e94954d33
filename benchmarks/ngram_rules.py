"""Which settings of the ngram drafter accept most on a text: prompts and outputs that exist, replayed without a model.

    python benchmarks/ngram_rules.py [RECORDS.jsonl] [--tokenizer FOLDER]

RECORDS: one JSON object a line with "set", "prompt" and "output" (texts, for example answers that were served). Without
it, texts are made from this repository's own files: code with a name changed (edit), lines of a page (quote), the rest
of a file (continue). Without a tokenizer, words and their parts stand for tokens.

tau: tokens committed per verify. nodes: drafted per verify. speed: tokens per unit of time against plain decoding, if
every draft node adds --node-cost of a plain step.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from draftwing.core import DraftShape, DraftTree, SamplingParams, StepPlan
from draftwing.drafters.base import NullController, TargetInfo
from draftwing.drafters.ngram import NgramDrafter, NgramOptions
from draftwing.testing.drafters import View

ROOT = Path(__file__).resolve().parents[1]
SETTINGS: list[dict[str, object]] = [
    {"rule": "recent"},
    {"rule": "recent", "draft_per_match": 2},
    {"rule": "recent", "draft_per_match": None},
    {"rule": "recent", "draft_per_match": None, "min_match": 2},
    {"rule": "recent", "max_match": 3},
    {"rule": "vllm", "min_match": 1, "max_match": 8},
    {"rule": "vllm", "min_match": 2, "max_match": 8},
    {"rule": "vllm", "min_match": 5, "max_match": 5},
    {"rule": "hf", "max_match": 2},
]


class Replay(NamedTuple):
    prompt: list[int]
    output: list[int]


class Result(NamedTuple):
    tau: float
    nodes: float


def own_texts() -> Iterator[tuple[str, str, str]]:
    """(set, prompt, output)"""
    rng = random.Random(0)
    for path in sorted(ROOT.glob("platform/draftwing/*/*.py"))[:30]:
        code = path.read_text()
        if names := re.findall(r"\bdef (\w+)", code):
            yield "edit", code[:6000], code[:3000].replace(names[0], f"new_{names[0]}")
        yield "continue", code[: len(code) * 2 // 3], code[len(code) * 2 // 3 :][:3000]
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]):
        lines = [line for line in path.read_text().splitlines() if len(line) > 40]
        yield "quote", path.read_text()[:8000], "\n".join(f"> {line}" for line in lines[:60] if rng.random() < 0.4)


def accepted(draft: DraftTree, output: list[int]) -> int:
    count, parent = 0, -1
    families = zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
    below = {family: node for node, family in enumerate(families)}
    for token in output:
        if (node := below.get((parent, token))) is None:
            break
        count, parent = count + 1, node
    return count


def replay(records: list[Replay], options: NgramOptions, shape: DraftShape) -> Result:
    drafter = NgramDrafter(options)
    drafter.bind(TargetInfo(vocab_size=2**31, context_length=2**31))
    plan, steps, nodes, tokens = StepPlan("ngram", (shape,)), 0, 0, 0
    for prompt, output in records:
        view = View("replay", prompt + output[:1], len(prompt), SamplingParams(max_tokens=2**31))
        done = 1
        while done < len(output):
            (draft,) = drafter.propose([view], plan, NullController())
            committed = min(accepted(draft, output[done:]) + 1, len(output) - done)
            view.tokens += output[done : done + committed]
            done, steps, nodes, tokens = done + committed, steps + 1, nodes + len(draft), tokens + committed
        drafter.release(view)
    return Result(tokens / max(steps, 1), nodes / max(steps, 1))


def encoder(folder: str | None) -> Callable[[str], list[int]]:
    if folder is None:
        ids: dict[str, int] = {}
        return lambda text: [ids.setdefault(part, len(ids)) for part in re.findall(r" ?\w{1,6}|\s+|.", text)]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="?", type=Path, metavar="RECORDS.jsonl")
    parser.add_argument("--tokenizer", metavar="FOLDER")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[4, 8], metavar="K")
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--node-cost", type=float, default=0.15, metavar="PART")
    args = parser.parse_args()
    encode = encoder(args.tokenizer)
    if args.records is None:
        texts = list(own_texts())
    else:
        rows = [json.loads(line) for line in args.records.read_text().splitlines()]
        texts = [(row["set"], row["prompt"], row["output"]) for row in rows]
    sets: dict[str, list[Replay]] = {}
    for name, prompt, output in texts:
        sets.setdefault(name, []).append(Replay(encode(prompt), encode(output)))
    print(f"{'k':>2}  {'settings':<52}" + "".join(f"{name:>22}" for name in sets))
    print(f"{'':>2}  {'':<52}" + "".join(f"{'tau':>8}{'nodes':>7}{'speed':>7}" for _ in sets))
    for depth in args.draft_tokens:
        shape = DraftShape((args.width, *[1] * (depth - 1)), depth * args.width)
        for setting in SETTINGS:
            results = [replay(records, NgramOptions.model_validate(setting), shape) for records in sets.values()]
            cells = [f"{r.tau:8.2f}{r.nodes:7.1f}{r.tau / (1 + args.node_cost * r.nodes):7.2f}" for r in results]
            label = " ".join(f"{key}={value}" for key, value in setting.items())
            print(f"{depth:>2}  {label:<52}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
