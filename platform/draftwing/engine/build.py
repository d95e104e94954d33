"""Puts an engine together from a config: resolve and load the target, plan the cache, make drafter and policy."""

from __future__ import annotations

from pathlib import Path

from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.memory import available_bytes
from draftwing.checkpoints.methods import settle_methods
from draftwing.checkpoints.tokenizer import TextTokenizer, load_tokenizer
from draftwing.config_models import Config, DrafterConfig
from draftwing.decisions.log import LoggedPolicy, Origin
from draftwing.drafters.auto import AutoDrafter
from draftwing.drafters.base import CheckpointOptions, Drafter, TargetInfo
from draftwing.drafters.registry import check_drafter
from draftwing.engine.assemble import TargetFacts, assemble
from draftwing.engine.attention import KVShape
from draftwing.engine.features import FeatureTap
from draftwing.engine.identity import profile_key
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.loading import LoadedTarget, load_target
from draftwing.engine.runner import ModelRunner, kv_bytes_per_slot, probe_layers
from draftwing.engine.scheduler import Limits
from draftwing.engine.shares import Ranks
from draftwing.engine.step import Engine
from draftwing.errors import ConfigError, SetupError
from draftwing.kernels.speedup import speed_up
from draftwing.layer_probe import Prober, settle_layers
from draftwing.policy.artifact import read_artifact
from draftwing.policy.base import Policy
from draftwing.policy.modes import OffPolicy, parse_mode
from draftwing.policy.profile import profile_of
from draftwing.prompts import PROMPTS, random_prompts

CPU_CACHE_FRACTION = 0.25  # of the memory still available: a CPU's memory is everybody's
SMALLEST_CACHE = 1024  # tokens; with less, serving makes no sense


def build_local(
    config: Config, *, progress: Progress | None = None, drafter: Drafter | None = None
) -> tuple[Engine, TextTokenizer | None]:
    """Load everything a config names; the tokenizer is None where the model has none.

    drafter: as for `bound_drafter`; a placement is that of a server, without one the drafter runs here.

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
    return engine_for(config, target, decoder=tokenizer, progress=tell, drafter=drafter), tokenizer


def build_engine(config: Config, *, progress: Progress | None = None, drafter: Drafter | None = None) -> Engine:
    """The engine of `build_local` alone, for a rank: text comes and goes as tokens there."""
    return build_local(config, progress=progress, drafter=drafter)[0]


def engine_for(
    config: Config,
    target: LoadedTarget,
    *,
    decoder: TextTokenizer | None = None,
    progress: Progress | None = None,
    drafter: Drafter | None = None,
    ranks: Ranks | None = None,
) -> Engine:
    """An engine around a loaded target. SetupError when its cache doesn't fit into memory.

    drafter: as for `bound_drafter`. ranks: those that share the target, whose rank 0 this is; it drafts alone.
    """
    tell = progress or silent
    config = settle_methods(config)
    config = settle_layers(config, prober(target, decoder, ranks), tell)
    layers = probe_layers(target.model, target.device)
    speed_up(target.model, compile_kernel=config.model.compile, quantization=config.model.quantization, tell=tell)
    context = context_of(config, target)
    drafter = bound_drafter(config, target, context, decoder, tell, drafter)
    pool, own = paged(config, target, layers, drafter.traits.kv_bytes_per_token, tell, ranks)
    drafter.reserve(pool.blocks, pool.block_tokens)
    runner = own if ranks is None else ranks.leading(own, pool)
    placement = config.drafters[0].placement if config.drafters else None
    limits = Limits(
        config.limits.sequences,
        config.limits.queue,
        config.limits.batch_tokens,
        config.limits.prefill_chunk,
        lanes=2 if placement is not None and placement.mode == "alternate" else 1,
    )
    facts = TargetFacts(context, target.eos_token_ids, decoder)
    rejection = config.sampling == "rejection"
    tap = FeatureTap(target.model, drafter.traits.hidden_layers) if drafter.traits.hidden_layers else None
    engine = assemble(
        runner, facts, pool=pool, limits=limits, drafter=drafter, policy=OffPolicy(), rejection=rejection, tap=tap
    )
    engine.policy = policy_for(config, engine)
    return engine


def policy_for(config: Config, engine: Engine) -> Policy:
    """With the profile that is published now. ConfigError where that is of something else than this engine."""
    settings, profile, traits = config.policy, None, engine.drafting.drafter.traits
    if settings.profile is not None:
        profile = profile_of(read_artifact(settings.profile, profile_key(config, engine)))
    tpot_ms = None if settings.targets is None else settings.targets.tpot_ms
    policy = parse_mode(settings.mode, config.drafter_name, traits, profile, tpot_ms)
    if settings.log is None:
        return policy
    digest = profile.digest if profile else ""
    origin = Origin(settings.mode, config.drafter_name, traits, settings.profile or "", digest, tpot_ms)
    return LoggedPolicy(policy, origin, Path(settings.log))


def prober(target: LoadedTarget, decoder: TextTokenizer | None, ranks: Ranks | None = None) -> Prober:
    """Tries readings of layer ids on a target that is one process's own, on the built-in prompts."""

    def make(config: Config) -> Engine:
        if ranks is not None:
            raise ConfigError(
                "layer_ids is 'probe', which a target on several ranks can't do; run draftwing inspect --probe once "
                "and set layer_ids to what it finds"
            )
        return engine_for(config, target, decoder=decoder)

    return Prober(make, [decoder.encode(text) for text in PROMPTS] if decoder else random_prompts(target.vocab_size))


