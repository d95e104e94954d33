"""DFlash, DFlash 2 and DSpark heads made at random, and their formulas written out densely for one block.

The context is not cached and nothing is batched: a block's rows see features and each other through a mask made of
plain positions. float64.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

VOCAB, HIDDEN, TARGET_LAYERS = 47, 16, 9
HEAD_SIZE, WIDE, RANK, GROUP = 6, 20, 5, 4
EPS, THETA = 1e-6, 5000.0


@dataclass(frozen=True, slots=True)
class BlockVariant:
    """A head. windows: per layer, 0 for full attention. causal None: the config says nothing. shaping: logit settings
    and the embedding's scale. confidence: "", "hidden" or "markov" for what the confidence head reads."""

    method: str = "dflash"
    block: int = 6
    windows: tuple[int, ...] = (0, 0)
    causal: bool | None = None
    heads: int = 4
    kv_heads: int = 2
    features: int = 3
    listed: bool = True
    bias: bool = False
    shaping: bool = False
    nested: bool = True
    taps: int = 2
    top_k: int = 4
    markov: str = "vanilla"
    confidence: str = ""
    own_head: bool = False

    def __str__(self) -> str:
        plain = BlockVariant(self.method)
        return " ".join(
            [self.method, *(f"{n}={v}" for n in self.__slots__ if (v := getattr(self, n)) != getattr(plain, n))]
        )

    @property
    def first_slot(self) -> int:
        """Row of the block that predicts first: DSpark's anchor does."""
        return 0 if self.method == "dspark" else 1

    @property
    def layer_ids(self) -> list[int]:
        """Outputs of these layers; those of the default rule where none are listed."""
        if self.listed:
            return [1, 4, 6, 2, 7][: self.features]
        if self.features == 1:
            return [TARGET_LAYERS // 2]
        return [round(1 + i * (TARGET_LAYERS - 4) / (self.features - 1)) for i in range(self.features)]


def tensors_of(variant: BlockVariant, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=draw) * (1.2 / math.sqrt(columns))

    def norm(width: int) -> Tensor:
        return 1 + 0.4 * torch.randn(width, generator=draw)

    made = {"fc.weight": matrix(HIDDEN, variant.features * HIDDEN)}
    made |= {"hidden_norm.weight": norm(HIDDEN), "norm.weight": norm(HIDDEN)}
    for layer in range(len(variant.windows)):
        name = f"layers.{layer}"
        counts = {"q": variant.heads, "k": variant.kv_heads, "v": variant.kv_heads}
        for part, heads in counts.items():
            made[f"{name}.self_attn.{part}_proj.weight"] = matrix(heads * HEAD_SIZE, HIDDEN)
        made[f"{name}.self_attn.o_proj.weight"] = matrix(HIDDEN, variant.heads * HEAD_SIZE)
        if variant.bias:
            made |= {f"{name}.self_attn.{p}_proj.bias": norm(n * HEAD_SIZE) - 1 for p, n in counts.items()}
            made[f"{name}.self_attn.o_proj.bias"] = norm(HIDDEN) - 1
        made |= {f"{name}.self_attn.{part}_norm.weight": norm(HEAD_SIZE) for part in "qk"}
        made |= {f"{name}.mlp.{part}_proj.weight": matrix(WIDE, HIDDEN) for part in ("gate", "up")}
        made[f"{name}.mlp.down_proj.weight"] = matrix(HIDDEN, WIDE)
        made |= {f"{name}.{n}_layernorm.weight": norm(HIDDEN) for n in ("input", "post_attention")}
        if variant.method == "dflash2":
            for conv in ("attention_conv", "mlp_conv"):
                made[f"{name}.{conv}.base_kernel"] = torch.randn(2, variant.taps, HIDDEN, generator=draw) / 2
                rows = 2 * variant.taps * HIDDEN // GROUP
                made[f"{name}.{conv}.kernel_projection.weight"] = matrix(rows, HIDDEN) / 2
    return made | _choice(variant, matrix, draw)


def _choice(variant: BlockVariant, matrix: Any, draw: torch.Generator) -> dict[str, Tensor]:
    """What turns rows into tokens."""
    made: dict[str, Tensor] = {}
    if variant.own_head:
        made |= {
            "embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=draw),
            "lm_head.weight": matrix(VOCAB, HIDDEN) * 2,
        }
    if variant.method == "dflash2":
        name = "candidate_selector"
        made |= {f"{name}.{part}_codebook": matrix(VOCAB, RANK) * 2 for part in ("predecessor", "successor")}
        made[f"{name}.hidden_projection.weight"] = matrix(RANK, HIDDEN)
    if variant.method == "dspark":
        made |= {f"markov_head.markov_{part}.weight": matrix(VOCAB, RANK) * 2 for part in ("w1", "w2")}
        if variant.markov == "gated":
            made["markov_head.gate_proj.weight"] = matrix(RANK, HIDDEN + RANK)
            made["markov_head.gate_proj.bias"] = matrix(1, RANK)[0]
        if variant.markov == "rnn":
            made["markov_head.joint_proj.weight"] = matrix(3 * RANK, HIDDEN + 2 * RANK)
            made["markov_head.joint_proj.bias"] = matrix(1, 3 * RANK)[0]
    if variant.confidence:
        made["confidence_head.proj.weight"] = matrix(1, HIDDEN + RANK * (variant.confidence == "markov"))
        made["confidence_head.proj.bias"] = matrix(1, 1)[0]
    return made


def config_of(variant: BlockVariant) -> dict[str, Any]:
    own: dict[str, Any] = {"mask_token_id": VOCAB - 1, "block_size": variant.block}
    own |= {"target_layer_ids": variant.layer_ids} if variant.listed else {}
    if variant.shaping:
        own |= {"input_embedding_scale": 1.7, "output_multiplier": 0.8, "final_logit_softcapping": 3.0}
    if variant.method == "dflash2":
        own |= {"selector_top_k": variant.top_k, "selector_rank": RANK, "conv_kernel_size": variant.taps}
    config: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_attention_heads": variant.heads,
        "num_key_value_heads": variant.kv_heads,
        "head_dim": HEAD_SIZE,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": 64,
        "attention_bias": variant.bias,
        "num_target_layers": TARGET_LAYERS,
    }
    if any(variant.windows):
        kinds = ["sliding_attention" if window else "full_attention" for window in variant.windows]
        config |= {"layer_types": kinds, "sliding_window": max(variant.windows)}
    if variant.causal is not None:
        config["is_causal"] = variant.causal
    if variant.method == "dspark":
        config |= {"markov_head_type": variant.markov, "markov_rank": RANK}
        config |= {"enable_confidence_head": bool(variant.confidence)}
        config |= {"confidence_head_with_markov": variant.confidence == "markov"}
    return config | ({"dflash_config": own} if variant.nested else own)


