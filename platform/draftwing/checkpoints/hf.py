"""The parts of transformers that loading needs, behind types: it is untyped, or typed too loosely to check."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from draftwing.errors import ConfigError, SetupError


@dataclass(frozen=True, slots=True)
class LoadingReport:
    """Tensor names that did not fit: wanted but absent, present but unknown, of another shape."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]


def quiet() -> None:
    """transformers reports loading on stderr with bars and tables; what matters of it we say ourselves."""
    from transformers.utils import logging

    library: Any = logging
    library.set_verbosity_error()
    library.disable_progress_bar()


def load_config(folder: Path, *, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # a config class, or the model author's own code, may raise anything
        raise ConfigError(f"{folder / 'config.json'} can't be used ({one_line(error)})") from error


def uses_our_attention(config: Any) -> bool:
    """Whether a model class, known only now because its code came with the model, takes registered attention."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config, trust_remote_code=True)
    return bool(getattr(model, "_supports_attention_backend", False))


def meta_model(values: Mapping[str, Any]) -> Any:
    """The causal language model that a config.json describes, on the meta device: shapes and plans, no weights.

    ConfigError when transformers can't make one of it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    quiet()
    auto: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.for_model(**values)
        with torch.device("meta"):
            return auto.from_config(config.get_text_config())
    except Exception as error:  # a config class raises anything
        raise ConfigError(f"config.json can't be used ({one_line(error)})") from error


@dataclass(frozen=True, slots=True)
class Shares:
    """What `load_model` needs to read a rank's share alone. whole: modules that each rank reads whole, against the
    model's own plan. expert: experts lie whole."""

    ranks: int
    expert: bool
    whole: tuple[str, ...]


def _distributed(shares: Shares) -> Any:
    """transformers' own description of shares. With experts its plans are joined: an empty one it refuses."""
    from transformers import DistributedConfig

    make: Any = DistributedConfig
    return make(
        tp_size=shares.ranks,
        ep_size=shares.ranks if shares.expert else 1,
        tp_plan=dict.fromkeys(shares.whole, "replicated_with_grad_allreduce") or None,
    )


def load_model(
    folder: Path,
    config: Any,
    *,
    dtype: torch.dtype,
    device: torch.device,
    attention: str,
    trust_remote_code: bool,
    shares: Shares | None = None,
) -> tuple[nn.Module, Any, LoadingReport]:
    """The causal language model of a folder and its text config; weights come from memory-mapped safetensors.

    shares: read this rank's alone; the process group must be there.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        model, info = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map={"": device} if device.type != "cpu" and shares is None else None,
            distributed_config=None if shares is None else _distributed(shares),
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
        )
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise SetupError(f"memory ran out while loading {folder}; use a smaller model or free memory") from error
    except Exception as error:  # transformers and remote code may raise anything
        raise ConfigError(f"transformers can't load {folder} ({one_line(error)})") from error
    mismatched = tuple(str(entry[0]) if isinstance(entry, tuple) else str(entry) for entry in info["mismatched_keys"])
    report = LoadingReport(tuple(sorted(info["missing_keys"])), tuple(sorted(info["unexpected_keys"])), mismatched)
    return cast("nn.Module", model), model.config.get_text_config(), report


def convert_gguf_weights(gguf: Path, folder: Path, vocabulary: int | None, elements: int) -> str:
    """Write a GGUF file's weights and config into folder as a float32 checkpoint; its model type.

    vocabulary: entries, for files whose config doesn't say. elements: weights in the file, all of which must be used.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    quiet()
    place, name = gguf.parent, gguf.name
    try:
        config = AutoConfig.from_pretrained(place, gguf_file=name, local_files_only=True)
        if vocabulary is not None:
            config.vocab_size = vocabulary
        auto: Any = AutoModelForCausalLM
        with redirect_stderr(io.StringIO()):  # its GGUF reader draws a bar that no setting turns off
            model, info = auto.from_pretrained(
                place,
                gguf_file=name,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # its GGUF reader and the model classes raise anything
        raise ConfigError(f"transformers can't convert this GGUF file ({one_line(error)})") from error
    if info["missing_keys"] or info["mismatched_keys"]:
        names = sorted(str(key) for key in {*info["missing_keys"], *info["mismatched_keys"]})
        raise ConfigError(f"the GGUF file lacks weights that its architecture needs: {', '.join(names[:3])}")
    used = sum(parameter.numel() for parameter in model.parameters())
    if used != elements:
        raise ConfigError(
            f"the GGUF file holds {elements} weights and the converted model {used}: some can't be converted; "
            "use the model's safetensors folder instead"
        )
    model.hf_quantizer = None  # the weights are plain float32 now, and may be saved as such
    del model.config.quantization_config
    model.save_pretrained(folder)
    return str(config.model_type)


def convert_gguf_tokenizer(gguf: Path, folder: Path, model_type: str) -> None:
    from transformers import AutoTokenizer
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    try:
        # Where the type says which tokenizer it is, transformers need not read the whole file to find the type.
        kind = {"tokenizer_type": model_type} if model_type in TOKENIZER_MAPPING_NAMES else {}
        auto: Any = AutoTokenizer
        tokenizer = auto.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True, **kind)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"transformers can't convert the tokenizer of {gguf.name} ({one_line(error)})") from error
    tokenizer.save_pretrained(folder)


def one_line(error: BaseException) -> str:
    """The first line of a library's message, short enough to stand inside one of ours."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
