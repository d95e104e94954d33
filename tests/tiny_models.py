"""Small model folders for tests: the golden targets, and damaged or changed copies of them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

GOLDENS = Path(os.environ.get("DRAFTWING_GOLDENS", ROOT / "tests" / "goldens"))


def golden(name: str) -> Path:
    """A golden target's folder: llama8, qwen3_8, mixtral3 or gemma3_6."""
    return GOLDENS / f"hf_greedy_{name}" / "target"


def copy_of(name: str, to: Path, **config: Any) -> Path:
    """A copy of a golden target with some config.json keys set (None removes one)."""
    folder = Path(shutil.copytree(golden(name), to))
    path = folder / "config.json"
    changed = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
    return folder
