"""`draftwing plan`: what each rank of a replica will hold, before any GPU is rented."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from draftwing.commands.common import add_config_flags, config_from_args, print_json, say, tell
from draftwing.errors import ConfigError

if TYPE_CHECKING:
    from draftwing.parallel.capacity import CapacityPlan, DrafterShare, Hardware

SCHEMA = 1
GPU_GB = 80.0
NODE_GPUS = 8


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="say what each rank will hold, before any GPU is rented",
        description="Capacity plan: weights and cache of each rank, bundles and nodes, from config.json alone.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gpu-memory", type=float, metavar="GB", default=GPU_GB, help=f"memory of one GPU (default {GPU_GB:g})"
    )
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", default=NODE_GPUS, help=f"GPUs of one machine (default {NODE_GPUS})"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    add_config_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = config_from_args(args).config
    if args.gpu_memory <= 0:
        raise ConfigError(f"--gpu-memory is {args.gpu_memory:g}; expected gigabytes, more than 0")
    if args.gpus_per_node < 1:
        raise ConfigError(f"--gpus-per-node is {args.gpus_per_node}; expected a whole number from 1")
    from draftwing.parallel.capacity import Hardware, plan_capacity

    # A CPU rank's memory is its machine's, which isn't this one.
    memory = None if config.model.device == "cpu" else int(args.gpu_memory * 1e9)
    hardware = Hardware(memory, args.gpus_per_node)
    plan = plan_capacity(config, hardware, tell)
    if args.json:
        print_json(_document(plan, hardware))
    else:
        _table(plan, hardware, config.cache.gpu_fraction)
    return 0


def _document(plan: CapacityPlan, hardware: Hardware) -> dict[str, Any]:
    drafters = [
        {
            "name": share.name,
            "method": share.method,
            "weight_bytes": share.weight_bytes,
            "kv_bytes_per_token": share.kv_bytes_per_token,
            "replicas": share.replicas,
            "note": share.note or None,
        }
        for share in plan.drafters
    ]
    return {
        "schema": SCHEMA,
        "model": plan.model,
        "model_type": plan.model_type,
        "dtype": plan.dtype,
        "parameters": plan.parameters,
        "ranks": plan.ranks,
        "weight_bytes": plan.weight_bytes,
        "weight_bytes_per_rank": plan.weight_bytes_per_rank,
        "parameters_on_every_rank": plan.whole,
        "experts_per_rank": plan.experts,
        "kv_heads_per_rank": plan.kv_heads_per_rank,
        "kv_bytes_per_token_per_rank": plan.kv_bytes_per_token_per_rank,
        "kv_tokens": plan.kv_tokens,
        "drafters": drafters,
        "bundles": plan.ranks,
        "nodes": plan.nodes,
        "placement_group": {"strategy": "PACK", "bundles": [plan.bundle] * plan.ranks},
        "assumed": {"gpu_memory_bytes": hardware.memory, "gpus_per_node": hardware.ranks_per_node},
    }


def _table(plan: CapacityPlan, hardware: Hardware, fraction: float) -> None:
    def row(name: str, value: str) -> None:
        say(f"{name:28}{value}")

    row("model", f"{plan.model} ({plan.model_type}, {plan.dtype})")
    row("parameters", f"{_count(plan.parameters)}")
    row("ranks", f"{plan.ranks}, one a bundle of {_bundle(plan.bundle)}")
    row("nodes", f"{plan.nodes} with {hardware.ranks_per_node} ranks each at most")
    row("weights", f"{_gb(plan.weight_bytes)} in all, {_gb(plan.weight_bytes_per_rank)} a rank")
    if plan.whole:
        row("  held whole by every rank", f"{_count(plan.whole)} parameters")
    if plan.experts:
        row("  experts", f"{plan.experts} of each layer a rank")
    kind = "one latent" if plan.latent else f"{plan.kv_heads_per_rank} key/value heads"
    row("cache", f"{plan.kv_bytes_per_token_per_rank:,} bytes a token and rank ({kind} of each layer)")
    for share in plan.drafters:
        row(f"drafter {share.name}", _drafter(share))
    if hardware.memory is not None:
        row("tokens of cache that fit", f"{plan.kv_tokens:,} in {fraction:.0%} of {_gb(hardware.memory)} a GPU")


def _drafter(share: DrafterShare) -> str:
    if share.weight_bytes is None or share.kv_bytes_per_token is None:
        return share.note
    where = f"in each of {share.replicas} replicas" if share.replicas else "on rank 0"
    what = "nothing but its tokens"
    if share.weight_bytes or share.kv_bytes_per_token:
        what = f"{_gb(share.weight_bytes)} and {share.kv_bytes_per_token:,} bytes a token"
    return f"{what}, {where}" + (f" ({share.note})" if share.note else "")


def _bundle(bundle: dict[str, float]) -> str:
    return " and ".join(f"{count:g} {kind}" for kind, count in bundle.items())


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 10**8 else f"{number:,}"


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**8 else f"{count / 1e6:.2f} MB"
