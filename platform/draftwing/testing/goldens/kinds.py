"""Which kinds of golden cases exist, and what runs each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from draftwing.testing.goldens.case import Case, Verdict

Check = Callable[[Case], Verdict]

# A kind's module has `check(case) -> Verdict`.
KINDS = {
    "acceptance": "acceptance",
    "dflash": "blocks",
    "dflash2": "blocks",
    "dspark": "blocks",
    "eagle1": "eagle",
    "eagle2_tree": "eagle2_tree",
    "eagle3": "eagle",
    "eagle3_speculators": "eagle",
    "hf_greedy": "hf_greedy",
    "logits_processors": "logits_processors",
    "medusa": "medusa",
    "mtp_deepseek": "mtp",
    "mtp_qwen3_next": "mtp",
    "ngram": "ngram",
    "suffix": "suffix",
}


def check_for(kind: str) -> Check:
    """What checks cases of this kind. KeyError for an unknown kind."""
    check: Check = import_module(f"draftwing.testing.goldens.{KINDS[kind]}").check
    return check
