"""How a target is cut into shares, one a rank: told from its structure and plans, before any weight is read.

transformers' plans say which dimension of a parameter is cut; what they leave out every rank holds whole. Where a
target has fewer key/value heads than there are ranks, each rank holds the one head that its query heads read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from draftwing.config_models import ParallelConfig
from draftwing.errors import ConfigError

# `tests/integration/test_sharded.py` compares each, cut in two, with one rank.
CHECKED = (
    "deepseek_v3", "gemma2", "gemma3_text", "llama", "mistral", "mixtral", "phi", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
WHOLE = "replicated_with_grad_allreduce"
_ROWS = ("colwise", "colwise_gather_output", "packed_colwise")
_FIRST = ("embedding_rowwise", "grouped_gemm")
_LAST = ("rowwise", "rowwise_split_input")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Split:
    """styles: transformers' style by module or parameter, `*` for layer numbers. expert: experts lie whole.

    kv_heads: key/value heads of a layer in each rank's cache, of head_size numbers each. narrowed: several ranks share
    one head, and hold no other.
    """

    ranks: int
    expert: bool
    styles: dict[str, str]
    kv_heads: int
    head_size: int
    narrowed: bool = False

    def style(self, parameter: str) -> str | None:
        """The style of a parameter, its own or its module's."""
        name = re.sub(r"\.\d+(?=\.|$)", ".*", parameter)
        return self.styles.get(name) or self.styles.get(name.rpartition(".")[0])

    def elements(self, name: str, shape: tuple[int, ...]) -> int:
        """Numbers of a parameter in the largest share."""
        total = 1
        for size in shape:
            total *= size
        dim = self.cut(name, shape)
        if dim is None:
            return total
        parts = shape[dim] // self.head_size if self.is_narrowed(name) else self.ranks
        return total // shape[dim] * -(-shape[dim] // parts)

    @property
    def whole(self) -> tuple[str, ...]:
        """Modules that each rank reads whole, against the model's own plan."""
        return tuple(name for name in self.styles if self.is_narrowed(f"{name}."))

    def is_narrowed(self, name: str) -> bool:
        return self.narrowed and re.search(r"\.[kv]_proj\.", name) is not None

    def cut(self, name: str, shape: tuple[int, ...]) -> int | None:
        """The dimension that is cut; None: every rank holds the whole."""
        style = self.style(name)
        if style in _ROWS or self.is_narrowed(name):
            return max(len(shape) - 2, 0)
        if style in _FIRST:
            return 0
        return len(shape) - 1 if style in _LAST and len(shape) > 1 else None


def split_of(model: Any, parallel: ParallelConfig, where: str) -> Split:
    """The cut that a config asks for. ConfigError, naming a size that would do, where the model can't be cut so.

    model: of transformers, its weights may be missing. where: how to call it.
    """
    config = model.config
    heads = kv_heads(config)
    size = head_size(config)
    if parallel.ranks == 1:
        return Split(1, False, {}, heads, size)
    ranks, key = parallel.ranks, "parallel.expert" if parallel.expert > 1 else "parallel.tensor"
    if config.model_type not in CHECKED:
        raise ConfigError(
            f"{key} is {ranks}, and {where} is a {config.model_type} model, which was not checked on several ranks; "
            f"set it to 1, or use one of {', '.join(CHECKED)}"
        )
    styles = dict(model.tp_plan)
    _check_experts(config, parallel, where)
    if parallel.expert > 1:
        inside = re.compile(rf"(?:{'|'.join(map(re.escape, model.ep_plan))})(?:\..+)?")
        styles = {name: style for name, style in styles.items() if not inside.fullmatch(name)} | model.ep_plan
    cut = styles.get(f"{model.base_model_prefix}.layers.*.self_attn.k_proj") == "colwise"
    if not cut:
        return Split(ranks, parallel.expert > 1, styles, heads, size)
    _check_heads(config, heads, ranks, key, where)
    narrowed = heads < ranks
    if narrowed:
        styles |= {f"{model.base_model_prefix}.layers.*.self_attn.{part}_proj": WHOLE for part in "kv"}
    return Split(ranks, parallel.expert > 1, styles, max(heads // ranks, 1), size, narrowed)


def is_latent(config: Any) -> bool:
    """Multi-head latent attention: the cache holds one latent a token, whatever the heads."""
    return bool(getattr(config, "kv_lora_rank", None))


def kv_heads(config: Any) -> int:
    if is_latent(config):
        return 1
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def head_size(config: Any) -> int:
    """Numbers of a key in the cache; a latent's with its rotary key."""
    if is_latent(config):
        return int(config.kv_lora_rank + config.qk_rope_head_dim)
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def kv_elements(config: Any, heads: int) -> int:
    """Numbers of a token in the cache of a rank that holds so many key/value heads of every layer."""
    sides = 1 if is_latent(config) else 2  # a latent is key and value at once
    return int(config.num_hidden_layers) * heads * head_size(config) * sides


def experts_of(config: Any) -> int:
    """Routed experts of a layer; 0 for a dense model."""
    return next((int(count) for key in _EXPERT_COUNTS if (count := getattr(config, key, None))), 0)


def _check_heads(config: Any, heads: int, ranks: int, key: str, where: str) -> None:
    queries = int(config.num_attention_heads)
    fits = [n for n in range(1, queries + 1) if queries % n == 0 and (heads % n == 0 or n % heads == 0)]
    if ranks not in fits:
        raise ConfigError(
            f"{key} is {ranks}, but {where} has {queries} query heads and {heads} key/value heads a layer; "
            f"expected one of {', '.join(map(str, fits))}"
        )


def _check_experts(config: Any, parallel: ParallelConfig, where: str) -> None:
    experts = experts_of(config)
    if parallel.expert > 1 and not experts:
        raise ConfigError(
            f"parallel.expert is {parallel.expert}, but {where} has no experts; use parallel.tensor: {parallel.expert}"
        )
    if parallel.expert > 1 and experts % parallel.expert:
        fits = [n for n in range(1, experts + 1) if experts % n == 0]
        raise ConfigError(
            f"parallel.expert is {parallel.expert}, but {where} has {experts} experts a layer; "
            f"expected one of {', '.join(map(str, fits))}"
        )
    width = int(getattr(config, "moe_intermediate_size", None) or config.intermediate_size)
    if parallel.expert == 1 and experts and width % parallel.tensor:
        raise ConfigError(
            f"parallel.tensor is {parallel.tensor}, but the experts of {where} are {width} wide; "
            f"expected a divisor of {width}"
        )