def context_of(config: Config, target: LoadedTarget) -> int:
    """Most tokens of a request, prompt and output together."""
    return min(config.limits.context or target.context_length, target.context_length)


def paged(
    config: Config,
    target: LoadedTarget,
    layers: list[KVShape],
    drafting: int,
    tell: Progress = silent,
    ranks: Ranks | None = None,
) -> tuple[BlockPool, ModelRunner]:
    """The cache's bookkeeping and the target's runner over its pages. drafting: bytes a token of the drafter's."""
    per_token = kv_bytes_per_slot(layers, target.dtype) + drafting
    pool = plan_cache(config, target, per_token, context_of(config, target), ranks)
    tell(f"cache of {pool.tokens} tokens, {pool.tokens * per_token / 2**20:.0f} MiB")
    runner = ModelRunner(
        target.model,
        slots=pool.tokens,
        layers=layers,
        device=target.device,
        dtype=target.dtype,
        vocab_size=target.vocab_size,
    )
    return pool, runner


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
    drafters = {entry.name: bound(entry, i, info, config.model.path, tell, drafter) for i, entry in enumerate(entries)}
    chooser = drafters.pop(config.drafter_name or "none")
    if isinstance(chooser, AutoDrafter):
        chooser.drafters = drafters
    return chooser


def bound(
    entry: DrafterConfig, index: int, info: TargetInfo, target_path: str, tell: Progress, given: Drafter | None = None
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
        model=target.model if target.ends is None else target.ends,
        tokenizer=tokenizer,
        rejection=config.sampling == "rejection",
    )


def plan_cache(
    config: Config, target: LoadedTarget, per_token: int, context: int, ranks: Ranks | None = None
) -> BlockPool:
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
        fraction = config.cache.gpu_fraction
        if target.device.type == "cpu":  # which the ranks of one machine share
            fraction = CPU_CACHE_FRACTION / (1 if ranks is None else ranks.size)
        tokens = min(int(free * fraction) // per_token, useful)
        if tokens < min(SMALLEST_CACHE, useful):
            raise SetupError(
                f"too little memory for the KV cache: {fraction:.0%} of the {free / 2**20:.0f} MiB available hold "
                f"{tokens} tokens; free memory, or set cache.tokens"
            )
    if ranks is not None:
        tokens = ranks.least(tokens)
    return BlockPool(max(-(-tokens // size), 1), size, prefix=config.cache.prefix)
