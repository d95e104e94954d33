"""Which hidden states a drafter takes, from every field that names them, read either way."""

from __future__ import annotations

from typing import Any

import pytest

from draftwing.checkpoints.feature_layers import (
    EAGLE_IDS,
    Meaning,
    Reading,
    block_layers,
    default_layers,
    eagle_layers,
    merged_config,
)
from draftwing.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "states", "meaning"),
    [
        ({}, (2, 16, 29), "inputs"),
        ({EAGLE_IDS: None}, (2, 16, 29), "inputs"),
        ({EAGLE_IDS: [1, 17, 31]}, (1, 17, 31), "inputs"),
        ({"eagle_config": {EAGLE_IDS: [1, 17, 28]}}, (2, 18, 29), "outputs"),
        ({"eagle_config": {EAGLE_IDS: [2, 16, 29]}}, (2, 16, 29), "inputs"),
        ({"eagle_config": {EAGLE_IDS: [24, 30, 32]}}, (24, 30, 32), "inputs"),
        ({"target_layer_ids": [-1, 9, 17]}, (0, 10, 18), "outputs"),
    ],
)
def test_an_eagle_heads_ids_mean_what_their_field_means(
    config: dict[str, Any], states: tuple[int, ...], meaning: Meaning
) -> None:
    found = eagle_layers(config, 32)
    assert (found.hidden_states, found.meaning) == (states, meaning)
    assert eagle_layers(config, 32, meaning) == found
    assert eagle_layers(config, 32, override=(4, 5, 6)).hidden_states == (4, 5, 6)


@pytest.mark.parametrize(("reading", "states"), [("auto", (1, 3, 4)), ("inputs", (1, 3, 4)), ("outputs", (2, 4, 5))])
def test_a_reading_overrides_the_field(reading: Reading, states: tuple[int, ...]) -> None:
    assert eagle_layers({EAGLE_IDS: [1, 3, 4]}, 8, reading).hidden_states == states


@pytest.mark.parametrize("config", [{EAGLE_IDS: [2, 16, 33]}, {"eagle_config": {EAGLE_IDS: [24, 32, 33]}}])
def test_layers_that_are_not_there_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"inputs of layers; the target has hidden states 0 to 32 for it"):
        eagle_layers(config, 32)


@pytest.mark.parametrize("ids", ["2,4", [1, True], [1.5]])
def test_ids_are_numbers(ids: object) -> None:
    with pytest.raises(ConfigError, match="expected a list of layer numbers"):
        eagle_layers({EAGLE_IDS: ids}, 8)


@pytest.mark.parametrize(
    ("count", "layers", "ids"),
    [
        (5, 36, [1, 9, 17, 25, 33]),
        (5, 32, [1, 8, 15, 22, 29]),
        (5, 64, [1, 16, 31, 46, 61]),
        (8, 48, [1, 7, 14, 20, 26, 32, 39, 45]),
        (1, 8, [4]),
    ],
)
def test_a_block_drafter_without_ids_takes_layers_at_equal_distances(count: int, layers: int, ids: list[int]) -> None:
    assert default_layers(count, layers) == ids
    found = block_layers({}, count, layers, speculators=False)
    assert (list(found.ids), found.meaning) == (ids, "outputs")


@pytest.mark.parametrize(
    ("config", "speculators", "states"),
    [
        ({"target_layer_ids": [1, 3, 5]}, False, (2, 4, 6)),
        ({"dspark_target_layer_ids": [1, 3, 5]}, False, (2, 4, 6)),
        ({"aux_hidden_state_layer_ids": [1, 3, 5]}, True, (1, 3, 5)),
    ],
)
def test_a_block_drafters_ids_mean_what_their_field_means(
    config: dict[str, Any], speculators: bool, states: tuple[int, ...]
) -> None:
    assert block_layers(config, 3, 8, speculators=speculators).hidden_states == states
    assert block_layers(config, 3, 8, override=(4, 5, 6), speculators=speculators).hidden_states == (4, 5, 6)


def test_parts_of_a_config_count_before_the_whole() -> None:
    config = {"block_size": 4, "x": 1, "transformer_layer_config": {"x": 0, "y": 2}, "dflash_config": {"block_size": 8}}
    merged = merged_config(config)
    assert (merged["block_size"], merged["x"], merged["y"]) == (8, 1, 2)
