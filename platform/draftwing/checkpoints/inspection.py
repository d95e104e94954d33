"""Everything that can be told of a checkpoint without reading its weights. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwing.checkpoints.cache import Progress, silent
from draftwing.checkpoints.feature_layers import (
    FeatureLayers,
    Reading,
    block_field,
    block_layers,
    eagle_layers,
    merged_config,
)
from draftwing.checkpoints.gguf_cache import check_gguf
from draftwing.checkpoints.gguf_file import GgufHeader, read_gguf
from draftwing.checkpoints.hub import DEMO_MODEL, demo_model
from draftwing.checkpoints.layouts import CONTEXTS
from draftwing.checkpoints.published import Published, read_headers, read_published
from draftwing.checkpoints.resolve import Layout, architecture_of, layer_count, resolve
from draftwing.checkpoints.sizes import BYTES, Part, TensorGroup, dimensions, draft_vocabulary, grouped, parts_of
from draftwing.checkpoints.supported import check_config
from draftwing.checkpoints.weight_files import StoredTensor
from draftwing.drafters.block_config import read_config
from draftwing.drafters.eagle_config import read_eagle_config
from draftwing.errors import ConfigError

BLOCK_METHODS = ("dflash", "dflash2", "dspark")
FAR = 2**30  # layers of a target that nobody named: more than any id
GGUF_DIMENSIONS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "attention_heads": "attention.head_count",
    "key_value_heads": "attention.head_count_kv",
    "head_size": "attention.key_length",
    "context": "context_length",
    "experts": "expert_count",
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """architecture: as the checkpoint calls itself. draft_vocabulary: entries of a drafter's own head, None: its
    target's. features: which hidden states of the target it takes; None where that is the last, after the final norm,
    or can't be known. layers_by_rule: they follow from the number of the target's layers, which isn't known. refused:
    why this version can't use it, None where it can.
    """

    source: str
    layout: Layout
    architecture: str
    dimensions: Mapping[str, int]
    parts: list[Part]
    tensors: list[TensorGroup]
    draft_vocabulary: int | None = None
    features: FeatureLayers | None = None
    layers_by_rule: bool = False
    refused: str | None = None


def inspect_checkpoint(
    path: str,
    revision: str | None = None,
    *,
    target: str | None = None,
    reading: Reading = "auto",
    progress: Progress = silent,
) -> Inspection:
    """A folder, hub id, GGUF file or `gemma-3-270m`. target: what a drafter is for. ConfigError, SetupError."""
    if path == DEMO_MODEL:
        return describe(read_published(str(demo_model(progress))))
    file = Path(path).expanduser()
    if file.is_file():
        if file.suffix != ".gguf":
            raise ConfigError(f"{path} is a file; accepted: a folder, a .gguf file or a hub id (org/name)")
        return _gguf(path, read_gguf(file))
    layers = target_layers(target, progress) if target else None
    return describe(read_headers(path, revision, progress), layers, reading)


def describe(published: Published, layers: int | None = None, reading: Reading = "auto") -> Inspection:
    """What has been read of a checkpoint, explained. layers: of a drafter's target, where that is known."""
    path, config, tensors = published.source, published.config, published.tensors
    layout = resolve(config, published.shapes, path)
    layers = layers or merged_config(config).get("num_target_layers")
    features = _features(layout, config, tensors, layers or FAR, reading)
    by_rule = features is not None and features.by_rule and layers is None
    parts = parts_of(layout, config, tensors)
    return Inspection(
        source=path,
        layout=layout,
        architecture=architecture_of(config) or str(config.get("model_type", "not named")),
        dimensions=dimensions(config, tensors),
        parts=parts,
        tensors=grouped(tensors),
        draft_vocabulary=draft_vocabulary(layout, tensors),
        features=None if by_rule else features,
        layers_by_rule=by_rule,
        refused=_refused(layout, published, parts[0].layers, layers or FAR, features),
    )


def target_layers(target: str, progress: Progress = silent) -> int:
    """Decoder layers of a model by its configuration or GGUF header. ConfigError where it doesn't say."""
    file = demo_model(progress) if target == DEMO_MODEL else Path(target).expanduser()
    if file.is_file():
        header = read_gguf(file)
        count = header.metadata.get(f"{header.architecture}.block_count")
    else:
        count = layer_count(read_headers(str(file), None, progress).config)
    if not isinstance(count, int) or not count:
        raise ConfigError(f"target {target} doesn't say how many layers it has (num_hidden_layers)")
    return count


def _features(
    layout: Layout, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], layers: int, reading: Reading
) -> FeatureLayers | None:
    if layout.method == "eagle3":
        nested = config.get("eagle_config") or {}
        return eagle_layers(config, layers, reading) if nested.get("use_aux_hidden_state") is not False else None
    if layout.method not in BLOCK_METHODS:
        return None
    merged = merged_config(config)
    contexts = (tensors.get(name) for name, _ in CONTEXTS.values())
    width = next(tensor.shape[1] for tensor in contexts if tensor is not None)
    speculators = "transformer_layer_config" in config
    field = block_field(merged, speculators=speculators)
    # The target may be wider than its drafter: how many hidden states fit into the width, only the list says.
    count = len(merged[field]) if field else width // int(merged.get("hidden_size") or width)
    if not count or width % count:
        raise ConfigError(f"the drafter's fc takes {width} numbers, which are no {count} hidden states of its target")
    return block_layers(merged, count, layers, reading, speculators=speculators)


def _refused(
    layout: Layout, published: Published, layers: int, target_layers: int, features: FeatureLayers | None
) -> str | None:
    """What the reader of its configuration says against it. layers: of a drafter."""
    config = published.config
    try:
        if layout.role == "target":
            check_config(config, published.source)
        elif layout.method in ("eagle", "eagle3"):
            read_eagle_config(config)
        elif features is not None:
            count = len(features.ids)
            read_config(config, method=layout.method, features=count, layers=layers, target_layers=target_layers)
    except ConfigError as error:
        return str(error)
    return None


def _gguf(source: str, header: GgufHeader) -> Inspection:
    """A GGUF file, which holds a whole model."""
    name, metadata = header.architecture, header.metadata
    found = {ours: metadata.get(f"{name}.{theirs}") for ours, theirs in GGUF_DIMENSIONS.items()}
    sizes = {ours: value for ours, value in found.items() if type(value) is int}
    if vocabulary := header.arrays.get("tokenizer.ggml.tokens"):
        sizes["vocabulary"] = vocabulary
    stored: dict[str, int] = {}
    for tensor in header.tensors:
        stored[tensor.type] = stored.get(tensor.type, 0) + tensor.bytes
    layers = metadata.get(f"{name}.block_count")
    keys = (".attn_k.weight", ".attn_v.weight")
    cached = sum(t.shape[0] for t in header.tensors if t.shape and t.name.endswith(keys))
    part = Part(
        name="model",
        layers=layers if isinstance(layers, int) else 0,
        parameters=header.elements,
        stored=dict(sorted(stored.items())),
        held={dtype: header.elements * size for dtype, size in BYTES.items()},
        cache={dtype: cached * size for dtype, size in BYTES.items()},
    )
    try:
        check_gguf(header.path)
        refused = None
    except ConfigError as error:
        refused = str(error)
    decided = (f"GGUF version {header.version} of architecture {name}: a language model",)
    tensors = {t.name: StoredTensor(t.type, t.shape, t.elements) for t in header.tensors}
    layout = Layout("target", "draft_model", ("draft_model",), "gguf", decided)
    return Inspection(source, layout, name, sizes, [part], grouped(tensors), refused=refused)
