"""GGUF files, converted once: dequantised to float32 safetensors with a config and a tokenizer, in the cache.

float32 because it alone holds the dequantised values exactly: a K-quant weight is a half-precision scale times
a 6-bit scale times a 4- to 6-bit value: up to 23 significant bits.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from importlib.metadata import version
from pathlib import Path

from draftwing.checkpoints.cache import Progress, cache_root, made_whole, need_disk, only_one
from draftwing.checkpoints.gguf_file import GgufHeader, read_gguf, write_without_vocabulary
from draftwing.checkpoints.memory import need_memory
from draftwing.checkpoints.model_folder import add_samples
from draftwing.errors import ConfigError

CONVERTER = 1  # raise when the same file would be converted differently
RECORD = "draftwing.json"

# By llama.cpp's names: those whose conversion the tests compare with the original weights and logits.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3")
HYBRID = ("mamba", "mamba2", "jamba", "falcon-h1", "granitehybrid", "lfm2", "qwen3next", "qwen35", "rwkv6", "rwkv7")
# What transformers reads of a model's own keys, and what repeats the tensors' shapes.
CONVERTED = frozenset(
    {
        *("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size"),
        *("rope.dimension_count", "rope.freq_base", "attention.head_count", "attention.head_count_kv"),
        *("attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length"),
        *("expert_count", "expert_used_count", "expert_feed_forward_length"),
    }
)
WINDOWED = ("gemma2", "gemma3")
# Not read, but what transformers assumes anyway.
ASSUMED = {
    "rope.scaling.type": "none",
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
# Gemma 27B, whose attention scale is in no file: llama.cpp knows it by the number of layers.
UNSTATED_SCALE = {"gemma2": 46, "gemma3": 62}


def _unconverted(header: GgufHeader) -> str | None:
    """Something in the file that changes the model's output and would be lost; None when there is nothing."""
    name = header.architecture
    if lost := next((t.name for t in header.tensors if t.name.startswith(("rope_freqs", "rope_factors"))), None):
        return f"tensor {lost}"
    if header.metadata.get(f"{name}.block_count") == UNSTATED_SCALE.get(name):
        return f"the attention scale of {name} 27B"
    known = CONVERTED | ({"attention.sliding_window"} if name in WINDOWED else set())
    for key in (*header.metadata, *header.arrays):
        own = key.removeprefix(f"{name}.")
        if own == key or (own in known and key in header.metadata):
            continue
        if own not in ASSUMED or header.metadata.get(key) != ASSUMED[own]:
            return f"{key} = {header.metadata.get(key, 'a list')}"
    return None


def check_gguf(path: Path) -> GgufHeader:
    """Refuse, by its header alone, a GGUF file that is damaged or that can't be converted without loss."""
    header = read_gguf(path)
    name = header.architecture
    if name in HYBRID:
        raise ConfigError(
            f"{path} is a hybrid linear-attention (state-space) model ({name}); such targets can't be served yet: "
            "choose a model with attention in every layer"
        )
    if name not in ARCHITECTURES:
        raise ConfigError(
            f"{path} has the GGUF architecture {name!r}; accepted from GGUF: {', '.join(ARCHITECTURES)}. "
            "Use the model's safetensors folder instead"
        )
    if lost := _unconverted(header):
        raise ConfigError(
            f"{path} can't be converted without loss: {lost} is not carried over yet; "
            "use the model's safetensors folder instead"
        )
    return header


def gguf_digest(header: GgufHeader) -> str:
    """Identity of the file by its size, its header and samples of its weights (64 hex digits)."""
    total = hashlib.sha256(b"draftwing gguf 1")
    size = header.path.stat().st_size
    total.update(str(size).encode())
    with header.path.open("rb") as file:
        total.update(file.read(header.data))
        add_samples(total, file, header.data, size)
    return total.hexdigest()


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80]


def converted_folder(name: str, digest: str, root: Path | None = None) -> Path:
    """Where the conversion of a GGUF file lies. A newer transformers may convert differently, so it is in the name."""
    base = cache_root() if root is None else root
    return base / "gguf" / f"{_slug(name)}-{digest[:16]}-v{CONVERTER}-transformers{version('transformers')}"


def convert(header: GgufHeader, folder: Path, progress: Progress) -> None:
    """Fill `folder`, which must not exist, under its lock."""
    from draftwing.checkpoints import hf  # torch and transformers: only a conversion pays for them

    size = 4 * header.elements
    need_memory(int(2.2 * size), f"converting {header.path.name}")
    need_disk(folder.parent, int(1.1 * size) + header.path.stat().st_size, f"converting {header.path.name}")
    started = time.monotonic()
    with made_whole(folder) as work:
        progress(f"converting {header.path.name} to safetensors once ({size / 1e9:.1f} GB)")
        slim = work / "weights.gguf"  # without the vocabulary, whose reading takes longer than all the rest
        write_without_vocabulary(header, slim)
        model_type = hf.convert_gguf_weights(slim, work, header.arrays.get("tokenizer.ggml.tokens"), header.elements)
        slim.unlink()
        weights_s = time.monotonic() - started
        if "tokenizer.ggml.model" in header.metadata:
            progress(f"converting its tokenizer (weights took {weights_s:.0f} s)")
            hf.convert_gguf_tokenizer(header.path, work, model_type)
        seconds = time.monotonic() - started
        record = {"schema": 1, "converter": CONVERTER, "source": header.path.name, "seconds": round(seconds, 1)}
        (work / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
    progress(f"converted in {seconds:.0f} s; later starts use {folder}")


def converted(path: Path, progress: Progress, root: Path | None = None) -> Path:
    """The safetensors folder of a GGUF file, made now if this is the first use."""
    header = check_gguf(path)
    folder = converted_folder(path.stem, gguf_digest(header), root)
    if not folder.is_dir():
        with only_one(folder, progress):
            if not folder.is_dir():
                convert(header, folder, progress)
    return folder
