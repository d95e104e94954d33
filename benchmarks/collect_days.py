"""Collect the two days of text that `replay_day.py` replays: one to tune on, one held out.

Text: Gemma 3 270M (the demo model) on HumanEval prompts (code, greedy), made-up articles to be summed up (summary,
greedy) and questions of our own (chat, temperature 0.8). Drafters: `ngram`, and `thin`, the same model without its 15th
layer, untrained: it agrees with the whole one at 0.5 to 0.8 of the positions, as trained heads do on real targets.
The days share no prompt. A day whose answers are there already goes on with the drafter `thin`.

usage: python benchmarks/collect_days.py --day train|held_out [--answers 10] [--tokens 56] [--work DIR] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.tokenizer import TextTokenizer
from draftwing.config_models import Config, ModelConfig
from draftwing.core import DraftShape, Request, SamplingParams
from draftwing.drafters.tree import full_size
from draftwing.engine.build import build_local
from draftwing.testing.loops import loops
from draftwing_tuner.collect import answer, propose
from draftwing_tuner.trace import REQUESTS, Trace, read_trace, write_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file runs by its path

from tests.prompts import humaneval, made_up_article

MODEL = "gemma-3-270m"
SKIPPED = 14  # layer, counted from 0
SHAPES = ((1,) * 8, (3, 2))
CHAT_TEMPERATURE = 0.8
DATA = Path(__file__).parent / "data"
ORIGIN = (
    "Output of Gemma 3 270M (google/gemma-3-270m, Gemma Terms of Use: ai.google.dev/gemma/terms) on prompts of "
    "HumanEval (Copyright (c) OpenAI, MIT License) and prompts made by this project."
)

ASKED = {
    "train": (
        ("a rainy weekend in the mountains", "learning to bake bread", "a first bicycle", "the tides", "old maps"),
        ("Rust", "compound interest", "beekeeping", "a long train journey", "choosing a telescope"),
    ),
    "held_out": (
        ("a night train", "mending a bicycle tyre", "learning to sing", "the first snow", "a village market"),
        ("hash tables", "paying taxes", "keeping hens", "a summer on a farm", "choosing a piano"),
    ),
}
FORMS = (
    "User: Can you give me some advice about {topic}?\nAssistant:",
    "User: I have to write a short letter to a friend about {topic}. How could it begin?\nAssistant: Dear",
    "User: What do people get wrong about {topic}?\nAssistant: Most people",
    "User: Explain {topic} to a child of ten, please.\nAssistant:",
)


def prompts(day: str, count: int) -> list[tuple[str, str]]:
    """(kind, text): `count` of each kind."""
    tasks = humaneval(50)
    code = tasks[0:20:2] if day == "train" else tasks[30:]
    topics = [topic for group in ASKED[day] for topic in group]
    chat = [form.format(topic=topic) for topic in topics for form in FORMS]
    random.Random(day).shuffle(chat)
    articles = [made_up_article(seed + (1000 if day == "train" else 5000)) for seed in range(count)]
    if min(len(code), len(chat)) < count:
        raise SystemExit(f"--answers is {count}; expected at most {min(len(code), len(chat))}")
    named = (("code", code), ("chat", chat), ("summary", articles))
    return [(kind, text) for kind, texts in named for text in texts[:count]]


def thin_model(work: Path) -> Path:
    """The demo model's folder without one layer."""
    source = resolve_model(ModelConfig(path=MODEL)).path
    folder = work / "thin"
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    del config["layer_types"][SKIPPED]
    config["num_hidden_layers"] -= 1
    tensors = {}
    for path in source.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                found = re.fullmatch(r"(.*\.layers\.)(\d+)(\..*)", name)
                if found is None:
                    tensors[name] = file.get_tensor(name)
                elif int(found[2]) != SKIPPED:
                    layer = int(found[2]) - (int(found[2]) > SKIPPED)
                    tensors[f"{found[1]}{layer}{found[3]}"] = file.get_tensor(name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for path in source.iterdir():
        if path.is_file() and path.suffix == ".json" and "index" not in path.name:
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def config(drafter: dict[str, object]) -> Config:
    return Config.model_validate(
        {
            "model": {"path": MODEL, "cpu_threads": 1},
            "drafters": [drafter],
            "limits": {"sequences": 42, "prefill_chunk": 256},
            "cache": {"tokens": 40960, "prefix": False},
        }
    )


def requests(day: str, count: int, tokens: int, tokenizer: TextTokenizer) -> list[tuple[str, Request]]:
    made = []
    for number, (kind, text) in enumerate(prompts(day, count)):
        temperature = CHAT_TEMPERATURE if kind == "chat" else 0.0
        params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=number)
        made.append((kind, Request(f"{day}-{kind}-{number}", tokenizer.encode(text), params)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", choices=sorted(ASKED), required=True)
    parser.add_argument("--answers", type=int, default=10, help="of each kind")
    parser.add_argument("--tokens", type=int, default=56)
    parser.add_argument("--work", type=Path, default=Path("build/collect"), help="where the thin model is made")
    parser.add_argument("--out", type=Path, default=DATA)
    args = parser.parse_args()
    shapes = [DraftShape(branching, full_size(branching)) for branching in SHAPES]
    engine, tokenizer = build_local(config({"method": "ngram"}), progress=print)
    if tokenizer is None:
        raise SystemExit(f"{MODEL} has no tokenizer")
    asked = requests(args.day, args.answers, args.tokens, tokenizer)
    out, alone = args.out / args.day, [request for _, request in asked]
    about = {"model": MODEL, "day": args.day, "origin": ORIGIN, "thin": f"the model without layer {SKIPPED}"}
    if (out / REQUESTS).exists():
        trace = read_trace(out)
    else:
        answers = tuple(answer(engine, asked))
        found = propose(engine, alone, [one.output for one in answers], shapes, print)
        trace = Trace(answers, {"ngram": tuple(found)}, about)
        write_trace(trace, out)
    print(f"{sum(loops(one.output) for one in trace.requests)} of {len(trace.requests)} answers loop", flush=True)
    thin = {"method": "draft_model", "name": "thin", "path": str(thin_model(args.work)), "dtype": "float32"}
    engine, _ = build_local(config(thin), progress=print)
    found = propose(engine, alone, [one.output for one in trace.requests], shapes, print)
    write_trace(Trace(trace.requests, {**trace.proposals, "thin": tuple(found)}, about), out)


if __name__ == "__main__":
    main()
