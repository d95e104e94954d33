"""A tiny model with a tokenizer and a chat template, and small helpers around a running server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.conftest import ROOT

GOLDEN = ROOT / "tests" / "goldens" / "hf_greedy_llama8" / "target"
SPECIAL = ("<pad>", "<s>", "</s>")
LETTERS = "".join(map(chr, range(32, 127))) + "\n" + "".join(map(chr, range(0xC0, 0xC0 + 61)))
NO_STRIPPING = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def make_model(folder: Path, golden: Path = GOLDEN) -> Path:
    """A golden target (the Llama: random weights, 160 tokens), one token a character."""
    shutil.copytree(golden, folder)
    size = json.loads((golden / "config.json").read_text())["vocab_size"]
    ids = {token: number for number, token in enumerate([*SPECIAL, *LETTERS][:size])}
    added = [{"id": ids[token], "content": token, "special": True, **NO_STRIPPING} for token in SPECIAL]
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": ids, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry these labels."""
    from prometheus_client.parser import text_string_to_metric_families

    text = httpx.get(f"{url}/metrics", timeout=30).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def eventually(holds: Callable[[], bool], *, within_s: float) -> float:
    """Seconds until it held; AssertionError when it does not in time."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > within_s:
            raise AssertionError(f"not so within {within_s:g} s")
        time.sleep(0.05)
    return time.monotonic() - begun


def serve_command(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """`draftwing serve` with these arguments, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
        env=os.environ | environment,
    )


# The command as pyproject.toml declares it, whether or not the package is installed.
_COMMAND = """
import sys
from importlib.metadata import EntryPoint
from draftwing import cli
cli.found_commands = lambda: [EntryPoint("serve", "draftwing_serve.commands:register", cli.GROUP)]
sys.exit(cli.main(sys.argv[1:]))
"""
