"""Tiny random models of every architecture that Draftwing promises to serve, made by their own transformers configs.

Weights are seeded, and large enough that output wanders and choices are not near-ties: then a wrong mask, window, sink
or expert shows in the tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

WINDOW = 7  # shorter than the prompts
VOCAB = 211

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED_LAYERS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": WINDOW}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
_LATENTS = {
    "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
    "v_head_dim": 10, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, **_EXPERTS,
}  # fmt: skip

# name -> (model_type, what its config sets beside the sizes that all share)
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen2_windows": ("qwen2", {"use_sliding_window": True, **_MIXED_LAYERS}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "gemma2": ("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 5.0,
                          "final_logit_softcapping": 8.0, **_MIXED_LAYERS}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "query_pre_attn_scalar": 20, **_MIXED_LAYERS}),
    "phi": ("phi", {"num_key_value_heads": 4}),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 16, "num_experts": 8, "mlp_only_layers": [0], "norm_topk_prob": True,
                                **_EXPERTS}),
    "gpt_oss": ("gpt_oss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": _YARN,
                            **_MIXED_LAYERS}),
    "deepseek_v3": ("deepseek_v3", _LATENTS),
    "deepseek_v3_yarn": ("deepseek_v3", {**_LATENTS, "q_lora_rank": None, "rope_interleave": False,
                                         "rope_parameters": {**_YARN, "mscale_all_dim": 0.8}}),
}  # fmt: skip

# Where the first seed gives near-ties or text that loops.
SEEDS = {"deepseek_v3": 6, "deepseek_v3_yarn": 6}


def config_of(name: str) -> Any:
    from transformers import AutoConfig

    kind, more = TARGETS[name]
    return AutoConfig.for_model(kind, **{**_COMMON, **more})


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Every tensor drawn in the order of its name; those that start as zeros (sinks, biases) too."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stored = model.state_dict()
    for name in sorted(tensors.keys() & stored.keys()):
        tensor = tensors[name]
        noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype)
        if tensor.dim() == 1:
            tensor.copy_(tensor.round() + 0.3 * noise)  # norms stay near their own neutral value, 1 or 0
        elif "embed" in name:
            tensor.copy_(noise)
        else:
            tensor.copy_(noise * 2.5 / tensor.shape[-1] ** 0.5)


def random_model(name: str, *, seed: int | None = None) -> Any:
    """The target called `name`. seed None: the one whose choices are clear."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config_of(name))
    randomise(model, SEEDS.get(name, 0) if seed is None else seed)
    return model


def save_random(name: str, folder: Path, *, seed: int | None = None) -> Path:
    """Save the target called `name` into folder."""
    random_model(name, seed=seed).save_pretrained(folder)
    return folder
