"""The capacity plan: what each rank of a replica holds, told on the meta device before any GPU is rented.

Counted from config.json alone: the parameters as transformers would make them, cut as the ranks would cut them, and
the keys and values of a token. Not counted: activations, for which `cache.gpu_fraction` leaves the rest of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftwing.checkpoints import hf
from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.inspection import inspect_checkpoint
from draftwing.checkpoints.known import find_config
from draftwing.checkpoints.sizes import BYTES
from draftwing.checkpoints.split import experts_of, is_latent, kv_elements, kv_heads, split_of
from draftwing.checkpoints.supported import check_config
from draftwing.config_models import Config, DrafterConfig, ParallelConfig
from draftwing.errors import ConfigError, DraftwingError, SetupError

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SMALLEST_CACHE = 1024  # tokens; with less, serving makes no sense
MOST_RANKS = 64  # up to which a size that fits is looked for
RANK_CPUS = 1.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """memory: bytes of the device that a rank runs on, None: not known. ranks_per_node: devices of a node."""

    memory: int | None
    ranks_per_node: int


@dataclass(frozen=True, slots=True)
class DrafterShare:
    """What a drafter adds to rank 0, or takes in each of its own replicas. None: it can't be told, `note` says why."""

    name: str
    method: str
    weight_bytes: int | None = 0
    kv_bytes_per_token: int | None = 0
    note: str = ""
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """A replica on `ranks` ranks, one a bundle. Per-rank numbers are those of the rank that holds most.

    whole: parameters that every rank holds, because the model's plan doesn't cut them. kv_tokens: tokens of cache that
    fit beside the weights on rank 0, None where the memory isn't known.
    """

    model: str
    model_type: str
    dtype: str
    parameters: int
    ranks: int
    experts: int
    weight_bytes: int
    weight_bytes_per_rank: int
    whole: int
    kv_heads_per_rank: int
    kv_bytes_per_token_per_rank: int
    latent: bool
    drafters: tuple[DrafterShare, ...]
    bundle: dict[str, float]
    nodes: int
    kv_tokens: int | None


def plan_capacity(config: Config, hardware: Hardware, tell: Progress = silent) -> CapacityPlan:
    """ConfigError: the model can't be cut so. SetupError: it doesn't fit, with a number of ranks that would do."""
    where = config.model.path
    values = find_config(where, config.model.revision, tell, offline=config.model.offline)
    check_config(values, where, trust_remote_code=config.model.trust_remote_code)
    if config.model.quantization is not None:
        raise ConfigError("the capacity plan counts unquantized weights; set model.quantization: null for it")
    model = hf.meta_model(values)
    dtype = _dtype(config, values)
    alone = config.parallel.ranks == 1
    drafters = tuple(_drafter(entry, model.config, ITEM_BYTES[dtype], alone, tell) for entry in config.drafters)
    plan = _plan(config, config.parallel, model, dtype, drafters, hardware)
    needed = _needed(config, plan, model.config)
    if hardware.memory is not None and needed > _usable(config, hardware.memory):
        fits = _fitting(config, model, dtype, drafters, hardware)
        cache, usable = _least_cache(config, model.config), _usable(config, hardware.memory)
        raise SetupError(
            f"a rank of {where} needs {needed / 1e9:.1f} GB for weights and {cache} tokens of cache, and "
            f"{usable / 1e9:.1f} GB ({config.cache.gpu_fraction:.0%}) of its device's {hardware.memory / 1e9:.1f} GB "
            f"may be used; {fits}"
        )
    return plan


