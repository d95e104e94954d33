"""`draftwing inspect`: what a checkpoint is, what it takes, and what decided it. Reads headers, never weights."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from draftwing.commands.common import print_json, say, tell
from draftwing.errors import ConfigError

if TYPE_CHECKING:
    from draftwing.checkpoints.inspection import Inspection
    from draftwing.checkpoints.sizes import Part
    from draftwing.layer_probe import Verdict

SCHEMA = 1


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="tell what a checkpoint is: method, layers, shapes, memory",
        description="Tell what a model or drafter is, without loading its weights: drafting method, dialect, layers, "
        "shapes, memory, hidden states it takes, tensors that nothing reads, and what decided it.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="PATH", help="folder, hub id or GGUF file")
    parser.add_argument("--revision", metavar="REV", help="of a hub id")
    parser.add_argument("--target", metavar="PATH", help="the model that a drafter is for, to name its hidden states")
    parser.add_argument(
        "--probe",
        action="store_true",
        help="load both, and measure which reading of layer ids is right",
    )
    parser.add_argument("--tensors", action="store_true", help="list the tensors too")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from draftwing.checkpoints.inspection import inspect_checkpoint

    if not args.path:
        raise ConfigError("PATH is empty; expected a folder, a hub id or a GGUF file")
    if args.probe and not args.target:
        raise ConfigError("--probe needs --target: the model that the drafter is for")
    found = inspect_checkpoint(args.path, args.revision, target=args.target, progress=tell)
    verdict = None
    if args.probe:
        verdict = _probe(args, found)
        found = inspect_checkpoint(args.path, args.revision, target=args.target, reading=verdict.chosen, progress=tell)
    if args.json:
        print_json({"schema": SCHEMA, **document(found), **({"probe": _verdict(verdict)} if verdict else {})})
    else:
        _table(found, tensors=args.tensors)
        if verdict:
            say(f"probed: {verdict}")
    return 0


def _probe(args: argparse.Namespace, found: Inspection) -> Verdict:
    """Loads the target and its drafter."""
    if found.features is None:
        raise ConfigError(f"--probe: a drafter of method {found.layout.method} has no layer ids to be read two ways")
    from draftwing.checkpoints.hub import resolve_model
    from draftwing.checkpoints.tokenizer import load_tokenizer
    from draftwing.config_models import Config
    from draftwing.engine.build import prober
    from draftwing.engine.loading import load_target
    from draftwing.layer_probe import probe_layer_ids

    entry = {"method": found.layout.method, "path": args.path, "revision": args.revision}
    config = Config.model_validate({"model": {"path": args.target}, "drafters": [entry]})
    folder = resolve_model(config.model, progress=tell)
    target, tokenizer = load_target(folder), load_tokenizer(folder)
    return probe_layer_ids(config, config.drafters[0], prober(target, tokenizer))


def _verdict(verdict: Verdict) -> dict[str, Any]:
    probes: dict[str, Any] = {
        meaning: {
            "hidden_states": list(probe.hidden_states),
            "drafted": probe.drafted,
            "accepted": probe.accepted,
            "refused": probe.refused or None,
        }
        for meaning, probe in verdict.probes.items()
    }
    return {"chosen": verdict.chosen, "sure": verdict.sure, **probes}


def document(found: Inspection) -> dict[str, Any]:
    layout, first = found.layout, found.parts[0]
    return {
        "path": found.source,
        "role": layout.role,
        "method": layout.method,
        "methods": list(layout.methods),
        "dialect": layout.dialect,
        "architecture": found.architecture,
        "decided": list(layout.decided),
        "refused": found.refused,
        "layers": first.layers,
        "parameters": first.parameters,
        "dimensions": dict(found.dimensions),
        "draft_vocabulary": found.draft_vocabulary,
        "feature_layers": _features(found),
        "parts": [_part(part) for part in found.parts],
        "unknown_tensors": list(layout.unknown),
        "tensors": [asdict(group) for group in found.tensors],
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "layers": part.layers,
        "parameters": part.parameters,
        "stored_bytes": dict(part.stored),
        "weight_bytes": dict(part.held),
        "kv_bytes_per_token": dict(part.cache),
    }


def _features(found: Inspection) -> dict[str, Any] | None:
    if found.features is None:
        return None
    features = found.features
    return {
        "field": features.field,
        "ids": list(features.ids),
        "meaning": features.meaning,
        "hidden_states": list(features.hidden_states),
    }


def _table(found: Inspection, *, tensors: bool) -> None:
    layout = found.layout
    also = f" (also read by {', '.join(layout.methods[1:])})" if layout.methods[1:] else ""
    rows = [
        ("role", layout.role),
        ("as a drafter" if layout.role == "target" else "method", f"{layout.method}{also}"),
        ("dialect", layout.dialect),
        ("architecture", found.architecture),
        *(("decided by", line) for line in layout.decided),
        ("shapes", ", ".join(f"{name.replace('_', ' ')} {size}" for name, size in found.dimensions.items())),
        *(row for part in found.parts for row in _part_rows(part)),
        *_drafter_rows(found),
        *([("refused", found.refused)] if found.refused else []),
        *(("unknown tensor", name) for name in layout.unknown),
    ]
    if tensors:
        for group in found.tensors:
            many = f" x {group.count}" if group.count > 1 else ""
            rows.append(("tensor", f"{group.name} {list(group.shape)} {group.dtype}{many}"))
    width = max(len(label) for label, _ in rows)
    before = ""
    for label, text in rows:
        say(f"{label if label != before else '':{width}}  {text}")
        before = label


def _part_rows(part: Part) -> list[tuple[str, str]]:
    stored = ", ".join(f"{size:,} bytes {dtype}" for dtype, size in part.stored.items())
    held = ", ".join(f"{size / 2**20:,.1f} MiB in {dtype}" for dtype, size in part.held.items())
    cache = ", ".join(f"{size:,} bytes in {dtype}" for dtype, size in part.cache.items())
    what = "heads" if part.name == "medusa" else "layers"
    return [
        (part.name, f"{part.layers} {what}, {part.parameters:,} parameters"),
        ("  stored", stored),
        ("  weights", held),
        ("  cache a token", cache),
    ]


def _drafter_rows(found: Inspection) -> list[tuple[str, str]]:
    if found.layout.method == "draft_model":
        return []
    if found.features is not None:
        layers = str(found.features)
    elif found.layers_by_rule:
        layers = "by a rule from the number of the target's layers; name it with --target"
    else:
        layers = "the target's last hidden state, after its final norm"
    entries = found.draft_vocabulary
    return [("features", layers), ("draft vocabulary", "the target's" if entries is None else f"{entries} entries")]
