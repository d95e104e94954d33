"""Every published layout resolves to its method, by its tensors and config: the golden folders, and all others."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.checkpoints.inspection import describe
from draftwing.checkpoints.methods import layout_of
from draftwing.checkpoints.published import Published
from draftwing.checkpoints.resolve import Layout, Shapes, check_method, resolve
from draftwing.checkpoints.weight_files import StoredTensor
from draftwing.errors import ConfigError
from tests.conftest import ROOT

GOLDENS = ROOT / "tests" / "goldens"
H, V, I = 8, 40, 12  # noqa: E741  hidden size, vocabulary, width of the MLP
FOLDERS = {
    "eagle1_bias/drafter": ("eagle", "safeailab"),
    "eagle1_nobias/drafter": ("eagle", "safeailab"),
    "eagle3_d2t/drafter": ("eagle3", "safeailab"),
    "eagle3_fullvocab/drafter": ("eagle3", "safeailab"),
    "eagle3_speculators/drafter": ("eagle3", "speculators"),
    "medusa1/drafter": ("medusa", "heads"),
    "dflash_full/drafter": ("dflash", "z-lab"),
    "dflash_swa_causal/drafter": ("dflash", "z-lab"),
    "dflash2/drafter": ("dflash2", "z-lab"),
    "dspark_vanilla/drafter": ("dspark", "deepspec"),
    "mtp_deepseek_v3/target": ("mtp", "deepseek_v3"),
    "mtp_qwen3_next/target": ("mtp", "qwen3_next"),
    "hf_greedy_llama8/target": ("draft_model", "llama"),
    "hf_greedy_qwen3_8/target": ("draft_model", "qwen3"),
    "hf_greedy_mixtral3/target": ("draft_model", "mixtral"),
    "hf_greedy_gemma3_6/target": ("draft_model", "gemma3_text"),
}


def test_no_golden_folder_is_left_out() -> None:
    there = {str(path.parent.relative_to(GOLDENS)) for path in GOLDENS.glob("*/*/config.json")}
    assert there == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_golden_folder_is_what_it_was_made_as(folder: str) -> None:
    layout = layout_of(str(GOLDENS / folder))
    assert (layout.method, layout.dialect) == FOLDERS[folder]
    assert layout.role == folder.rpartition("/")[2]
    assert layout.unknown == ()
    assert layout.decided


Tensors = dict[str, tuple[int, ...]]


def layer(prefix: str, *, wide: bool = False, qk: bool = False) -> Tensors:
    taken = 2 * H if wide else H
    found: Tensors = {f"{prefix}.self_attn.{part}_proj.weight": (H, taken) for part in "qkv"}
    found |= {f"{prefix}.self_attn.o_proj.weight": (H, H), f"{prefix}.mlp.down_proj.weight": (H, I)}
    found |= {f"{prefix}.mlp.{part}_proj.weight": (I, H) for part in ("gate", "up")}
    found |= {f"{prefix}.{part}_layernorm.weight": (H,) for part in ("input", "post_attention")}
    found |= {f"{prefix}.self_attn.{part}_norm.weight": (4,) for part in "qk"} if qk else {}
    return found


def target(layers: int = 2) -> Tensors:
    found: Tensors = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,), "lm_head.weight": (V, H)}
    for i in range(layers):
        found |= layer(f"model.layers.{i}")
    return found


def nextn(index: int = 2, *, last: str = "shared_head.norm") -> Tensors:
    prefix = f"model.layers.{index}"
    own = {f"{prefix}.{part}.weight": (H,) for part in ("enorm", "hnorm", last)}
    return {**layer(prefix), **own, f"{prefix}.eh_proj.weight": (H, 2 * H)}


def eagle3(prefix: str = "midlayer", aux: int = 3, **more: tuple[int, ...]) -> Tensors:
    own = {
        "fc.weight": (H, aux * H),
        "norm.weight": (H,),
        "lm_head.weight": (V, H),
        f"{prefix}.hidden_norm.weight": (H,),
    }
    return {**layer(prefix, wide=True), **own, **more}


NAMES = ("fc", "hidden_norm", "norm")
ANGEL = ("context_proj", "context_norm", "final_norm")


def block(more: Shapes | None = None, names: tuple[str, str, str] = NAMES) -> Tensors:
    fc, norm, last = names
    own = {f"{fc}.weight": (H, 3 * H), f"{norm}.weight": (H,), f"{last}.weight": (H,)}
    return {**layer("layers.0", qk=True), **layer("layers.1", qk=True), **own, **(more or {})}


def medusa(block: str, projection: str = "") -> Tensors:
    found: Tensors = {}
    for i in range(3):
        found |= {f"{block.format(i)}.weight": (H, H), f"{block.format(i)}.bias": (H,)}
        found |= {projection.format(i): (V, H)} if projection else {}
    return found


NEXT = {
    "mtp.fc.weight": (H, 2 * H),
    **{f"mtp.{n}.weight": (H,) for n in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")},
}
MIMO = {f"model.mtp_layers.0.{n}.weight": (H, 2 * H) for n in ("input_proj", "token_layernorm", "final_layernorm")}
SELECTOR = {
    "candidate_selector.predecessor_codebook.weight": (V, 3),
    "candidate_selector.successor_codebook.weight": (V, 3),
    "candidate_selector.hidden_projection.weight": (3, H),
}
MARKOV = {"markov_head.markov_w1.weight": (V, 3), "markov_head.markov_w2.weight": (V, 3)}
SPECULATORS: dict[str, Any] = {"transformer_layer_config": {"hidden_size": H}}
LAYOUTS: dict[str, tuple[dict[str, Any], Shapes, str, str, str]] = {
    "medusa, merged": (
        {"model_type": "llama", "num_hidden_layers": 2},
        {**target(), **medusa("medusa_head.{}.0.linear", "medusa_head.{}.1.weight")},
        "target", "medusa", "merged",
    ),
    "medusa, legacy": ({}, medusa("{}.0.linear"), "drafter", "medusa", "legacy"),
    "medusa, converted": (
        {"model_type": "medusa"},
        {**medusa("blocks.{}.layers.0", "lm_heads.{}.weight"), "token_map": (V,)},
        "drafter", "medusa", "converted",
    ),
    "medusa, converted, with a prefix": (
        {},
        medusa("medusa_heads.blocks.{}.layers.0", "medusa_heads.lm_heads.{}.weight"),
        "drafter", "medusa", "converted",
    ),
    "eagle3, SpecForge": (
        {"architectures": ["LlamaForCausalLMEagle3"]}, eagle3(d2t=(V,), t2d=(V,)), "drafter", "eagle3", "specforge",
    ),
    "eagle3, ids under eagle_config": ({"eagle_config": {}}, eagle3(), "drafter", "eagle3", "specforge"),
    "eagle3, DeepSpec": (
        {"target_layer_ids": [1, 9, 17, 25, 33]},
        {**eagle3("layers.0", 5), **layer("layers.0", wide=True, qk=True)},
        "drafter", "eagle3", "deepspec",
    ),
    "eagle3, two layers and norms": (
        {"speculators_model_type": "eagle3", **SPECULATORS},
        {
            **eagle3("layers.0"), **layer("layers.1"), "input_norm.weight": (3 * H,),
            **{f"fc_norm.{i}.weight": (H,) for i in range(3)},
        },
        "drafter", "eagle3", "speculators",
    ),
    "eagle3 of one hidden state": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        {name: shape for name, shape in eagle3().items() if name != "fc.weight"},
        "drafter", "eagle3", "specforge",
    ),
    "eagle, two layers": (
        {"architectures": ["LlamaForCausalLM"]},
        {**layer("layers.0"), **layer("layers.1"), "fc.weight": (H, 2 * H), "fc.bias": (H,)},
        "drafter", "eagle", "safeailab",
    ),
    "dflash, encoder": (
        {}, block(names=("encoder.fc", "encoder.output_norm_enc", "norm")), "drafter", "dflash", "encoder",
    ),
    "dflash, AngelSpec": (
        {}, block({"embed_tokens.weight": (V, H)}, ANGEL),
        "drafter", "dflash", "angelspec",
    ),
    "dflash, speculators": (
        {"speculators_model_type": "dflash", **SPECULATORS}, block({"d2t": (V,), "t2d": (V,)}),
        "drafter", "dflash", "speculators",
    ),
    "dflash, mask embedding": ({}, block({"mask_embedding": (H,)}), "drafter", "dflash", "z-lab"),
    "dflash2, speculators": (
        {"speculators_model_type": "dflash2", **SPECULATORS}, block(SELECTOR), "drafter", "dflash2", "speculators",
    ),
    "dspark, gated": (
        {}, block({**MARKOV, "markov_head.gate_proj.weight": (3, H)}), "drafter", "dspark", "deepspec",
    ),
    "dspark, confidence alone": (
        {}, block({"confidence_head.proj.weight": (1, H)}), "drafter", "dspark", "deepspec",
    ),
    "dspark without heads": ({"architectures": ["Qwen3DSparkModel"]}, block(), "drafter", "dspark", "deepspec"),
    "dspark, speculators": (
        {"speculators_model_type": "dspark", **SPECULATORS}, block(MARKOV), "drafter", "dspark", "speculators",
    ),
    "mtp, GLM-4.5": (
        {"model_type": "glm4_moe", "num_hidden_layers": 2}, {**target(), **nextn()}, "target", "mtp", "glm4_moe",
    ),
    "mtp, Hy3": (
        {"model_type": "hunyuan", "num_hidden_layers": 2},
        {**target(), **nextn(last="final_layernorm")},
        "target", "mtp", "hy3",
    ),
    "mtp, Qwen3.5": (
        {"model_type": "qwen3_5", "text_config": {"num_hidden_layers": 2}}, {**target(), **NEXT},
        "target", "mtp", "qwen3_next",
    ),
    "mtp, MiMo": (
        {"model_type": "mimo", "num_hidden_layers": 2}, {**target(), **MIMO}, "target", "mtp", "mimo",
    ),
    "mtp, speculators": (
        {"speculators_model_type": "mtp", **SPECULATORS},
        {**layer("layers.0"), **{f"layers.0.{n}.weight": (H,) for n in ("input_proj", "token_layernorm")}},
        "drafter", "mtp", "speculators",
    ),
    "mtp alone": ({"model_type": "deepseek_v3", "num_hidden_layers": 2}, nextn(), "drafter", "mtp", "deepseek_v3"),
    "a model saved without its outer module": (
        {"model_type": "gpt2", "n_layer": 2},
        {"wte.weight": (V, H), "h.0.attn.c_attn.weight": (H, 3 * H), "h.1.attn.c_attn.weight": (H, 3 * H)},
        "target", "draft_model", "gpt2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_without_a_golden_folder(name: str) -> None:
    config, shapes, role, method, dialect = LAYOUTS[name]
    layout = resolve(config, shapes, "here")
    assert (layout.role, layout.method, layout.dialect) == (role, method, dialect)
    assert layout.unknown == ()
    assert layout.decided


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_that_nothing_reads_is_named(name: str) -> None:
    config, shapes, *_ = LAYOUTS[name]
    assert resolve(config, {**shapes, "adapter.scale": (1,)}, "here").unknown == ("adapter.scale",)


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        (eagle3(mask_hidden=(1, 3 * H)), "P-EAGLE"),
        ({"midlayer.self_attn.kv_a_proj_with_mqa.weight": (4, H)}, "EAGLE-3 with DeepSeek's latent attention"),
        (block({"hidden_correction.gate_proj.weight": (H, H)}, ANGEL), "DFly"),
        (block({"layer_fusion_weights": (2, 3)}), "DFlare"),
    ],
)
def test_a_published_method_that_is_not_here_is_refused_by_name(tensors: Shapes, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"here is {what}.*, by its tensor .*; no method here reads it"):
        resolve({}, tensors, "here")


def test_what_is_nothing_known_is_refused_with_its_names() -> None:
    with pytest.raises(ConfigError, match=r"neither a language model nor a drafter .* BertModel, its tensors are a, b"):
        resolve({"architectures": ["BertModel"]}, {"a": (1,), "b": (2,)}, "here")


def test_a_config_of_another_drafter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"speculators_model_type 'dflash', but its tensors are those .* 'eagle3'"):
        resolve({"speculators_model_type": "dflash"}, eagle3(), "here")


def test_layers_past_a_models_own_are_unknown_unless_they_draft() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1}
    assert {name.split(".")[2] for name in resolve(config, target(2), "here").unknown} == {"1"}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"num_hidden_layers": "2"},
            "config.json has num_hidden_layers '2'; input should be a valid integer",
        ),
        ({"eagle_config": [1]}, r"eagle_config \[1\]; input should be a valid dictionary"),
        ({"dflash_config": {"hidden_size": 0}}, r"dflash_config\.hidden_size 0; input should be greater than"),
    ],
)
def test_a_field_of_another_type_is_named(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve(config, eagle3(), "here")


def test_a_setting_that_contradicts_its_checkpoint_is_refused_with_both() -> None:
    layout: Layout = resolve({}, eagle3(), "here")
    check_method("eagle3", layout, "drafters.0.method", "here")
    with pytest.raises(ConfigError, match=r"drafters\.0\.method is 'dflash', but the checkpoint here .* 'eagle3'"):
        check_method("dflash", layout, "drafters.0.method", "here")


def test_a_block_drafter_narrower_than_its_target_is_told_by_the_layers_it_names() -> None:
    shapes = {**block(), "fc.weight": (H, 3 * 2 * H), "embed_tokens.weight": (V, H), "lm_head.weight": (V, H)}
    tensors = {Path("a"): {name: StoredTensor("F32", shape, 1) for name, shape in shapes.items()}}
    config = {"hidden_size": H, "num_attention_heads": 2, "block_size": 4, "mask_token_id": 1}
    told = describe(Published("here", Path("here"), {**config, "target_layer_ids": [1, 3, 5]}, tensors))
    assert told.features is not None
    assert told.features.hidden_states == (2, 4, 6)
    assert told.refused is None
    with pytest.raises(ConfigError, match="fc takes 48 numbers, which are no 5 hidden states"):
        describe(Published("here", Path("here"), {**config, "target_layer_ids": [1, 3, 5, 6, 7]}, tensors))


JSON = st.none() | st.booleans() | st.integers(-2, 70) | st.text(max_size=3) | st.lists(st.integers(-2, 9), max_size=3)
PARTS = ("text_config", "transformer_layer_config", "eagle_config", "dflash_config", "dspark_config")
KEYS = (
    "model_type", "architectures", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "target_layer_ids", "num_target_layers", "eagle_aux_hidden_state_layer_ids",
    "speculators_model_type", "aux_hidden_state_layer_ids", "use_aux_hidden_state", "max_position_embeddings",
    "hidden_act", "rope_scaling", "rope_parameters", "rope_theta", "rms_norm_eps", "layer_types", "sliding_window",
    "block_size", "mask_token_id", "use_swa", "is_causal", "norm_output", "dtype", *PARTS,
)  # fmt: skip


@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.dictionaries(st.sampled_from(KEYS), JSON | st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3), max_size=5),
    st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_any_config_and_shapes_are_told_or_refused(name: str, config: dict[str, Any], cut: int) -> None:
    """cut: some tensors have fewer dimensions than they should."""
    base, shapes, *_ = LAYOUTS[name]
    tensors = {
        key: StoredTensor("F32", shape[: len(shape) - (i % 4 < cut)], 1)
        for i, (key, shape) in enumerate(shapes.items())
    }
    with contextlib.suppress(ConfigError):
        told = describe(Published("here", Path("here"), {**base, **config}, {Path("a"): tensors}))
        assert told.parts