def _plan(
    config: Config,
    parallel: ParallelConfig,
    model: Any,
    dtype: str,
    drafters: tuple[DrafterShare, ...],
    hardware: Hardware,
) -> CapacityPlan:
    split = split_of(model, parallel, config.model.path)
    size = ITEM_BYTES[dtype]
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    whole = 0 if split.ranks == 1 else sum(_numbers(shape) for name, shape in shapes if split.cut(name, shape) is None)
    kv = kv_elements(model.config, split.kv_heads) * size
    weights = sum(split.elements(name, shape) for name, shape in shapes) * size
    own, drafting = _beside(drafters)
    room = None if hardware.memory is None else (_usable(config, hardware.memory) - weights - own) // (kv + drafting)
    gpu = config.model.device != "cpu"
    return CapacityPlan(
        model=config.model.path,
        model_type=str(model.config.model_type),
        dtype=dtype,
        parameters=parameters,
        ranks=split.ranks,
        experts=experts_of(model.config) // (split.ranks if split.expert else 1),
        weight_bytes=parameters * size,
        weight_bytes_per_rank=weights,
        whole=whole,
        kv_heads_per_rank=split.kv_heads,
        kv_bytes_per_token_per_rank=kv,
        latent=is_latent(model.config),
        drafters=drafters,
        bundle={"CPU": RANK_CPUS, **({"GPU": 1.0} if gpu else {})},
        nodes=-(-split.ranks // hardware.ranks_per_node),
        kv_tokens=None if room is None else max(room, 0),
    )


def _numbers(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _dtype(config: Config, values: dict[str, Any]) -> str:
    """What the ranks will hold weights in; auto is float32 on a CPU, else as the checkpoint says."""
    if config.model.dtype != "auto":
        return config.model.dtype
    stored = str(values.get("dtype") or values.get("torch_dtype") or "float32").removeprefix("torch.")
    return stored if config.model.device != "cpu" and stored in ITEM_BYTES else "float32"


def _usable(config: Config, memory: int) -> int:
    return int(memory * config.cache.gpu_fraction)


def _least_cache(config: Config, model: Any) -> int:
    """Tokens without which serving makes no sense: `cache.tokens`, else one whole request."""
    context = min(config.limits.context or model.max_position_embeddings, model.max_position_embeddings)
    return config.cache.tokens or max(int(context), SMALLEST_CACHE)


def _needed(config: Config, plan: CapacityPlan, model: Any) -> int:
    """Bytes of rank 0, which holds the drafters too."""
    own, drafting = _beside(plan.drafters)
    per_token = plan.kv_bytes_per_token_per_rank + drafting
    return plan.weight_bytes_per_rank + own + per_token * _least_cache(config, model)


def _beside(drafters: tuple[DrafterShare, ...]) -> tuple[int, int]:
    """Weight bytes, and cache bytes of a token, of the drafters on rank 0."""
    own = [share for share in drafters if not share.replicas]
    return sum(share.weight_bytes or 0 for share in own), sum(share.kv_bytes_per_token or 0 for share in own)


def _fitting(config: Config, model: Any, dtype: str, drafters: tuple[DrafterShare, ...], hardware: Hardware) -> str:
    """The first larger number of ranks that would do, as advice."""
    assert hardware.memory is not None
    key = "expert" if config.parallel.expert > 1 else "tensor"
    for parallel in _larger(config.parallel, key):
        try:
            plan = _plan(config, parallel, model, dtype, drafters, hardware)
        except ConfigError:
            continue
        if _needed(config, plan, model.config) <= _usable(config, hardware.memory):
            return f"parallel.{key}: {plan.ranks} fits ({plan.weight_bytes_per_rank / 1e9:.1f} GB of weights a rank)"
    return f"no number of ranks up to {MOST_RANKS} fits; use devices with more memory, or lower limits.context"


def _larger(parallel: ParallelConfig, key: str) -> Iterator[ParallelConfig]:
    for ranks in range(parallel.ranks + 1, MOST_RANKS + 1):
        yield ParallelConfig.model_validate({key: ranks})


def _drafter(entry: DrafterConfig, target: Any, size: int, alone: bool, tell: Progress) -> DrafterShare:
    share = _measured(entry, target, size, alone, tell)
    return share if entry.placement is None else replace(share, replicas=entry.placement.replicas)


def _measured(entry: DrafterConfig, target: Any, size: int, alone: bool, tell: Progress) -> DrafterShare:
    """Weights and cache of a drafter, from its config and the headers of its files.

    size: bytes of a number. alone: there is one rank, whose embedding and head a drafter can share.
    """
    path = entry.options.get("path")
    if path is None and entry.method == "mtp":
        return DrafterShare(entry.name, entry.method, None, None, "not counted: its modules are in the target's files")
    if path is None:
        return DrafterShare(entry.name, entry.method)
    try:
        if entry.method == "draft_model":
            model = hf.meta_model(find_config(str(path), entry.options.get("revision"), tell))
            weights = sum(parameter.numel() for parameter in model.parameters()) * size
            kv = kv_elements(model.config, kv_heads(model.config)) * size
            return DrafterShare(entry.name, entry.method, weights, kv)
        return _head(entry, Path(str(path)).expanduser(), target, size, alone)
    except DraftwingError as error:
        return DrafterShare(entry.name, entry.method, None, None, f"not counted: {error}")


def _head(entry: DrafterConfig, folder: Path, target: Any, size: int, alone: bool) -> DrafterShare:
    """A drafting head in a folder: every tensor that it stores, and the cache of its own layers.

    Where the target is cut, rank 0 holds whole copies of the embedding and head that a drafter takes from it.
    """
    if not folder.is_dir():
        raise SetupError(f"{folder} is no folder on this machine")
    found = inspect_checkpoint(str(folder))
    names, head = {group.name for group in found.tensors}, found.parts[-1]
    borrowed = [part for part in ("embed_tokens", "lm_head") if f"{part}.weight" not in names]
    if found.layout.method == "medusa" or alone:
        borrowed = []
    weights = head.parameters + len(borrowed) * int(target.vocab_size * target.hidden_size)
    kv = head.cache["float32"] // BYTES["float32"]
    note = f"with a whole copy of the target's {' and '.join(borrowed)}" if borrowed else ""
    return DrafterShare(entry.name, found.layout.method, weights * size, kv * size, note)
