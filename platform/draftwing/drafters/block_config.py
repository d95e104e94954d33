"""What the configuration of a published block drafter says: DFlash, DFlash 2 and DSpark, in two dialects.

The heads' own (z-lab, DeepSpec): fields at top level or in `dflash_config`, `target_layer_ids` k is the output of
0-based layer k, a sliding layer is causal unless `is_causal` says otherwise. speculators: the transformer's fields in
`transformer_layer_config`, `aux_hidden_state_layer_ids` are indices of `hidden_states` already, a sliding layer is
causal unless `sliding_window_non_causal`. No torch here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwing.checkpoints.config_fields import check_heads, rope_of
from draftwing.checkpoints.feature_layers import Reading, block_layers, merged_config
from draftwing.errors import ConfigError

log = logging.getLogger(__name__)

# Published flags that change the numbers and that nothing here computes, with the value that means "off".
REFUSED: dict[str, Any] = {
    "attention_sink_bias": False,
    "attention_value_scale": 1.0,
    "use_aux_hidden_state": True,
    "fc_norm": False,
    "projector_type": "dflash",
    "shift_label": False,
}


class BlockConfig(BaseModel):
    """A block drafter's settings, the dialects made one.

    block_size: rows of a block, the anchor's among them. hidden_layers: indices of `hidden_states` [n]. causal and
    windows: per layer; a window counts positions, None: all. from_anchor: the anchor's row predicts too.
    markov: type of DSpark's Markov head, "" without one. rope: see `rope_of`.
    """

    model_config = ConfigDict(frozen=True)

    hidden_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    hidden_act: str
    attention_bias: bool
    block_size: int = Field(ge=2, le=256)
    mask_token_id: int = Field(ge=0)
    hidden_layers: tuple[int, ...]
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    from_anchor: bool
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    selector_top_k: int = Field(default=0, ge=0)
    markov_head_type: Literal["vanilla", "gated", "rnn"] = "vanilla"
    confidence_head_with_markov: bool = False
    rope: dict[str, Any]

    @property
    def first_slot(self) -> int:
        """Row of the block that predicts the token after the anchor."""
        return 0 if self.from_anchor else 1

    @property
    def depth(self) -> int:
        """Most tokens of a draft."""
        return self.block_size - self.first_slot


def read_config(
    config: Mapping[str, Any],
    *,
    method: str,
    features: int,
    layers: int,
    target_layers: int,
    reading: Reading = "auto",
    override: tuple[int, ...] | None = None,
) -> BlockConfig:
    """features: hidden states that `fc` takes together. layers: of the drafter. ConfigError names the field.

    reading, override: see `block_layers`.
    """
    own = merged_config(config)
    speculators = "transformer_layer_config" in config
    for name, off in REFUSED.items():
        if own.get(name, off) != off:
            raise ConfigError(f"the drafter's {name} is {own[name]!r}, which is not supported; expected {off!r}")
    states = block_layers(own, features, target_layers, reading, override, speculators=speculators)
    log.info("the drafter takes %s", states)
    heads = own.get("num_attention_heads", 1)
    fields = {name: own[name] for name in BlockConfig.model_fields if name in own}
    fields |= {
        "hidden_act": own.get("hidden_act", "silu"),
        "attention_bias": own.get("attention_bias", False),
        "num_key_value_heads": own.get("num_key_value_heads", heads),
        "head_dim": own.get("head_dim") or own.get("hidden_size", heads) // heads,
        "hidden_layers": states.hidden_states,
        "from_anchor": own.get("sample_from_anchor", method == "dspark" and not speculators),
        "rope": rope_of(own),
    }
    fields["causal"], fields["windows"] = _masks(own, speculators, method, layers)
    try:
        found = BlockConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"the drafter's {name} is {own.get(name)!r}: {first['msg']}") from error
    check_heads(found.num_attention_heads, found.num_key_value_heads, found.head_dim)
    return found


def _masks(
    own: Mapping[str, Any], speculators: bool, method: str, layers: int
) -> tuple[tuple[bool, ...], tuple[int | None, ...]]:
    """Per layer whether a row sees only rows before it, and how far it sees."""
    everywhere = "sliding_attention" if own.get("use_swa") else "full_attention"
    types = own.get("layer_types") or [everywhere] * layers
    if len(types) != layers:
        raise ConfigError(f"the drafter's layer_types has {len(types)} entries; expected {layers}, one a layer")
    if odd := set(types) - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"the drafter's layer_types has {min(odd)!r}; expected 'full_attention' or 'sliding_attention'"
        )
    window = own.get("swa_window_size") or own.get("sliding_window")
    sliding = [kind == "sliding_attention" for kind in types]
    if any(sliding) and (not isinstance(window, int) or window < 1):
        raise ConfigError(f"the drafter's sliding_window is {window!r}; expected a number of positions, 1 or more")
    causal = own.get("is_causal", own.get("causal"))
    if causal is None and speculators:
        non_causal = own.get("sliding_window_non_causal", method == "dflash2")
        causals = tuple(slides and not non_causal for slides in sliding)
    else:
        causals = tuple(slides if causal is None else bool(causal) for slides in sliding)
    return causals, tuple(window if slides else None for slides in sliding)
