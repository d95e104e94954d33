"""Load a target: refuse what can't be served before any weight is read, then read the weights and check them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from draftwing.checkpoints import hf
from draftwing.checkpoints.memory import available_bytes, machine_bytes
from draftwing.checkpoints.model_folder import ModelFolder, inspect, read_json
from draftwing.checkpoints.split import split_of
from draftwing.checkpoints.supported import VERIFIED, check_rope
from draftwing.checkpoints.weight_files import WeightFiles
from draftwing.config_models import ParallelConfig
from draftwing.engine import attention
from draftwing.engine.shares import Ranks, WholeEnds, cut_modules
from draftwing.errors import ConfigError, SetupError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What a process needs beside its weights: torch itself, activations, a first KV cache.
HEADROOM = 400_000_000
ONE_RANK = ParallelConfig()
STORED = {"F64": torch.float32, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target ready to run.

    config: transformers' text config. eos_token_ids: any of them ends a request. context_length: positions the model
    was made for, prompt and output together. ends: where drafters take its embedding and head from, if not from model.
    """

    model: nn.Module
    config: Any
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    context_length: int
    device: torch.device
    dtype: torch.dtype
    ends: nn.Module | None = None


def choose_device(device: str) -> torch.device:
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"model.device is {device!r}; accepted: auto, cpu, cuda")
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise SetupError(
            f"model.device is cuda, but torch {torch.__version__} sees no CUDA device; "
            "install a CUDA build of torch and a driver, or set model.device: cpu"
        )
    return torch.device("cuda" if device == "cuda" or (device == "auto" and there) else "cpu")


def choose_dtype(dtype: str, weights: WeightFiles, device: torch.device) -> torch.dtype:
    """auto: float32 on a CPU, elsewhere as stored (the widest where a checkpoint mixes dtypes)."""
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"model.dtype is {dtype!r}; accepted: auto, {', '.join(DTYPES)}")
    if dtype == "auto" and device.type == "cpu":
        chosen = torch.float32
    elif dtype == "auto":
        stored = {STORED[name] for name in weights.float_dtypes}
        chosen = stored.pop() if len(stored) == 1 else torch.float32
    else:
        chosen = DTYPES[dtype]
    if (
        chosen is torch.bfloat16
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"model.dtype bfloat16 is not supported by {name}; set model.dtype: float16 or float32")
    return chosen


def check_memory(
    folder: ModelFolder, weights: WeightFiles, dtype: torch.dtype, device: torch.device, ranks: int = 1
) -> None:
    """SetupError, naming what is needed and what is there, when this rank's share of the weights won't fit."""
    needed = int(1.05 * weights.bytes_as(dtype.itemsize)) // ranks + HEADROOM
    free = available_bytes(device)
    if needed <= free:
        return
    where = f"free on {torch.cuda.get_device_name(device)}" if device.type == "cuda" else machine_bytes()[1]
    half = "set model.dtype: bfloat16 (half the memory), " if dtype is torch.float32 else ""
    name = str(dtype).removeprefix("torch.")
    raise SetupError(
        f"{folder.source} in {name} takes about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB is {where}; "
        f"{half}use a smaller model or free memory"
    )


def eos_token_ids(folder: ModelFolder, config: Any) -> tuple[int, ...]:
    """generation_config.json decides where it names any, as in transformers; else the model's config."""
    path = folder.path / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.is_file() else None
    if eos is None:
        eos = getattr(config, "eos_token_id", None)
    if eos is None:
        return ()
    ids = tuple(dict.fromkeys(eos)) if isinstance(eos, list | tuple) else (eos,)
    if not all(type(token) is int and 0 <= token < config.vocab_size for token in ids):
        raise ConfigError(
            f"{folder.path}: eos_token_id is {eos!r}; expected token ids from 0 to {config.vocab_size - 1} (in "
            "generation_config.json or config.json)"
        )
    return ids