def save_head(variant: BlockVariant, folder: Path, seed: int = 0) -> dict[str, Tensor]:
    tensors = tensors_of(variant, seed)
    (folder / "config.json").write_text(json.dumps(config_of(variant)))
    save_file(tensors, folder / "model.safetensors")
    return tensors


class DenseBlock:
    """The formulas, for a block after `features` [tokens, n, H]. embedding, head [V, H]: the target's."""

    def __init__(self, variant: BlockVariant, tensors: dict[str, Tensor], embedding: Tensor, head: Tensor) -> None:
        self.variant = variant
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self.embedding = self.tensors.get("embed_tokens.weight", embedding.double())
        self.head = self.tensors.get("lm_head.weight", head.double())

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.tensors[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.tensors[f"{name}.weight"].T
        return y + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else y

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [rows, heads, size]"""
        half = HEAD_SIZE // 2
        angle = positions[:, None, None] * THETA ** (-torch.arange(half, dtype=torch.float64) / half)
        low, high = x[..., :half], x[..., half:]
        return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)

    def seen(self, layer: int, context: int) -> Tensor:
        """[rows of the block, context and block]"""
        variant, window = self.variant, self.variant.windows[layer]
        causal = bool(window) if variant.causal is None else variant.causal
        at = torch.arange(context + variant.block)
        ahead = at[None, :] - at[context:, None]
        found = torch.ones_like(ahead, dtype=torch.bool)
        if causal:
            found &= ahead <= 0
        return found & (ahead.abs() < window) if window else found

    def attended(self, y: Tensor, context: Tensor, layer: int) -> Tensor:
        name, variant, count = f"layers.{layer}.self_attn", self.variant, len(context)
        positions = torch.arange(count + len(y), dtype=torch.float64)
        q, k, v = (
            self.linear(x, f"{name}.{part}_proj").view(len(x), -1, HEAD_SIZE)
            for part, x in (("q", y), ("k", torch.cat([context, y])), ("v", torch.cat([context, y])))
        )
        q = self.rotated(self.norm(q, f"{name}.q_norm"), positions[count:])
        k = self.rotated(self.norm(k, f"{name}.k_norm"), positions)
        out = []
        for head in range(variant.heads):
            shared = head * variant.kv_heads // variant.heads
            scores = q[:, head] @ k[:, shared].T / HEAD_SIZE**0.5
            out.append(scores.masked_fill(~self.seen(layer, count), -torch.inf).softmax(-1) @ v[:, shared])
        return self.linear(torch.cat(out, -1), f"{name}.o_proj")

    def convolved(self, x: Tensor, y: Tensor, name: str, side: int) -> Tensor:
        """Row t of x becomes a sum over the rows up to t of its block, by a kernel that y gives."""
        base = self.tensors[f"{name}.base_kernel"]
        own = self.linear(y, f"{name}.kernel_projection").view(len(y), *base.shape[:2], HIDDEN // GROUP)
        out = torch.zeros_like(x)
        for t in range(len(x)):
            for j in range(min(t + 1, base.shape[1])):
                out[t] += (base[side, j] + own[t, side, j].repeat_interleave(GROUP)) * x[t - j]
        return out

    def hidden(self, anchor: int, features: Tensor) -> Tensor:
        """The rows of the block [rows, H]."""
        variant = self.variant
        context = self.norm(self.linear(features.double().flatten(1), "fc"), "hidden_norm")
        x = self.embedding[torch.tensor([anchor, *[VOCAB - 1] * (variant.block - 1)])]
        x = x * 1.7 if variant.shaping else x
        for layer in range(len(variant.windows)):
            parts = (("attention_conv", "input_layernorm"), ("mlp_conv", "post_attention_layernorm"))
            for conv, norm in parts:
                y, name = self.norm(x, f"layers.{layer}.{norm}"), f"layers.{layer}.{conv}"
                inner = self.convolved(y, y, name, 0) if variant.method == "dflash2" else y
                if conv == "attention_conv":
                    out = self.attended(inner, context, layer)
                else:
                    gate, up = (self.linear(inner, f"layers.{layer}.mlp.{part}_proj") for part in ("gate", "up"))
                    out = self.linear(silu(gate) * up, f"layers.{layer}.mlp.down_proj")
                x = x + (self.convolved(out, y, name, 1) if variant.method == "dflash2" else out)
        return self.norm(x, "norm")

    def logits(self, row: Tensor) -> Tensor:
        logits = self.head @ row
        return 3.0 * torch.tanh(0.8 * logits / 3.0) if self.variant.shaping else logits

    def shares(self, rows: Tensor, path: list[int]) -> Tensor:
        """The distribution [V] after a path of tokens, the anchor first; rows: of the block."""
        variant = self.variant
        rows = rows[variant.first_slot :][: len(path)]
        logits = self.logits(rows[-1])
        if variant.method == "dflash2":
            kept = logits.argsort(descending=True)[: variant.top_k]
            wanted = self.tensors["candidate_selector.predecessor_codebook"][path[-1]]
            wanted = wanted * self.linear(rows[-1], "candidate_selector.hidden_projection")
            scores = logits[kept] + self.tensors["candidate_selector.successor_codebook"][kept] @ wanted
            logits = torch.full_like(logits, -torch.inf).scatter(0, kept, scores)
        if variant.method == "dspark":
            logits = logits + self.tensors["markov_head.markov_w2.weight"] @ self.latent(rows, path)
        return logits.softmax(0)

    def latent(self, rows: Tensor, path: list[int]) -> Tensor:
        before = self.tensors["markov_head.markov_w1.weight"][path]
        if self.variant.markov == "gated":
            return self.linear(torch.cat([rows[-1], before[-1]]), "markov_head.gate_proj").sigmoid() * before[-1]
        if self.variant.markov == "vanilla":
            return before[-1]
        state = torch.zeros(RANK, dtype=torch.float64)
        for row, token in zip(rows, before, strict=True):
            keep, new, out = self.linear(torch.cat([state, token, row]), "markov_head.joint_proj").chunk(3)
            state = keep.sigmoid() * state + (1 - keep.sigmoid()) * new.tanh()
        return out.tanh()

    def confidence(self, rows: Tensor, path: list[int]) -> float:
        row = rows[self.variant.first_slot + len(path) - 1]
        if self.variant.confidence == "markov":
            row = torch.cat([row, self.tensors["markov_head.markov_w1.weight"][path[-1]]])
        return float(self.linear(row, "confidence_head.proj").sigmoid())
