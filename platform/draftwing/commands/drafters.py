"""`draftwing drafters`: which drafting methods there are, what each needs and what it can do."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from draftwing.commands.common import print_json, say

SCHEMA = 1
CHECKPOINTS = {"required": "needed", "optional": "optional", None: "-"}


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "drafters",
        help="list the drafting methods",
        description="List the drafting methods, built in and plugged in: what each needs and what it can do.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from draftwing.drafters.registry import method_names

    entries = [_entry(name, plugged) for name, plugged in method_names()]
    if args.json:
        print_json({"schema": SCHEMA, "drafters": entries})
        return 0
    width = max(len(entry["method"]) for entry in entries)
    say(
        f"{'method':{width}}  {'checkpoint':10}  {'needs':13}  {'drafts':6}  {'confidence':10}  {'cache':5}  what it is"
    )
    for entry in entries:
        needs = "hidden states" if entry["kind"] == "feature" else "tokens"
        shape, sure = "trees" if entry["trees"] else "chains", "yes" if entry["confidence"] else "-"
        cache = "own" if entry["own_cache"] else "-"
        say(
            f"{entry['method']:{width}}  {CHECKPOINTS[entry['checkpoint']]:10}  {needs:13}  {shape:6}  {sure:10}  "
            f"{cache:5}  {entry['summary']}"
        )
    return 0


def _entry(name: str, plugged: bool) -> dict[str, Any]:
    """checkpoint: "required", "optional" (without one the target's own is read) or null."""
    from draftwing.drafters.registry import find_method

    method = find_method(name)
    fields, facts = method.options.model_fields, asdict(method.facts)
    required = "path" in fields and fields["path"].is_required()
    return {
        "method": name,
        "plugged_in": plugged,
        **facts,
        "needs_checkpoint": required,
        "checkpoint": "required" if required else "optional" if "path" in fields else None,
        "options": sorted(fields),
    }
