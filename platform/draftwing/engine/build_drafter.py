"""A drafter that runs in a process of its own, put together from the same config as its target."""

from __future__ import annotations

import torch

from draftwing.checkpoints import hf
from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.memory import available_bytes
from draftwing.checkpoints.tokenizer import load_tokenizer
from draftwing.config_models import Config
from draftwing.drafters.base import Drafter, TargetInfo
from draftwing.engine.build import CPU_CACHE_FRACTION, bound
from draftwing.engine.kv_cache import BlockPool
from draftwing.engine.loading import choose_device, context_length, eos_token_ids


def distant_target_info(config: Config, tell: Progress = silent) -> TargetInfo:
    """What a drafter in another process may know of the target: all but its weights, which it doesn't load."""
    folder = resolve_model(config.model, progress=tell)
    described = hf.load_config(folder.path, trust_remote_code=config.model.trust_remote_code)
    text = described.get_text_config()
    longest = context_length(folder, text)
    return TargetInfo(
        vocab_size=int(text.vocab_size),
        context_length=min(config.limits.context or longest, longest),
        eos_token_ids=eos_token_ids(folder, text),
        device=str(choose_device(config.model.device)),
        compile=config.model.compile,
        tokenizer=load_tokenizer(folder),
        rejection=config.sampling == "rejection",
    )


def build_drafter(config: Config, tell: Progress = silent) -> tuple[Drafter, BlockPool | None, TargetInfo]:
    """The drafter of a config that has a placement, ready to draft in this process; the blocks of its pages, if any."""
    info = distant_target_info(config, tell)
    entry = config.drafters[0]
    tell(f"loading the drafter {entry.name}")
    drafter = bound(entry, 0, info, config.model.path, tell)
    per_token = drafter.traits.kv_bytes_per_token
    if not per_token:
        return drafter, None, info
    free = available_bytes(torch.device(info.device)) * CPU_CACHE_FRACTION
    size = config.cache.block_tokens
    tokens = min(int(free) // per_token, config.limits.sequences * info.context_length)
    pool = BlockPool(max(tokens // size, 1), size, prefix=False)
    drafter.reserve(pool.blocks, size)
    return drafter, pool, info
