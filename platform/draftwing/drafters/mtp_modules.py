"""Multi-token prediction modules as they are published: which tensors they are, and how they are read.

DeepSeek-AI: DeepSeek-V3 Technical Report (2024). A module is a decoder layer of the target's own kind behind a
projection of two normed vectors, so its layer is built by the target's class. H hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from draftwing.drafters.base import CheckpointReader, TargetInfo
from draftwing.drafters.weights import Weights
from draftwing.engine import attention
from draftwing.errors import ConfigError
from draftwing.kernels.speedup import speed_up

Run = Callable[[Tensor], Tensor]
Apply = Callable[[Tensor, Tensor], Tensor]  # input and weight


@dataclass(frozen=True, slots=True)
class Naming:
    """Names below a module's prefix. norm: any of them."""

    join: str
    embedding: str
    hidden: str
    norm: tuple[str, ...]


NAMINGS = (
    Naming("eh_proj", "enorm", "hnorm", ("shared_head.norm", "final_layernorm")),  # DeepSeek-V3, GLM-4.5
    Naming("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", ("norm",)),  # Qwen3-Next, Qwen3.5
    Naming("input_proj", "token_layernorm", "hidden_layernorm", ("final_layernorm",)),  # MiMo, speculators
)
HIDDEN_FIRST = "model.mtp_layers."  # MiMo joins hidden state and embedding in this order, all others the other way
EMBEDDING, OUTPUT = "embed_tokens.weight", ("shared_head.head.weight", "lm_head.weight")
TARGETS_OWN = re.compile(r"(?:model\.)?(?:layers\.(\d+)\.|embed_tokens\.|norm\.)|lm_head\.")
OF_A_HEAD = re.compile(r"mtp|model\.mtp|model\.layers\.(\d+)\.")
NEVER_NEEDED = ".rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class MtpModule:
    """embedding, output: the target's own modules where the checkpoint has none, or copies of them."""

    embedding: Run
    embedding_norm: nn.Module
    hidden_norm: nn.Module
    join: nn.Module
    hidden_first: bool
    layer: nn.Module
    norm: nn.Module
    output: Run

    def __call__(self, tokens: Tensor, hidden: Tensor, **call: Any) -> Tensor:
        """tokens [N], hidden [N, H]; call: what the layer takes -> [N, H], before the module's norm."""
        embedded = self.embedding_norm(self.embedding(tokens).to(hidden.dtype))
        pair = [embedded, self.hidden_norm(hidden)]
        out = self.layer(self.join(torch.cat(pair[::-1] if self.hidden_first else pair, dim=-1))[None], **call)
        found: Tensor = (out[0] if isinstance(out, tuple) else out)[0]
        return found


def read_modules(checkpoint: CheckpointReader, target: TargetInfo, *, inside: bool) -> list[MtpModule]:
    """All modules of a checkpoint, in order. inside: it is the target's own, whose loading has checked the rest of it.

    ConfigError where there are none or they don't fit the target.
    """
    weights = Weights(checkpoint, torch.device(target.device), getattr(torch, target.dtype), {})
    names = set(checkpoint.names())
    naming, prefixes = _find(names)
    nested = [f"{prefix}layers.{k}." for prefix in prefixes for k in range(weights.count(f"{prefix}layers"))]
    own = tuple(prefixes)
    checkpoint.skip(n for n in names if not n.startswith(own) and _of_the_target(n, target.layers, inside=inside))
    checkpoint.skip(n for n in names if n.startswith(own) and n.endswith(NEVER_NEEDED))
    places = [(prefixes[0], layer) for layer in nested] or [(prefix, prefix) for prefix in prefixes]
    return [_read(weights, naming, place, layer, target, i) for i, (place, layer) in enumerate(places)]


def _find(names: Iterable[str]) -> tuple[Naming, list[str]]:
    """The naming and each module's prefix, by number."""
    names = set(names)
    for naming in NAMINGS:
        end = f"{naming.join}.weight"
        found = [name.removesuffix(end) for name in names if name.endswith(f".{end}")]
        found = [prefix for prefix in found if f"{prefix}{naming.embedding}.weight" in names]
        if found:
            return naming, sorted(found, key=lambda prefix: [int(n) for n in re.findall(r"\d+", prefix)])
    wanted = ", ".join(f"{n.join}.weight beside {n.embedding}.weight" for n in NAMINGS)
    raise ConfigError(f"the checkpoint has no multi-token prediction modules; expected {wanted}")