def context_length(folder: ModelFolder, config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise ConfigError(f"{folder.path}: its config.json names no max_position_embeddings (the context length)")
    return length


def _unknown(names: tuple[str, ...], layers: int) -> tuple[str, ...]:
    """Without the weights of drafting heads that are published inside of their target's checkpoint."""
    heads = re.compile(r"medusa_head\.|mtp\.|model\.mtp_layers\.|model\.layers\.(\d+)\.")
    found = [(name, heads.match(name)) for name in names]
    return tuple(name for name, m in found if m is None or (m[1] is not None and int(m[1]) < layers))


def _check_report(folder: ModelFolder, report: hf.LoadingReport, layers: int) -> None:
    for names, what in (
        (report.missing, "lacks weights that the model needs"),
        (_unknown(report.unexpected, layers), "holds weights that the model does not know"),
        (report.mismatched, "holds weights of a shape that does not fit its config.json"),
    ):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise ConfigError(f"{folder.path} {what}: {shown}; config.json and weights belong to different models")


def preflight(
    folder: ModelFolder,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str | None = None,
    trust_remote_code: bool = False,
    ranks: int = 1,
) -> tuple[torch.device, torch.dtype]:
    """Everything that `load_target` would refuse and that can be known before a weight is read, in milliseconds."""
    _, weights = inspect(folder.path, trust_remote_code=trust_remote_code)
    where = choose_device(device)
    kind = choose_dtype(dtype, weights, where)
    if quantization is not None and (where.type != "cpu" or kind is not torch.float32):
        raise ConfigError(
            f"model.quantization is {quantization!r} and the model runs in {str(kind).removeprefix('torch.')} on "
            f"{where.type}; int8 and int4 need a CPU and float32: "
            "set model.device: cpu and model.dtype: float32"
        )
    check_memory(folder, weights, kind, where, ranks)
    return where, kind


def load_target(
    folder: ModelFolder,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str = attention.NAME,
    threads: int | None = None,
    parallel: ParallelConfig = ONE_RANK,
    ranks: Ranks | None = None,
) -> LoadedTarget:
    """Load a folder's causal language model for the engine.

    dtype: auto (float32 on a CPU, else as stored), float32, bfloat16, float16. device: auto, cpu, cuda.
    threads: torch's threads for this process. ranks: load this rank's share alone, cut as `parallel` says.
    ConfigError or SetupError, before any weight is read, for a model that can't be served here.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    where, kind = preflight(
        folder,
        dtype=dtype,
        device=device,
        quantization=quantization,
        trust_remote_code=trust_remote_code,
        ranks=parallel.ranks,
    )
    hf.quiet()
    attention.register()
    config = hf.load_config(folder.path, trust_remote_code=trust_remote_code)
    check_rope(config.to_dict(), folder.source)  # transformers takes a Phi-3 file's "yarn" for longrope
    if config.model_type not in VERIFIED and not hf.uses_our_attention(config):
        raise ConfigError(
            f"{folder.source} has Python code of its own whose attention Draftwing can't replace; "
            "it needs a version of the model that transformers supports itself"
        )
    split = None if ranks is None else split_of(hf.meta_model(config.to_dict()), parallel, folder.source)
    model, text, report = hf.load_model(
        folder.path,
        config,
        dtype=kind,
        device=where,
        attention=attn_implementation,
        trust_remote_code=trust_remote_code,
        shares=None if split is None else hf.Shares(split.ranks, split.expert, split.whole),
    )
    _check_report(folder, report, int(text.num_hidden_layers))
    ends = None
    if ranks is not None and split is not None:
        ends = WholeEnds(model, folder.path, kind, where)
        cut_modules(model, split, ranks.rank, ranks.group)
    return LoadedTarget(
        model=model.eval().requires_grad_(False),
        config=text,
        vocab_size=int(text.vocab_size),
        eos_token_ids=eos_token_ids(folder, text),
        context_length=context_length(folder, text),
        device=where,
        dtype=kind,
        ends=ends,
    )
