"""Puts an engine together from a config: resolve and load the target, plan the cache, make drafter and policy."""

from __future__ import annotations

from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.memory import available_bytes
from draftwing.checkpoints.methods import settle_methods
from draftwing.config_models import Config, DrafterConfig
from draftwing.drafters.auto import AutoDrafter
from draftwing.drafters.base import CheckpointOptions, Drafter, TargetInfo
from draftwing.drafters.registry import check_drafter
from draftwing.engine.assemble import TargetFacts, assemble
from draftwing.engine.features import FeatureTap
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.runner import ModelRunner, kv_bytes_per_slot, probe_layers
from draftwing.engine.scheduler import Limits
from draftwing.engine.speedup import speed_up
from draftwing.engine.step import Engine
from draftwing.engine.tokenizer import TextTokenizer, load_tokenizer
from draftwing.errors import ConfigError, SetupError
from draftwing.policy.modes import parse_mode

CPU_CACHE_FRACTION = 0.25  # of the memory still available: a CPU's memory is everybody's
SMALLEST_CACHE = 1024  # tokens; with less, serving makes no sense


def build_local(config: Config, *, progress: Progress | None = None) -> tuple[Engine, TextTokenizer | None]:
    """Load everything a config names; the tokenizer is None where the model has none.

    ConfigError or SetupError, before anything heavy where it can be known.
    """
    tell = progress or silent
    if config.parallel.ranks > 1:
        raise ConfigError(
            f"parallel asks for {config.parallel.ranks} ranks, and this command runs the model in one process; "
            "set parallel.tensor: 1 and parallel.expert: 1, or use draftwing serve"
        )
    config = settle_methods(config, tell)
    folder = resolve_model(config.model, progress=tell)
    tell(f"loading {folder.path}")
    target = load_target(
        folder,
        dtype=config.model.dtype,
        device=config.model.device,
        quantization=config.model.quantization,
        trust_remote_code=config.model.trust_remote_code,
        threads=config.model.cpu_threads,
    )
    tokenizer = load_tokenizer(folder)
    return engine_for(config, target, decoder=tokenizer, progress=tell), tokenizer


def build_engine(config: Config, *, progress: Progress | None = None) -> Engine:
    """The engine of `build_local` alone, for a rank: text comes and goes as tokens there."""
    return build_local(config, progress=progress)[0]


def engine_for(
    config: Config,
    target: LoadedTarget,
    *,
    decoder: TextTokenizer | None = None,
    progress: Progress | None = None,
    drafter: Drafter | None = None,
) -> Engine:
    """An engine around a loaded target. SetupError when its cache doesn't fit into memory.

    drafter: as for `bound_drafter`.
    """
    tell = progress or silent
    config = settle_methods(config)
    layers = probe_layers(target.model, target.device)
    speed_up(target.model, compile_kernel=config.model.compile, quantization=config.model.quantization, tell=tell)
    context = min(config.limits.context or target.context_length, target.context_length)
    drafter = bound_drafter(config, target, context, decoder, tell, drafter)
    per_token = kv_bytes_per_slot(layers, target.dtype) + drafter.traits.kv_bytes_per_token
    pool = plan_cache(config, target, per_token, context)
    tell(f"cache of {pool.tokens} tokens, {pool.tokens * per_token / 2**20:.0f} MiB")
    drafter.reserve(pool.blocks, pool.block_tokens)
    runner = ModelRunner(
        target.model,
        slots=pool.tokens,
        layers=layers,
        device=target.device,
        dtype=target.dtype,
        vocab_size=target.vocab_size,
    )
    policy = parse_mode(config.policy.mode, config.drafter_name, drafter.traits)
    limits = Limits(
        config.limits.sequences, config.limits.queue, config.limits.batch_tokens, config.limits.prefill_chunk
    )
    facts = TargetFacts(context, target.eos_token_ids, decoder)
    rejection = config.sampling == "rejection"
    tap = FeatureTap(target.model, drafter.traits.hidden_layers) if drafter.traits.hidden_layers else None
    return assemble(
        runner, facts, pool=pool, limits=limits, drafter=drafter, policy=policy, rejection=rejection, tap=tap
    )


def bound_drafter(
    config: Config,
    target: LoadedTarget,
    context: int,
    tokenizer: TextTokenizer | None,
    tell: Progress = silent,
    drafter: Drafter | None = None,
) -> Drafter:
    """The drafter of a config, or the one that chooses among several, each with its checkpoint, ready to draft.

    drafter: takes the place of the one that the config's method would make.
    """
    info = target_info(config, target, context, tokenizer)
    entries = config.drafters or [DrafterConfig(method="none")]
    drafters = {entry.name: _bound(entry, i, info, config.model.path, tell, drafter) for i, entry in enumerate(entries)}
    chooser = drafters.pop(config.drafter_name or "none")
    if isinstance(chooser, AutoDrafter):
        chooser.drafters = drafters
    return chooser


def _bound(
    entry: DrafterConfig, index: int, info: TargetInfo, target_path: str, tell: Progress, given: Drafter | None
) -> Drafter:
    """One drafter with its checkpoint, if its method reads one. ConfigError names the entry by its index."""
    method, options = check_drafter(entry, index)
    drafter: Drafter = given or method.make(options)
    checkpoint = None
    if isinstance(options, CheckpointOptions):
        checkpoint = open_checkpoint(options.path or target_path, options.revision, tell)
    drafter.bind(info, checkpoint)
    if checkpoint is not None:
        checkpoint.refuse_unread()
    return drafter


def target_info(config: Config, target: LoadedTarget, context: int, tokenizer: TextTokenizer | None) -> TargetInfo:
    return TargetInfo(
        vocab_size=target.vocab_size,
        context_length=context,
        eos_token_ids=target.eos_token_ids,
        hidden_size=int(target.config.hidden_size),
        layers=int(target.config.num_hidden_layers),
        device=str(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        compile=config.model.compile,
        model=target.model,
        tokenizer=tokenizer,
        rejection=config.sampling == "rejection",
    )


def plan_cache(config: Config, target: LoadedTarget, per_token: int, context: int) -> BlockPool:
    """A pool of `cache.tokens`, else of what memory allows and the limits can use. SetupError names both numbers.

    per_token: bytes of one token in the target's pages and the drafter's.
    """
    size = config.cache.block_tokens
    free = available_bytes(target.device)
    useful = config.limits.sequences * context
    if config.cache.tokens is not None:
        tokens = config.cache.tokens
        if tokens * per_token > free:
            raise SetupError(
                f"cache.tokens is {tokens}, which takes {tokens * per_token / 2**20:.0f} MiB, but "
                f"{free / 2**20:.0f} MiB are available; lower cache.tokens or free memory"
            )
    else:
        fraction = CPU_CACHE_FRACTION if target.device.type == "cpu" else config.cache.gpu_fraction
        tokens = min(int(free * fraction) // per_token, useful)
        if tokens < min(SMALLEST_CACHE, useful):
            raise SetupError(
                f"too little memory for the KV cache: {fraction:.0%} of the {free / 2**20:.0f} MiB available hold "
                f"{tokens} tokens; free memory, or set cache.tokens"
            )
    return BlockPool(max(-(-tokens // size), 1), size, prefix=config.cache.prefix)
