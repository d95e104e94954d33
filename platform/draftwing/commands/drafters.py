"""`draftwing drafters`: which drafting methods there are, what each needs and what it can do."""

from __future__ import annotations

import argparse
from typing import Any

from draftwing.commands.common import print_json, say

SCHEMA = 1


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
    say(f"{'method':{width}}  {'checkpoint':10}  {'drafts':6}  {'confidence':10}  what it is")
    for entry in entries:
        needed = "needed" if entry["needs_checkpoint"] else "-"
        shape, sure = "trees" if entry["trees"] else "chains", "yes" if entry["confidence"] else "-"
        say(f"{entry['method']:{width}}  {needed:10}  {shape:6}  {sure:10}  {entry['summary']}")
    return 0


def _entry(name: str, plugged: bool) -> dict[str, Any]:
    from draftwing.drafters.registry import find_method

    method = find_method(name)
    fields = method.options.model_fields
    return {
        "method": name,
        "summary": method.facts.summary,
        "plugged_in": plugged,
        "kind": method.facts.kind,
        "needs_checkpoint": "path" in fields and fields["path"].is_required(),
        "trees": method.facts.trees,
        "confidence": method.facts.confidence,
        "stateful_across_requests": method.facts.stateful_across_requests,
        "options": sorted(fields),
    }
