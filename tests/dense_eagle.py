"""EAGLE heads made at random in every published form, and their formulas written out densely, one row at a time.

Nothing here uses the package's own heads: what a flag does is restated from the formats (one row of a prompt or of a
drafted path after the other, in float64, no cache pages, no batches).
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

VOCAB, TARGET_HIDDEN, TARGET_LAYERS = 53, 16, 9
HEADS, HEAD_SIZE, WIDE, DRAFT_VOCAB = 4, 6, 20, 31
EPS = 1e-5
LEGACY = ["aux_norm_low", "aux_norm_mid", "aux_norm_high"]
LAYER_IDS = {1: (4,), 3: (2, 4, 6), 5: (0, 2, 4, 6, 8)}  # as indices of hidden_states; three: the rule 2, N/2, N - 3


@dataclass(frozen=True, slots=True)
class Variant:
    """A head. version: 1 or 3. aux: hidden states it takes, 0: the last alone, without fc. rope: "" nothing is said."""

    version: int = 3
    dialect: str = "safeailab"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: str = ""
    norm_output: bool = False
    qk_norms: bool = False
    bias: bool = False
    layers: int = 1
    vocabulary: str = "draft"
    hidden: int = TARGET_HIDDEN
    embedding: str = "own"
    aux: int = 3
    rope: str = ""
    kv_heads: int = 2

    def __str__(self) -> str:
        plain = Variant(self.version, self.dialect)
        more = [f"{n}={getattr(self, n)}" for n in self.__slots__ if getattr(self, n) != getattr(plain, n)]
        return " ".join([f"eagle{self.version}", self.dialect, *more])

    @property
    def sensible(self) -> bool:
        """Whether a checkpoint like this can be: what contradicts itself or was never published is left out."""
        if self.layers > 1 and self.dialect in ("safeailab", "specforge"):
            return False  # `midlayer` is one
        if self.hidden != TARGET_HIDDEN and (self.embedding == "target" or self.vocabulary == "target" or not self.aux):
            return False  # sizes would not fit
        if not self.aux and (self.norm_before_fc or self.fc_norm or self.dialect not in ("specforge", "deepspec")):
            return False  # nothing is fused
        return self.fc_norm != "legacy" or (self.aux == 3 and self.dialect != "speculators")


class Random:
    """Draws tensors in order."""

    def __init__(self, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=self._draw) * (1.5 / math.sqrt(columns))

    def norm(self, width: int) -> Tensor:
        return 1 + 0.4 * torch.randn(width, generator=self._draw)

    def vocabulary(self) -> dict[str, Tensor]:
        used = torch.randperm(VOCAB, generator=self._draw)[:DRAFT_VOCAB].sort().values
        known = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, used, True)
        return {"d2t": used - torch.arange(DRAFT_VOCAB), "t2d": known}


def tensors_of(variant: Variant, seed: int = 0) -> dict[str, Tensor]:
    random, size = Random(seed), variant.hidden
    made: dict[str, Tensor] = {}
    for index in range(variant.layers):
        made |= _layer(variant, index, random)
    if variant.version == 1:
        made["fc.weight"] = random.matrix(size, 2 * size)
        if variant.bias:
            made["fc.bias"] = random.norm(size) - 1
    else:
        made |= _around(variant, random)
    if variant.embedding == "own":
        made["embed_tokens.weight"] = random.matrix(VOCAB, size) * math.sqrt(size)
    return made


def _layer(variant: Variant, index: int, random: Random) -> dict[str, Tensor]:
    size, third = variant.hidden, variant.version == 3
    name = "midlayer" if third and variant.dialect in ("safeailab", "specforge") else f"layers.{index}"
    inputs = 2 * size if third and index == 0 else size
    rows = {"q": HEADS * HEAD_SIZE, "k": variant.kv_heads * HEAD_SIZE, "v": variant.kv_heads * HEAD_SIZE}
    made = {f"{name}.self_attn.{part}_proj.weight": random.matrix(count, inputs) for part, count in rows.items()}
    if variant.bias:
        made |= {f"{name}.self_attn.{part}_proj.bias": random.norm(count) - 1 for part, count in rows.items()}
    if variant.qk_norms:
        made |= {f"{name}.self_attn.{part}_norm.weight": random.norm(HEAD_SIZE) for part in "qk"}
    made[f"{name}.self_attn.o_proj.weight"] = random.matrix(size, HEADS * HEAD_SIZE)
    made |= {f"{name}.mlp.{part}_proj.weight": random.matrix(WIDE, size) for part in ("gate", "up")}
    made[f"{name}.mlp.down_proj.weight"] = random.matrix(size, WIDE)
    norms = ["post_attention_layernorm", *["input_layernorm"] * third, *["hidden_norm"] * (third and index == 0)]
    return made | {f"{name}.{norm}.weight": random.norm(size) for norm in norms}


def _around(variant: Variant, random: Random) -> dict[str, Tensor]:
    """What an EAGLE-3 head has beside its layers."""
    size, aux = variant.hidden, variant.aux
    made = {"norm.weight": random.norm(size)}
    if aux:
        made["fc.weight"] = random.matrix(size, aux * TARGET_HIDDEN)
    if variant.norm_before_fc:
        made["input_norm.weight"] = random.norm(aux * TARGET_HIDDEN)
    names = {"numbered": [f"fc_norm.{i}" for i in range(aux)], "legacy": LEGACY}.get(variant.fc_norm, [])
    made |= {f"{name}.weight": random.norm(TARGET_HIDDEN) for name in names}
    if variant.vocabulary != "target":
        made["lm_head.weight"] = random.matrix(DRAFT_VOCAB if variant.vocabulary == "draft" else VOCAB, size) * 3
    return made | (random.vocabulary() if variant.vocabulary == "draft" else {})


def config_of(variant: Variant) -> dict[str, Any]:
    """config.json in the words of the dialect; what it leaves out it means by default."""
    dims: dict[str, Any] = {
        "hidden_size": variant.hidden,
        "num_attention_heads": HEADS,
        "num_key_value_heads": variant.kv_heads,
        "head_dim": HEAD_SIZE,
        "rms_norm_eps": EPS,
        "num_hidden_layers": 40,  # published heads copy the target's
        "max_position_embeddings": 64,
    }
    speculators = variant.dialect == "speculators"
    if variant.rope:
        dims |= {"rope_parameters": {"rope_theta": 777.0, "rope_type": "default"}} if speculators else {}
        dims |= {} if speculators else {"rope_theta": 777.0}
    if variant.rope == "linear":
        scaling = {"rope_type" if speculators else "type": "linear", "factor": 3.0}
        dims |= {"rope_parameters": {"rope_theta": 777.0, **scaling}} if speculators else {"rope_scaling": scaling}
    if variant.version == 1:
        return {**dims, "bias": variant.bias}
    flags: dict[str, Any] = {
        name: True for name in ("norm_before_residual", "norm_before_fc", "norm_output") if getattr(variant, name)
    }
    flags |= {"fc_norm": True} if variant.fc_norm == "numbered" else {}
    flags |= {"use_aux_norm": True} if variant.fc_norm == "legacy" else {}
    ids, rule = LAYER_IDS.get(variant.aux, ()), variant.aux == 3
    if speculators:
        off = dict.fromkeys(("norm_before_fc", "norm_output", "fc_norm"), False)
        return {
            "speculators_model_type": "eagle3",
            "transformer_layer_config": dims,
            "eagle_aux_hidden_state_layer_ids": None if rule else list(ids),
            **off,
            **flags,
            "norm_before_residual": variant.norm_before_residual,
        }
    if variant.dialect == "specforge":
        nested: dict[str, Any] = {"use_aux_hidden_state": bool(variant.aux), **flags}
        if variant.aux and not rule:
            nested["eagle_aux_hidden_state_layer_ids"] = [i - 1 for i in ids]  # outputs of layers
        # SpecForge's own norm_output is no recycling flag.
        return {**dims, "architectures": ["LlamaForCausalLMEagle3"], "norm_output": True, "eagle_config": nested}
    if variant.dialect == "deepspec":
        own = {"target_layer_ids": [i - 1 for i in ids]} if variant.aux else {}
        more = {} if variant.aux else {"eagle_config": {"use_aux_hidden_state": False}}
        return {**dims, **own, **flags, **more}
    return {**dims, **flags, **({} if rule else {"eagle_aux_hidden_state_layer_ids": list(ids)})}


def save_head(variant: Variant, folder: Path, seed: int = 0) -> dict[str, Tensor]:
    tensors = tensors_of(variant, seed)
    (folder / "config.json").write_text(json.dumps(config_of(variant)))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def layers_of(variant: Variant) -> tuple[int, ...]:
    """Hidden states of the target that the head takes; the last one is the final norm's output."""
    return LAYER_IDS[variant.aux] if variant.version == 3 and variant.aux else (TARGET_LAYERS,)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that ran: keys and values of every layer [rows, heads, size], and what the last one gave out."""

    kept: tuple[tuple[Tensor, Tensor], ...]
    recycled: Tensor
    shares: Tensor


class DenseEagle:
    """The formulas. embedding [V, H of the target], head [V, H of the target]: the target's own."""

    def __init__(self, variant: Variant, tensors: dict[str, Tensor], embedding: Tensor, head: Tensor) -> None:
        self.variant = variant
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self.embedding = self.tensors.get("embed_tokens.weight", embedding.double())
        self.head = self.tensors.get("lm_head.weight", head.double())
        self.names = ["midlayer"] if "midlayer.mlp.up_proj.weight" in tensors else []
        self.names = self.names or [f"layers.{i}" for i in range(variant.layers)]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean() + EPS).sqrt() * self.tensors[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = self.tensors[f"{name}.weight"] @ x
        return y + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else y

    def fused(self, features: list[Tensor]) -> Tensor:
        """The head's input of one position, from the target's hidden states of it."""
        features = [x.double() for x in features]
        if self.variant.version == 1 or not self.variant.aux:
            return features[0]
        if self.variant.fc_norm == "numbered":
            features = [self.norm(x, f"fc_norm.{i}") for i, x in enumerate(features)]
        if self.variant.fc_norm == "legacy":
            features = [self.norm(x, name) for x, name in zip(features, LEGACY, strict=True)]
        joined = torch.cat(features)
        return self.linear(self.norm(joined, "input_norm") if self.variant.norm_before_fc else joined, "fc")

    def rotated(self, x: Tensor, position: int) -> Tensor:
        """x [heads, size]"""
        theta, half = 777.0 if self.variant.rope else 10000.0, HEAD_SIZE // 2
        angle = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = angle / 3.0 if self.variant.rope == "linear" else angle
        low, high = x[:, :half], x[:, half:]
        return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], dim=1)

    def attended(self, x: Tensor, name: str, position: int, before: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        q, k, v = (self.linear(x, f"{name}.self_attn.{part}_proj").view(-1, HEAD_SIZE) for part in "qkv")
        if self.variant.qk_norms:
            q, k = (
                torch.stack([self.norm(row, f"{name}.self_attn.{part}_norm") for row in y])
                for part, y in (("q", q), ("k", k))
            )
        q, k = self.rotated(q, position), self.rotated(k, position)
        keys, values = torch.cat([before[0], k[None]]), torch.cat([before[1], v[None]])
        out = []
        for head in range(HEADS):
            shared = head * self.variant.kv_heads // HEADS
            weights = (keys[:, shared] @ q[head] / HEAD_SIZE**0.5).softmax(0)
            out.append(weights @ values[:, shared])
        return self.linear(torch.cat(out), f"{name}.self_attn.o_proj"), (keys, values)

    def run(self, token: int, hidden: Tensor, position: int, before: Rows | None = None) -> Rows:
        """One row: a token beside the hidden state of the one before it."""
        variant, x, embedded = self.variant, hidden, self.embedding[token]
        empty = torch.zeros(0, variant.kv_heads, HEAD_SIZE, dtype=torch.float64)
        if variant.version == 1:
            x = self.linear(torch.cat([embedded, x]), "fc")
        kept = []
        for i, name in enumerate(self.names):
            residual = taken = x
            if variant.version == 3 and i == 0:
                normed = self.norm(x, f"{name}.hidden_norm")
                taken = torch.cat([self.norm(embedded, f"{name}.input_layernorm"), normed])
                residual = normed if variant.norm_before_residual else x
            elif variant.version == 3:
                taken = self.norm(x, f"{name}.input_layernorm")
            out, pair = self.attended(taken, name, position, before.kept[i] if before else (empty, empty))
            kept.append(pair)
            x = residual + out
            y = self.norm(x, f"{name}.post_attention_layernorm")
            inner = silu(self.linear(y, f"{name}.mlp.gate_proj")) * self.linear(y, f"{name}.mlp.up_proj")
            x = x + self.linear(inner, f"{name}.mlp.down_proj")
        normed = self.norm(x, "norm") if variant.version == 3 else x
        return Rows(tuple(kept), normed if variant.norm_output else x, self.shares(self.head @ normed))

    def shares(self, logits: Tensor) -> Tensor:
        """[V]"""
        found = torch.zeros(VOCAB, dtype=torch.float64)
        ids = torch.arange(len(logits)) + self.tensors.get("d2t", torch.zeros(len(logits))).long()
        found[ids] = logits.softmax(0)
        return found

    def committed(self, tokens: list[int], features: list[Tensor]) -> Rows:
        """After all rows of a sequence, whose last token has no hidden state yet. features: [tokens - 1, H] a layer."""
        rows = None
        for at in range(1, len(tokens)):
            rows = self.run(tokens[at], self.fused([part[at - 1] for part in features]), at - 1, rows)
        assert rows is not None
        return rows
