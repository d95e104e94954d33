"""A target whose layers tell their number, and drafters that draft right from one layer alone: made, not trained.

Hidden state k of the target holds, for the token v it has just read, the unit vector of v + SHIFT * k; its next token
is v + STEP (all modulo V, attention adds nothing). The drafters read hidden state LAYER and know what follows from it,
so that a neighbouring layer makes every draft wrong.

V tokens, H = 2 V: token vectors lie in the first half, what a block drafter makes of features in the second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

V, LAYERS, LAYER, STEP, SHIFT = 32, 6, 3, 5, 7
H, WIDTH = 2 * V, V
SIZES: dict[str, Any] = {
    "hidden_size": H, "intermediate_size": WIDTH, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": V,
    "vocab_size": V, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1e4,
}  # fmt: skip


def _unit(tokens: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(tokens % V, H).float()


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**SIZES, **config}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def _layer(prefix: str, taken: int = H) -> dict[str, Tensor]:
    """A layer that adds nothing."""
    found = {f"{prefix}.self_attn.{part}_proj.weight": torch.zeros(V, taken) for part in "qkv"}
    found |= {
        f"{prefix}.self_attn.o_proj.weight": torch.zeros(H, V),
        f"{prefix}.mlp.down_proj.weight": torch.zeros(H, WIDTH),
    }
    found |= {f"{prefix}.mlp.{part}_proj.weight": torch.zeros(WIDTH, H) for part in ("gate", "up")}
    return found | {f"{prefix}.{part}_layernorm.weight": torch.ones(H) for part in ("input", "post_attention")}


def make_target(folder: Path) -> Path:
    tokens = torch.arange(V)
    scale = H**0.5  # of a unit vector after the norm
    found = {"model.embed_tokens.weight": _unit(tokens), "model.norm.weight": torch.ones(H)}
    for i in range(LAYERS):
        layer = _layer(f"model.layers.{i}")
        layer |= {f"model.layers.{i}.mlp.{part}_proj.weight": _unit(tokens) for part in ("gate", "up")}
        size = torch.nn.functional.silu(torch.tensor(scale)) * scale
        layer[f"model.layers.{i}.mlp.down_proj.weight"] = ((_unit(tokens + SHIFT) - _unit(tokens)) / size).T
        found |= layer
    found["lm_head.weight"] = _unit(tokens - STEP + SHIFT * LAYERS)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": LAYERS}
    return _save(folder, config, found)


def make_eagle3(folder: Path, **config: Any) -> Path:
    """Drafts what comes two steps after the feature's token. Its first id counts, the others are ignored."""
    found = _layer("midlayer", taken=2 * H) | {
        "midlayer.hidden_norm.weight": torch.ones(H),
        "norm.weight": torch.ones(H),
    }
    found["fc.weight"] = torch.cat([torch.eye(H), torch.zeros(H, 2 * H)], dim=1)
    found["lm_head.weight"] = _unit(torch.arange(V) - 2 * STEP + SHIFT * LAYER)
    return _save(folder, {"architectures": ["LlamaForCausalLM"], **config}, found)


def make_dflash(folder: Path, **config: Any) -> Path:
    """The row after the anchor attends evenly to what its window holds, in which the last feature alone is not zero."""
    half, nothing, ones = torch.eye(V), torch.zeros(V, V), torch.ones(H)
    found = _layer("layers.0") | {"hidden_norm.weight": ones, "norm.weight": ones.clone()}
    found |= {f"layers.0.self_attn.{part}_norm.weight": torch.ones(V) for part in "qk"}
    moved = torch.cat([torch.zeros(V, H), torch.cat([half, nothing], dim=1)])
    found["fc.weight"] = torch.cat([moved, torch.zeros(H, 2 * H)], dim=1)
    found["layers.0.self_attn.v_proj.weight"] = torch.cat([nothing, half], dim=1)
    held = torch.arange(V)  # token + SHIFT * LAYER, to what the target's last layer holds a step later
    found["layers.0.self_attn.o_proj.weight"] = 100 * _unit(held - SHIFT * LAYER + STEP + SHIFT * LAYERS).T
    block = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 3, "is_causal": False}
    return _save(folder, {"architectures": ["DFlashDraftModel"], "block_size": 4, **block, **config}, found)
