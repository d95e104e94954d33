"""Heads whose tensors or config.json are wrong in one place: refused when they are loaded, never at the first draft."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwing.checkpoints.drafter import open_checkpoint
from draftwing.checkpoints.resolve import resolve
from draftwing.config_models import DrafterConfig
from draftwing.core import DraftShape, SamplingParams, StepPlan
from draftwing.drafters.base import FeatureRows, NullController, TargetInfo
from draftwing.drafters.registry import make_drafter
from draftwing.errors import ConfigError
from draftwing.testing.drafters import View
from tests import dense_blocks, dense_eagle
from tests.unit import test_medusa_variants as medusa
from tests.variants import TinyTarget

EAGLE, BLOCK, HIDDEN = dense_eagle.Variant, dense_blocks.BlockVariant, dense_blocks.HIDDEN
HEADS: dict[str, Any] = {
    "eagle": EAGLE(version=1, bias=True, vocabulary="target"),
    "eagle3": EAGLE(embedding="target"),
    "eagle3, speculators": EAGLE(
        dialect="speculators", layers=2, norm_before_fc=True, fc_norm="numbered", rope="linear"
    ),
    "eagle3, deepspec": EAGLE(dialect="deepspec", qk_norms=True, bias=True, hidden=22),
    "dflash": BLOCK("dflash", windows=(4, 0)),
    "dflash2": BLOCK("dflash2", bias=True, shaping=True),
    "dspark": BLOCK("dspark", confidence="markov", markov="gated", own_head=True),
    "medusa": "heads",
    "medusa, mapped": "converted, mapped",
}


@dataclass(frozen=True)
class Held:
    """A checkpoint in memory."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def names(self) -> Iterable[str]:
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def skip(self, names: Iterable[str]) -> None:
        pass


@cache
def published(name: str) -> tuple[Held, TargetInfo]:
    """A head, and a target that it fits."""
    variant = HEADS[name]
    with TemporaryDirectory() as folder:
        if isinstance(variant, str):
            medusa.save(Path(folder), variant, heads=3, blocks=1, bias=True)
            vocab, hidden, layers = medusa.VOCAB, medusa.HIDDEN, 3
        else:
            module = dense_eagle if isinstance(variant, EAGLE) else dense_blocks
            getattr(module, "save_head")(variant, Path(folder))  # noqa: B009  they share a name alone
            vocab, hidden, layers = module.VOCAB, HIDDEN, module.TARGET_LAYERS
        stored = open_checkpoint(folder)
        tensors = {name: stored.read(name) for name in stored.names()}
    model = TinyTarget(vocab, hidden)
    info = TargetInfo(vocab, 64, hidden_size=hidden, layers=layers, model=model, compile=False)
    return Held(stored.config, tensors), info


def load_and_draft(head: Held, info: TargetInfo) -> int:
    """Nodes of a tree that it drafts. ConfigError: it can't be loaded."""
    shapes = {name: tuple(tensor.shape) for name, tensor in head.tensors.items()}
    method = resolve(head.config, shapes, "here").method
    drafter = make_drafter(DrafterConfig.model_validate({"method": method, "path": "here"}))
    drafter.bind(info, head)
    layers = drafter.traits.hidden_layers
    assert all(0 <= layer <= info.layers + 1 for layer in layers)
    drafter.reserve(4, 4)
    view = View("it", [3, 1, 4, 1, 5, 9, 2, 6], 7, SamplingParams(temperature=0, ignore_eos=True), table=[0, 1, 2, 3])
    rows = torch.randn(7, info.hidden_size, generator=torch.Generator().manual_seed(1))
    drafter.prefill([view], [FeatureRows(0, (rows,) * len(layers))])
    shape = DraftShape((2, 1), 4).cut(drafter.traits.max_depth, 4)
    (draft,) = drafter.propose([view], StepPlan("it", (shape,)), NullController())
    assert not len(draft) or 0 <= draft.tokens.min() <= draft.tokens.max() < info.vocab_size
    return len(draft)


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "a row less": lambda x: x[:-1],
    "a column less": lambda x: x[..., :-1],
    "another dimension": lambda x: x[None],
    "another kind of number": lambda x: x.long() if x.is_floating_point() else x.float(),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_as_published_drafts(name: str) -> None:
    assert load_and_draft(*published(name))


@pytest.mark.parametrize("name", HEADS)
def test_a_tensor_of_another_form_is_refused(name: str) -> None:
    head, info = published(name)
    for tensor, stored in head.tensors.items():
        for change in WRONG.values():
            changed = Held(head.config, {**head.tensors, tensor: change(stored)})
            with pytest.raises(ConfigError) if tensor != "t2d" else contextlib.nullcontext():
                load_and_draft(changed, info)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_lacks_a_tensor_is_refused_or_drafts(name: str) -> None:
    head, info = published(name)
    for tensor in head.tensors:
        rest = {other: value for other, value in head.tensors.items() if other != tensor}
        with contextlib.suppress(ConfigError):
            load_and_draft(Held(head.config, rest), info)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("medusa, mapped", {"logit_scale": 2.0}),
        ("eagle3", {"fc_norm": True}),
        ("eagle3", {"use_aux_norm": True}),
        ("eagle3", {"partial_rotary_factor": 0.5}),
        ("dflash", {"partial_rotary_factor": 0.5}),
        ("dflash", {"hidden_act": "none"}),
        ("dflash", {"num_key_value_heads": 3}),
        ("dspark", {"rope_scaling": {"rope_type": "linear"}}),
        ("eagle3", {"rope_scaling": {"type": "unheard-of"}}),
    ],
)
def test_a_setting_that_changes_the_numbers_is_not_ignored(name: str, said: dict[str, Any]) -> None:
    head, info = published(name)
    with pytest.raises(ConfigError, match=next(iter(said)).partition("_s")[0]):
        load_and_draft(Held({**head.config, **said}, head.tensors), info)


KEYS = (
    "architectures", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "target_layer_ids",
    "num_target_layers", "eagle_aux_hidden_state_layer_ids", "speculators_model_type", "aux_hidden_state_layer_ids",
    "use_aux_hidden_state", "max_position_embeddings", "hidden_act", "rope_scaling", "rope_parameters", "rope_theta",
    "rms_norm_eps", "layer_types", "sliding_window", "block_size", "mask_token_id", "use_swa", "is_causal",
    "norm_output", "norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "attention_bias", "bias",
    "selector_top_k", "markov_head_type", "final_logit_softcapping", "sample_from_anchor", "num_hidden_layers",
    "rope_type", "type", "factor", "partial_rotary_factor", "vocab_size", "draft_vocab_size",
)  # fmt: skip
PARTS = ("", "eagle_config", "dflash_config", "dspark_config", "transformer_layer_config", "rope_scaling")
SAID = (
    st.none() | st.booleans() | st.integers(-2, 12) | st.just(10**9) | st.floats(-1, 2) | st.sampled_from(("", "1"))
    | st.lists(st.integers(-2, 9), max_size=5) | st.lists(st.none() | st.text(max_size=2), max_size=2)
)  # fmt: skip


@given(
    st.sampled_from(sorted(HEADS)),
    st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(KEYS), SAID), min_size=1, max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_whatever_a_config_says_a_head_is_refused_or_drafts(name: str, said: list[tuple[str, str, Any]]) -> None:
    head, info = published(name)
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in head.config.items()}
    for part, key, value in said:
        place = config
        if part:
            place = config[part] = config[part] if isinstance(config.get(part), dict) else {}
        place[key] = value
    with contextlib.suppress(ConfigError):
        load_and_draft(Held(config, head.tensors), info)
