"""Random targets with multi-token prediction modules, stored under each family's published names, and a reference.

The reference runs transformers' layers over whole sequences, without a cache: it shares nothing with the drafter.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.random_targets import randomise

VOCAB = 61
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENTS: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
}  # fmt: skip
HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4, "head_dim": 16, "linear_key_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_value_head_dim": 8, "moe_intermediate_size": 20, "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 12, "partial_rotary_factor": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """kind: model_type. names: of embedding norm, hidden norm, join, norm. shared: all modules but the layers are one.

    prefix: of module i, with the number of the target's layers known. own: embedding and output are stored beside it.
    """

    kind: str
    config: dict[str, Any]
    modules: int
    prefix: str
    names: tuple[str, str, str, str]
    shared: bool = False
    own: bool = False
    hidden_first: bool = False
    hybrid: bool = False


DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
QWEN = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
BELOW = "model.layers.{after}."
FAMILIES = {
    "deepseek": Family("deepseek_v3", {**LATENTS, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
                                       "q_lora_rank": None}, 1, BELOW, DEEPSEEK, own=True),
    "deepseek, two": Family("deepseek_v3", {**LATENTS, "n_routed_experts": 6, "n_group": 2, "topk_group": 1,
                                            "q_lora_rank": 20}, 2, BELOW, DEEPSEEK),
    "deepseek, three": Family("deepseek_v3", {**LATENTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                                              "q_lora_rank": 16, "num_attention_heads": 2,
                                              "num_key_value_heads": 2}, 3, BELOW, DEEPSEEK),
    "glm": Family("glm4_moe", {"head_dim": 16, "n_routed_experts": 6, "n_shared_experts": 1, "n_group": 1,
                               "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                               "first_k_dense_replace": 1, "partial_rotary_factor": 0.5, "use_qk_norm": True,
                               "attention_bias": True}, 1, BELOW, DEEPSEEK, own=True),
    "mimo": Family("qwen2", {}, 1, "model.mtp_layers.{i}.", MIMO, hidden_first=True),
    "mimo, two": Family("qwen2", {"num_key_value_heads": 1}, 2, "model.mtp_layers.{i}.", MIMO, hidden_first=True),
    "dense": Family("qwen3", {"head_dim": 16}, 1, "mtp.", QWEN, shared=True),
    "hybrid": Family("qwen3_next", {**HYBRID, "num_experts": 4}, 1, "mtp.", QWEN, shared=True, hybrid=True),
    "hybrid, two": Family("qwen3_next", {**HYBRID, "num_experts": 6}, 2, "mtp.", QWEN, shared=True, hybrid=True),
}  # fmt: skip


@dataclass(slots=True)
class Made:
    """A target in a folder with its modules, and the same modules as transformers' own."""

    family: Family
    folder: Path
    model: Any
    layers: list[Any] = field(default_factory=list)
    norms: list[list[Any]] = field(default_factory=list)
    joins: list[Any] = field(default_factory=list)


def make(name: str, folder: Path, *, seed: int = 0, vocab: int = VOCAB) -> Made:
    from transformers import AutoConfig, AutoModelForCausalLM

    family, auto = FAMILIES[name], AutoModelForCausalLM
    config: Any = AutoConfig.for_model(family.kind, **{**COMMON, **family.config, "vocab_size": vocab})
    config.num_nextn_predict_layers = family.modules
    config._attn_implementation = "eager"
    made = Made(family, folder, auto.from_config(config, attn_implementation="eager").eval())  # type: ignore[no-untyped-call]
    made.model.requires_grad_(False)
    randomise(made.model, seed)
    decoder = made.model.get_decoder()
    kind, place = type(decoder.layers[-1]), len(decoder.layers) - 1
    for i in range(family.modules):
        layer = kind(decoder.config, place).requires_grad_(False).eval()
        randomise(layer, seed + 10 + i)
        made.layers.append(layer)
        if i and family.shared:
            made.norms.append(made.norms[0])
            made.joins.append(made.joins[0])
            continue
        extras = nn.ModuleList([type(decoder.norm)(config.hidden_size, eps=1e-6) for _ in range(3)])
        extras.append(nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False))
        randomise(extras.requires_grad_(False), seed + 20 + i)
        made.norms.append([extras[0], extras[1], extras[2]])
        made.joins.append(extras[3])
    _store(made)
    return made


