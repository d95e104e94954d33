"""Which hidden states of its target a drafter takes, and what the ids in its configuration mean.

Hidden state i of a target with N layers is the input of its layer i (0: the embeddings), which is the output of layer
i - 1; state N is what the final norm gives, or, for EAGLE-3, what it takes. An id k in a checkpoint means the input of
layer k to some writers and the output of layer k to others, and taking one for the other shows in nothing but
acceptance. So each field has the meaning that those who write it give it (below); the option `layer_ids` overrides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal

from draftwing.errors import ConfigError

Meaning = Literal["inputs", "outputs"]
Reading = Literal["auto", "inputs", "outputs"]
MEANINGS: tuple[Meaning, ...] = ("inputs", "outputs")
EAGLE_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class FeatureLayers:
    """ids: as the checkpoint has them, or as a rule gives them. meaning: of the ids. field: where they stand.

    by_rule: they follow from the number of the target's layers.
    """

    ids: tuple[int, ...]
    meaning: Meaning
    field: str
    by_rule: bool = False

    @property
    def hidden_states(self) -> tuple[int, ...]:
        return tuple(k + (self.meaning == "outputs") for k in self.ids)

    def __str__(self) -> str:
        return f"hidden states {list(self.hidden_states)} by {self.field} {list(self.ids)}, {self.meaning} of layers"


def eagle_layers(
    config: Mapping[str, Any], layers: int, reading: Reading = "auto", override: Seq[int] | None = None
) -> FeatureLayers:
    """Of an EAGLE-3 head for a target with `layers` layers. ConfigError where the target hasn't such layers.

    Top-level ids are inputs; those under `eagle_config` outputs, unless one is the number of layers or the first is 2;
    `target_layer_ids` (DeepSpec) outputs, -1 the embeddings; with none, the inputs of 2, half, and three before the
    end. override: hidden states that an option names instead. Here state N is the last layer's raw output.
    """
    nested = (config.get("eagle_config") or {}).get(EAGLE_IDS)
    found: FeatureLayers
    if override is not None:
        found = FeatureLayers(tuple(override), "inputs", "option layers")
    elif top := config.get(EAGLE_IDS):
        found = _read(EAGLE_IDS, top, "inputs", reading)
    elif nested:
        usual: Meaning = "inputs" if layers in nested or nested[0] == 2 else "outputs"
        found = _read(f"eagle_config.{EAGLE_IDS}", nested, usual, reading)
    elif own := config.get("target_layer_ids"):
        found = _read("target_layer_ids", own, "outputs", reading)
    else:
        found = _read("rule (2, N/2, N - 3)", (2, layers // 2, layers - 3), "inputs", reading, by_rule=True)
    return _checked(found, layers)


def block_layers(
    config: Mapping[str, Any],
    count: int,
    layers: int,
    reading: Reading = "auto",
    override: Seq[int] | None = None,
    *,
    speculators: bool,
) -> FeatureLayers:
    """Of a block drafter that takes `count` hidden states of a target with `layers` layers. ConfigError as above.

    config: with what stands in its `dflash_config` or `dspark_config` at the top. `target_layer_ids` and
    `dspark_target_layer_ids` are outputs; speculators' `aux_hidden_state_layer_ids` inputs.
    """
    made_for = config.get("num_target_layers") or layers
    if made_for != layers:
        raise ConfigError(f"the drafter's num_target_layers is {made_for}, but the target has {layers} layers")
    name = block_field(config, speculators=speculators)
    if override is not None:
        found = FeatureLayers(tuple(override), "inputs", "option layers")
    elif name is None:
        found = _read("rule of equal distances", default_layers(count, layers), "outputs", reading, by_rule=True)
    else:
        found = _read(name, config[name], "inputs" if name.startswith("aux") else "outputs", reading)
    if len(found.ids) != count:
        raise ConfigError(f"the drafter's {found.field} is {list(found.ids)}, but its fc takes {count} hidden states")
    return _checked(found, layers)


def block_field(config: Mapping[str, Any], *, speculators: bool) -> str | None:
    """Where a block drafter's configuration names layers; None: nowhere."""
    names = ("aux_hidden_state_layer_ids",) * speculators + ("target_layer_ids", "dspark_target_layer_ids")
    return next((name for name in names if name in config), None)


def merged_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A block drafter's configuration with what stands in its parts at the top, the innermost first; no nulls."""
    merged: dict[str, Any] = {}
    parts = (config.get("transformer_layer_config"), config, config.get("dflash_config"), config.get("dspark_config"))
    for part in parts:
        merged |= {name: value for name, value in (part or {}).items() if value is not None}
    return merged


def default_layers(count: int, layers: int) -> list[int]:
    """The 0-based layers whose outputs a block drafter of `count` features takes when its configuration names none."""
    if count == 1:
        return [layers // 2]
    return [round(1 + i * (layers - 4) / (count - 1)) for i in range(count)]


def _read(name: str, ids: Any, usual: Meaning, reading: Reading, *, by_rule: bool = False) -> FeatureLayers:
    if not isinstance(ids, list | tuple) or not all(type(k) is int for k in ids):
        raise ConfigError(f"the drafter's {name} is {ids!r}; expected a list of layer numbers")
    return FeatureLayers(tuple(ids), usual if reading == "auto" else reading, name, by_rule)


def _checked(found: FeatureLayers, last: int) -> FeatureLayers:
    if not all(0 <= i <= last for i in found.hidden_states):
        raise ConfigError(f"the drafter takes {found}; the target has hidden states 0 to {last} for it")
    return found
