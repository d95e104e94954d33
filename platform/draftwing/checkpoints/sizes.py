"""How large a checkpoint is, by its headers: layers, parameters, bytes of weights, bytes of cache a token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwing.checkpoints.feature_layers import merged_config
from draftwing.checkpoints.layouts import MEDUSA, TOKEN_MAPS
from draftwing.checkpoints.resolve import Layout, layer_count
from draftwing.checkpoints.weight_files import DTYPE_BITS, FLOAT_DTYPES, StoredTensor

BYTES = {"float32": 4, "bfloat16": 2}
EDGE_TOKENS = 8  # drafters that recycle a hidden state keep one a block, planned as one in so many tokens
IDS = ("d2t", "t2d", *TOKEN_MAPS)
LAYER = re.compile(r"(?:.*\.)?(?:(?:layers|h|blocks)\.(\d+)|mtp_layers\.(\d+)|midlayer)\.(.+)")
MAIN_LAYER = re.compile(r"model\.layers\.(\d+)\.")
NUMBER = re.compile(r"(?<![^.])\d+(?=\.)")
CACHED = ("k_proj.weight", "v_proj.weight", "kv_a_proj_with_mqa.weight")
DIMENSIONS = {
    "hidden_size": ("hidden_size", "n_embd"),
    "intermediate_size": ("intermediate_size", "n_inner"),
    "attention_heads": ("num_attention_heads", "n_head"),
    "key_value_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "vocabulary": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "context": ("max_position_embeddings", "n_positions"),
}
Tensors = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class Part:
    """A model, or what drafts for it. layers: decoder layers, of Medusa its heads.

    stored: bytes by dtype on disk. held: bytes when floats are held in a dtype. cache: bytes a token takes in pages.
    """

    name: str
    layers: int
    parameters: int
    stored: Mapping[str, int]
    held: Mapping[str, int]
    cache: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors whose names differ in numbers alone: * stands for them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    count: int


def parts_of(layout: Layout, config: Mapping[str, Any], tensors: Tensors) -> list[Part]:
    """The model and what it carries for drafting, or a drafter alone."""
    if layout.role == "drafter":
        return [_part(layout.method, layout, config, tensors)]
    own = layer_count(config)
    inside = {name: tensor for name, tensor in tensors.items() if _is_module(name, own)}
    model = {name: tensor for name, tensor in tensors.items() if name not in inside}
    parts = [_part("model", layout, config, model)]
    return [*parts, _part(layout.method, layout, config, inside)] if inside else parts


def _is_module(name: str, layers: int) -> bool:
    """Whether a tensor belongs to what drafts for the model it lies in."""
    if name.startswith(("mtp.", "model.mtp_layers.", "medusa_head.")):
        return True
    m = MAIN_LAYER.match(name)
    return m is not None and 0 < layers <= int(m[1])


def _part(name: str, layout: Layout, config: Mapping[str, Any], tensors: Tensors) -> Part:
    stored: dict[str, int] = {}
    for tensor in tensors.values():
        stored[tensor.dtype] = stored.get(tensor.dtype, 0) + DTYPE_BITS[tensor.dtype] * tensor.elements // 8
    floats = sum(tensor.elements for tensor in tensors.values() if tensor.dtype in FLOAT_DTYPES)
    others = sum(size for dtype, size in stored.items() if dtype not in FLOAT_DTYPES)
    cached = _cached(name, config, tensors)
    return Part(
        name=name,
        layers=medusa_heads(tensors) if name == "medusa" else len(_layers(tensors)),
        parameters=sum(tensor.elements for own, tensor in tensors.items() if own not in IDS),
        stored=dict(sorted(stored.items())),
        held={dtype: floats * size + others for dtype, size in BYTES.items()},
        cache={dtype: int(cached * size) for dtype, size in BYTES.items()},
    )


def _layers(tensors: Tensors) -> set[str]:
    return {name.removesuffix(m[3]) for name in tensors if (m := LAYER.fullmatch(name))}


def medusa_heads(tensors: Tensors) -> int:
    found = (re.fullmatch(form, name) for form, _ in MEDUSA.values() for name in tensors)
    return len({m[1] for m in found if m})


def _cached(name: str, config: Mapping[str, Any], tensors: Tensors) -> float:
    """Numbers a token takes in pages: as many as the projections give that make keys and values, or latents of both."""
    total: float = sum(
        tensor.shape[0]
        for own, tensor in tensors.items()
        if own.endswith(CACHED) and LAYER.fullmatch(own) and len(tensor.shape) == 2
    )
    dims = merged_config(config.get("text_config") or config)
    if name == "model" and not total:  # its projections are joined
        heads = int(dims.get("num_attention_heads") or dims.get("n_head") or 0)
        hidden = int(dims.get("hidden_size") or dims.get("n_embd") or 0)
        size = int(dims.get("head_dim") or hidden // max(heads, 1))
        return 2 * layer_count(config) * int(dims.get("num_key_value_heads") or heads) * size
    if name in ("eagle", "eagle3", "mtp"):
        kept = len(_layers(tensors)) if name == "mtp" else 1
        total += kept * int(dims.get("hidden_size") or 0) / EDGE_TOKENS
    return total


def dimensions(config: Mapping[str, Any], tensors: Tensors) -> dict[str, int]:
    """The sizes that the configuration names; where it doesn't, those that its tensors show."""
    dims = merged_config(config.get("text_config") or config)
    found = {
        ours: dims[theirs]
        for ours, names in DIMENSIONS.items()
        if (theirs := next((name for name in names if type(dims.get(name)) is int), None))
    }
    if "head_size" not in found and {"hidden_size", "attention_heads"} <= found.keys():
        found["head_size"] = found["hidden_size"] // found["attention_heads"]
    if (block := tensors.get("0.0.linear.weight")) and block.shape:
        found.setdefault("hidden_size", block.shape[0])
    return found


def draft_vocabulary(layout: Layout, tensors: Tensors) -> int | None:
    """Entries of a drafter's own output projection; None where it uses its target's, or is the target."""
    if layout.role == "target" and layout.method != "medusa":
        return None
    forms = [projection for _, projection in MEDUSA.values()] if layout.method == "medusa" else [r"lm_head\.weight"]
    found = (t.shape[0] for name, t in tensors.items() if t.shape and any(re.fullmatch(f, name) for f in forms))
    return next(found, None)


def grouped(tensors: Tensors) -> list[TensorGroup]:
    """All tensors in the order of their names, those of like layers, heads and experts as one."""
    counts: dict[tuple[str, str, tuple[int, ...]], int] = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        key = (NUMBER.sub("*", name), tensor.dtype, tensor.shape)
        counts[key] = counts.get(key, 0) + 1
    return [TensorGroup(name, dtype, shape, count) for (name, dtype, shape), count in counts.items()]