def _store(made: Made) -> None:
    family = made.family
    tensors: dict[str, Tensor] = {}
    made.model.save_pretrained(made.folder)
    for i, layer in enumerate(made.layers):
        prefix = family.prefix.format(i=i, after=made.model.config.num_hidden_layers + i)
        inner = f"{prefix}layers.{i}." if family.shared else prefix
        for name, tensor in layer.state_dict().items():
            tensors |= {f"{inner}{n}": t for n, t in unstacked(name, tensor).items()}
        embedding, hidden, join, norm = (f"{prefix}{name}.weight" for name in family.names)
        for name, module in zip((embedding, hidden, norm), made.norms[i], strict=True):
            tensors[name] = module.weight
        tensors[join] = made.joins[i].weight
        if family.own:
            tensors[f"{prefix}embed_tokens.weight"] = made.model.get_input_embeddings().weight
            tensors[f"{prefix}shared_head.head.weight"] = made.model.get_output_embeddings().weight
    path = made.folder / "model.safetensors"
    save_file({**load_file(path), **{n: t.contiguous().clone() for n, t in tensors.items()}}, path, {"format": "pt"})


def unstacked(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Experts one by one, as they are published."""
    stack, _, kind = name.rpartition(".")
    if kind == "gate_up_proj":
        gate, up = tensor.chunk(2, dim=1)
        return {
            f"{stack}.{e}.{k}.weight": t[e] for k, t in (("gate_proj", gate), ("up_proj", up)) for e in range(len(t))
        }
    if kind == "down_proj":
        return {f"{stack}.{e}.{kind}.weight": tensor[e] for e in range(len(tensor))}
    return {name: tensor}


@torch.no_grad()
def reference(made: Made, tokens: Seq[int], hidden: Tensor, path: Seq[int]) -> Tensor:
    """Probabilities [V] of the token after `path`, which continues `tokens`. hidden [len(tokens) - 1, H].

    Every module runs over all rows from its first on: module i sees the tokens shifted by i more. Beyond the last one
    its rows are kept, and the row that follows takes the newest token and what the module gave out last.
    """
    ids, last, inputs = list(tokens[1:]), len(made.layers) - 1, hidden[:0]
    for step in range(len(path) + 1):
        i = min(step, last)
        inputs = (
            _joined(made, i, ids, hidden)
            if step <= last
            else torch.cat([inputs, _joined(made, i, ids[-1:], hidden[-1:])])
        )
        hidden = made.norms[i][2](_layer(made, i, inputs, i + 1))
        ids = [*ids[1:], *path[step : step + 1]]
    found: Tensor = made.model.get_output_embeddings()(hidden[-1]).softmax(-1)
    return found


def _joined(made: Made, i: int, ids: Seq[int], hidden: Tensor) -> Tensor:
    embedded = made.model.get_input_embeddings()(torch.tensor(ids))
    pair = [made.norms[i][0](embedded), made.norms[i][1](hidden)]
    joined: Tensor = made.joins[i](torch.cat(pair[::-1] if made.family.hidden_first else pair, dim=-1))
    return joined


def _layer(made: Made, i: int, x: Tensor, first: int) -> Tensor:
    positions = torch.arange(first, first + len(x))[None]
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    rope = made.model.get_decoder().rotary_emb(x[None], positions)
    out: Tensor = made.layers[i](x[None], position_embeddings=rope, attention_mask=mask, position_ids=positions)
    return out[0]
