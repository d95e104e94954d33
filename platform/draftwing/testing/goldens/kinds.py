"""Which kinds of golden cases exist, and what runs each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from draftwing.testing.goldens.case import Case, Verdict

Check = Callable[[Case], Verdict]

# A kind's module has `check(case) -> Verdict`; None: no part of Draftwing can run this kind yet.
KINDS: dict[str, str | None] = {
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


def check_for(kind: str) -> Check | None:
    """What checks cases of this kind, None if not built yet. KeyError for an unknown kind."""
    name = KINDS[kind]
    if name is None:
        return None
    check: Check = import_module(f"draftwing.testing.goldens.{name}").check
    return check
