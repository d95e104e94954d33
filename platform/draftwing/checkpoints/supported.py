"""Which models can be served, told from config.json alone: refused by name before a byte of weights is read.

Only model types whose attention was compared with transformers' own are accepted. The others are not refused out of
caution: a model that masks in a way of its own would run with our attention function and give wrong tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from draftwing.errors import ConfigError

# `tests/integration/test_loading_types.py` compares each with transformers' eager attention.
VERIFIED = (
    "apertus", "arcee", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone4",
    "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_neox", "gpt_oss",
    "granite", "granitemoe", "hunyuan_v1_dense", "llama", "minicpm3", "ministral", "mistral", "mixtral", "olmo",
    "olmo2", "olmo3", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
    "starcoder2", "youtu",
)  # fmt: skip

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
HYBRID_TYPES = (
    "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2",
    "lfm2_moe", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
    "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
)  # fmt: skip
HYBRID_KEYS = (
    "mamba_", "ssm_", "linear_conv", "linear_num_", "linear_attn_config", "conv_L_cache", "lru_width",
    "attn_layer_period", "hybrid_override_pattern", "full_attention_interval", "state_size",
)  # fmt: skip
# Their windows live in a mask that we never see (transformers passes no sliding_window to attention).
NO_WINDOW = ("qwen2_moe",)
# Keys that hold one kind name a layer.
LAYER_KEYS = ("layer_types", "layers_block_type", "block_types", "_block_types")
OTHER_INPUTS = ("vision_config", "audio_config", "vision_tower", "speech_config")
CALL_ROPES = ("dynamic", "longrope", "su")
CAUSAL = ("ForCausalLM", "LMHeadModel")


def _kinds(config: Mapping[str, Any]) -> set[str]:
    lists = (value for key in LAYER_KEYS if isinstance(value := config.get(key), list | tuple))
    return {str(kind) for kinds in lists for kind in kinds}


def _hybrid(config: Mapping[str, Any]) -> str | None:
    """What shows that a model has layers that are not attention over a KV cache; None for a plain transformer."""
    kind = str(config.get("model_type"))
    if kind in HYBRID_TYPES:
        return f"model_type {kind}"
    for name in sorted(_kinds(config)):
        if any(word in name for word in ("linear", "mamba", "recurrent", "conv", "hybrid")):
            return f"layers of type {name}"
    key = next((key for key in config if key.startswith(HYBRID_KEYS) and config[key]), None)
    return f"{key} in its config.json" if key else None


def rope_types(config: Mapping[str, Any]) -> set[str]:
    """Every rope type a config names, in its old form and its new, for the whole model or by layer type."""
    found = set()
    for parameters in (config.get("rope_scaling"), config.get("rope_parameters")):
        if not isinstance(parameters, Mapping):
            continue
        for part in (parameters, *(value for value in parameters.values() if isinstance(value, Mapping))):
            found.add(str(part.get("rope_type") or part.get("type") or "default"))
    return found


def _check_purpose(config: Mapping[str, Any], where: str) -> None:
    """Refuse what doesn't write text from text."""
    kind = config.get("model_type")
    other = next((key for key in OTHER_INPUTS if config.get(key)), None)
    if other:
        raise ConfigError(
            f"{where} is a {kind} model with inputs beside text ({other}); only text models can be served yet: "
            "use a text-only checkpoint"
        )
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{where} is an encoder-decoder ({kind}); only decoder-only language models can be served")
    named = config.get("architectures")
    architectures = [str(name) for name in named] if isinstance(named, list | tuple) else []
    if architectures and not any(name.endswith(CAUSAL) for name in architectures):
        raise ConfigError(
            f"{where} is a {architectures[0]}, which does not write text token by token; "
            "only causal language models (...ForCausalLM) can be served"
        )
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        raise ConfigError(f"{where} has attention in both directions (an embedding model); it can't write text")


def _check_quantization(config: Mapping[str, Any], where: str) -> None:
    carried = config.get("quantization_config")
    if carried:
        method = carried.get("quant_method", "unknown") if isinstance(carried, Mapping) else "unknown"
        raise ConfigError(
            f"{where} carries {method} quantized weights, which can't be loaded in this version; "
            "use the model's unquantized (bf16 or float32) checkpoint, or a GGUF file of it"
        )


def _check_type(config: Mapping[str, Any], where: str, trust_remote_code: bool) -> None:
    kind = config["model_type"]
    if kind in VERIFIED:
        return
    code = config.get("auto_map")
    if isinstance(code, Mapping) and "AutoModelForCausalLM" in code:
        if trust_remote_code:
            return  # the operator's choice; loading still refuses code that our attention function can't reach
        raise ConfigError(
            f"{where} needs Python code of its own (model_type {kind!r}); set model.trust_remote_code: true "
            "only if you trust its author"
        )
    raise ConfigError(
        f"{where} has model_type {kind!r}, which Draftwing has not been checked with; accepted: {', '.join(VERIFIED)}"
    )


def _others(config: Mapping[str, Any], allowed: Iterable[str]) -> list[str]:
    return sorted(_kinds(config) - set(allowed))


def check_rope(config: Mapping[str, Any], where: str) -> None:
    """ConfigError for angles that depend on the whole call. Asked of the file, and of what transformers makes of it."""
    if by_call := sorted(rope_types(config) & set(CALL_ROPES)):
        raise ConfigError(
            f"{where} uses the rope type {by_call[0]}, whose angles depend on the whole call, so that output would "
            "depend on what else is in the batch; it can't be served yet: take a variant with another rope_scaling"
        )


def check_config(config: Mapping[str, Any], where: str, *, trust_remote_code: bool = False) -> None:
    """ConfigError, naming the cause, for a config.json whose model can't be served. where: how to call the model."""
    if not isinstance(config.get("model_type"), str):
        raise ConfigError(f"{where}: its config.json names no model_type, so it is no transformers model")
    if sign := _hybrid(config):
        raise ConfigError(
            f"{where} is a hybrid linear-attention (state-space) model ({sign}); such targets can't be served yet: "
            "choose a model with attention in every layer"
        )
    _check_purpose(config, where)
    _check_quantization(config, where)
    if strange := _others(config, ATTENTION_LAYERS):
        raise ConfigError(
            f"{where} has layers of type {', '.join(strange)}; accepted: full_attention and sliding_attention"
        )
    if config["model_type"] in NO_WINDOW and (
        config.get("use_sliding_window") or "sliding_attention" in _kinds(config)
    ):
        raise ConfigError(
            f"{where} is a {config['model_type']} model with sliding-window layers, which can't be served yet"
        )
    check_rope(config, where)
    _check_type(config, where, trust_remote_code)
