"""Prompts for whoever measures or compares: a few built in, from a file, or made up for targets without tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

from draftwing.errors import ConfigError

PROMPTS = (
    "The three laws of motion are",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a village by the sea, there lived",
    "Alice said: the cat sat on the mat. Bob said: the cat sat on the mat. Carol said:",
)


def prompt_texts(path: Path | None) -> list[str]:
    if path is None:
        return list(PROMPTS)
    texts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--prompts {path} can't be read: {reason}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"--prompts {path} line {number} is not JSON: {error.msg}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise ConfigError(f'--prompts {path} line {number}: expected an object with a text "prompt"')
        texts.append(entry["prompt"])
    if not texts:
        raise ConfigError(f"--prompts {path} holds no prompt")
    return texts


def random_prompts(vocab_size: int) -> list[list[int]]:
    """Prompts for a target without tokenizer; each repeats a stretch, so that lookup finds something."""
    draw = random.Random(0)
    stretches = [[draw.randrange(vocab_size) for _ in range(length)] for length in (5, 9, 14, 23)]
    return [stretch + stretch[: len(stretch) // 2] for stretch in stretches]
