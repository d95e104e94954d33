"""Prompts for the tests on a real model: HumanEval's, and articles to be summed up."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from tests.conftest import ROOT

FOLDER = ROOT / "tests" / "data" / "prompts"
SPEC_BENCH = "spec_bench.jsonl"

PLACES = ("Almsund", "Brackwater", "Corrin", "Dunmore", "Estwick", "Farrow", "Gillingstad", "Hollin")
BODIES = ("town council", "school board", "harbour office", "hospital", "library", "fire brigade", "bus company")
THINGS = ("bridge", "footpath", "reading room", "sea wall", "bus line", "clock tower", "playground", "market hall")
DEEDS = ("repair", "replace", "close for a year", "move", "enlarge", "paint", "sell", "rent out")
REASONS = (
    "the old one has become too small",
    "an inspection found damage that can't be seen from outside",
    "the costs have doubled within {small} years",
    "{large} people signed a letter that asked for it",
    "a gift of {large} thousand was made for this purpose alone",
    "the state pays {small} tenths of the sum until the end of the year",
)
DETAILS = (
    "Work begins in {month} and should take {small} months.",
    "The {thing} was built in 18{year} and has been changed {small} times since.",
    "A first plan had been turned down in {month} by {small} votes to {more}.",
    "People who live nearby will be asked once more before {month}.",
    "The costs are put at {large} thousand, of which {body} pays half.",
    "A similar plan in {place} took {small} years longer than was promised.",
    'One speaker said: "We have waited {more} years for this, and we can wait for {month}."',
    "Until then the {thing} stays open on weekdays from {small} until five.",
    "In {place} a {thing} of the same kind was opened last {month}.",
    "No decision was made about the trees, of which {more} stand in the way.",
)
MONTHS = ("January", "March", "April", "June", "August", "October", "November")


def humaneval(count: int) -> list[str]:
    """The prompts of HumanEval's first tasks, at most 50."""
    return _read(FOLDER / "humaneval.jsonl", count)


def summaries(count: int) -> list[str]:
    """Our own articles to be summed up, at most 4."""
    return _read(FOLDER / "summary.jsonl", count)


def many_summaries(count: int) -> tuple[list[str], str]:
    """Articles to be summed up, and what they are: Spec-Bench's from $DRAFTWING_PROMPTS, else made up ones."""
    folder = os.environ.get("DRAFTWING_PROMPTS")
    if folder is None:
        return [made_up_article(seed) for seed in range(count)], "made up articles"
    lines = (Path(folder) / SPEC_BENCH).read_text(encoding="utf-8").splitlines()
    questions = [question for line in lines if (question := json.loads(line))["category"] == "summarization"]
    return [question["turns"][0] for question in questions[:count]], "Spec-Bench summarization"


def made_up_article(seed: int) -> str:
    """8 to 40 sentences from building blocks, so that some are longer than a sliding window and names come again."""
    draw = random.Random(seed)
    here, body, thing = draw.choice(PLACES), draw.choice(BODIES), draw.choice(THINGS)

    def filled(text: str) -> str:
        return text.format(
            place=draw.choice([place for place in PLACES if place != here]),
            body="the " + draw.choice(BODIES),
            thing=thing,
            month=draw.choice(MONTHS),
            small=draw.randint(2, 9),
            more=draw.randint(10, 60),
            large=draw.randint(100, 900),
            year=draw.randint(10, 99),
        )

    sentences = [f"The {body} of {here} will {draw.choice(DEEDS)} the {thing}, because {filled(draw.choice(REASONS))}."]
    sentences += [filled(draw.choice(DETAILS)) for _ in range(draw.randint(8, 40))]
    return f"Article: {' '.join(sentences)}\n\nSummary: The article says that"


def _read(path: Path, count: int) -> list[str]:
    prompts = [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]
    if len(prompts) < count:
        raise ValueError(f"{path.name} holds {len(prompts)} prompts; {count} were asked for")
    return prompts[:count]
