"""Writes transformers models as GGUF files, by llama.cpp's names and layouts: converting them back can be checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def vocabulary(size: int) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a sentencepiece vocabulary: specials, letters, pairs of letters."""
    words = ["<unk>", "<s>", "</s>", "\u2581", *LETTERS, *(a + b for a in LETTERS for b in LETTERS)]
    kinds = [2, 3, 3, *[1] * size]
    return words[:size], [-float(i) for i in range(size)], kinds[:size]


def _layout(name: str, tensor: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    """llama.cpp's form of a weight: Llama's rotary halves interleaved, Gemma's norms with the one added."""
    if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        return tensor.reshape(heads, 2, -1, tensor.shape[-1]).swapaxes(1, 2).reshape(tensor.shape)
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    return tensor


def _experts(name: str, tensor: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Fused expert weights under llama.cpp's names."""
    block = name.split(".")[2]
    if name.endswith("experts.down_proj"):
        return {f"blk.{block}.ffn_down_exps.weight": tensor}
    gate, up = np.split(tensor, 2, axis=1)
    return {f"blk.{block}.ffn_gate_exps.weight": gate, f"blk.{block}.ffn_up_exps.weight": up}


def tensors_of(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    config = model.config
    names = gguf.get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = _layout(name, tensor.to(torch.float32).numpy(), config)
        if "mlp.experts." in name:
            found |= _experts(name, array)
        else:
            base, kind = name.rsplit(".", 1)
            found[f"{names.get_name(base)}.{kind}"] = array
    return found


def write(
    path: Path,
    model: Any,
    *,
    quantize: gguf.GGMLQuantizationType | None = None,
    tokenizer: bool = True,
    extra: dict[str, Any] | None = None,
) -> Path:
    """A GGUF file of a model. quantize: type of its matrices (float32 else). extra: more keys of the architecture."""
    config = model.config
    name = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config.model_type]]
    writer = gguf.GGUFWriter(path, name)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    parameters = config.rope_parameters
    writer.add_rope_freq_base(parameters.get("full_attention", parameters)["rope_theta"])
    if name in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if name == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for key, value in (extra or {}).items():
        add: dict[type, Callable[[str, Any], None]] = {
            float: writer.add_float32,
            str: writer.add_string,
            int: writer.add_uint32,
            list: writer.add_array,
        }
        add[type(value)](f"{name}.{key}", value)
    words, scores, kinds = vocabulary(config.vocab_size)
    writer.add_token_list(words)
    if tokenizer:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(scores)
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_pad_token_id(0)
    for key, tensor in tensors_of(model).items():
        if quantize is not None and tensor.ndim == 2:
            writer.add_tensor(key, gguf.quantize(tensor, quantize), raw_dtype=quantize)
        else:
            writer.add_tensor(key, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
