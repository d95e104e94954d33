"""The parts of transformers that loading needs, behind types: it is untyped, or typed too loosely to check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn


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

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)


def load_model(
    folder: Path, config: Any, *, dtype: torch.dtype, device: torch.device, attention: str, trust_remote_code: bool
) -> tuple[nn.Module, LoadingReport]:
    """The causal language model of a folder in eval mode, weights read from memory-mapped safetensors."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model, info = auto.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        device_map={"": device} if device.type != "cpu" else None,
        attn_implementation=attention,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    mismatched = tuple(str(entry[0]) if isinstance(entry, tuple) else str(entry) for entry in info["mismatched_keys"])
    report = LoadingReport(tuple(sorted(info["missing_keys"])), tuple(sorted(info["unexpected_keys"])), mismatched)
    return cast("nn.Module", model), report