def _of_the_target(name: str, layers: int, *, inside: bool) -> bool:
    found = (OF_A_HEAD if inside else TARGETS_OWN).match(name)
    if found is not None and found[1] is not None:
        return int(found[1]) < layers
    return (found is None) == inside


def _read(weights: Weights, naming: Naming, prefix: str, of_layer: str, target: TargetInfo, index: int) -> MtpModule:
    model: Any = target.model
    layer = _layer(weights, of_layer, model.get_decoder(), index)
    size = target.hidden_size
    own = nn.ModuleDict({"layer": layer, "join": weights.linear(f"{prefix}{naming.join}", 2 * size, size)})
    for role, names in (("embedding", (naming.embedding,)), ("hidden", (naming.hidden,)), ("out", naming.norm)):
        found = next((name for name in names if f"{prefix}{name}.weight" in weights), names[0])
        norm = copy.deepcopy(layer.input_layernorm)  # the family's own kind
        norm.weight = nn.Parameter(weights.take(f"{prefix}{found}.weight", size), requires_grad=False)
        own[role] = norm
    speed_up(own, compile_kernel=target.compile)
    return MtpModule(
        embedding=_shared(weights, [prefix + EMBEDDING], model.get_input_embeddings(), target, embedding),
        embedding_norm=own["embedding"],
        hidden_norm=own["hidden"],
        join=own["join"],
        hidden_first=prefix.startswith(HIDDEN_FIRST),
        layer=own["layer"],
        norm=own["out"],
        output=_shared(weights, [prefix + name for name in OUTPUT], model.get_output_embeddings(), target, linear),
    )


def _shared(weights: Weights, names: list[str], theirs: Any, target: TargetInfo, apply: Apply) -> Run:
    """The target's own embedding or output, unless the checkpoint has another one: copies are published too."""
    for name in names:
        if name in weights:
            own = weights.take(name, target.vocab_size, target.hidden_size)
            shared = getattr(theirs, "weight", own)
            if shared.dtype == own.dtype and not torch.equal(shared, own):
                return lambda x: apply(x, own)
    found: Run = theirs
    return found


def _layer(weights: Weights, prefix: str, decoder: Any, index: int) -> Any:
    """A decoder layer with the checkpoint's tensors, of the kind of that layer of the target that has the same ones."""
    attention.register()
    config = copy.copy(decoder.config)
    config._attn_implementation = attention.NAME
    count = len(decoder.layers)
    types = getattr(config, "layer_types", None) or [""] * count
    lacking: list[str] = []
    for place in sorted(range(count), key=lambda i: (types[i] == "full_attention", i), reverse=True):
        with torch.device("meta"):
            layer = type(decoder.layers[place])(config, place)
        state = layer.state_dict()
        lacking = [name for name in state if not any(n in weights for n in _sources(prefix + name))]
        if not lacking:
            break
    else:
        raise ConfigError(
            f"the drafter's checkpoint has no tensor {prefix}{lacking[0]}; expected a layer of the target's kind"
        )
    theirs = decoder.layers[place]
    kept = {name: t.dtype for name, t in [*theirs.named_parameters(), *theirs.named_buffers()]}  # some stay float32
    read = {name: _take(weights, prefix + name, t.shape, kept.get(name)) for name, t in state.items()}
    layer.load_state_dict(read, assign=True)
    for part in layer.modules():
        if hasattr(part, "layer_idx"):
            part.layer_idx = index
    return layer.eval().requires_grad_(False)


def _sources(name: str) -> Iterator[str]:
    """Names under which a layer's tensor may be stored: experts one by one, though the layer has them stacked."""
    yield name
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        stack, _, kind = name.rpartition(".")
        yield f"{stack}.0.{kind.replace('gate_up', 'gate')}.weight"


def _take(weights: Weights, name: str, shape: torch.Size, dtype: torch.dtype | None) -> Tensor:
    if name in weights:
        return weights.take(name, *shape, dtype=dtype)
    stack, _, kind = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
    rows = shape[1] // len(parts)
    made: Tensor | None = None
    for expert in range(shape[0]):
        for i, part in enumerate(parts):
            one = weights.take(f"{stack}.{expert}.{part}.weight", rows, shape[2], dtype=dtype)
            made = one.new_empty(shape) if made is None else made
            made[expert, i * rows : (i + 1) * rows] = one
    assert made is not None
    return made
