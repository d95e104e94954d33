"""Model folders: good ones load, and each kind of bad one is refused in one line before any weight is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwing.checkpoints import hf, model_folder
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.model_folder import open_folder
from draftwing.checkpoints.supported import VERIFIED, check_config
from draftwing.checkpoints.weight_files import INDEX, SINGLE, read_weight_files
from draftwing.config_models import ModelConfig
from draftwing.engine import loading
from draftwing.engine.loading import load_target
from draftwing.errors import ConfigError, DraftwingError, SetupError
from tests.tiny_models import GOLDENS, copy_of, golden

TARGETS = ("llama8", "qwen3_8", "mixtral3", "gemma3_6")


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights is an error in this test."""

    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(hf, "load_model", read)


def message_of(error: type[DraftwingError], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def resolved(folder: Path, **more: Any) -> model_folder.ModelFolder:
    return resolve_model(ModelConfig(path=str(folder), **more))


@pytest.mark.parametrize("name", TARGETS)
def test_golden_targets_load(name: str) -> None:
    target = load_target(resolved(golden(name)), device="cpu")
    config = json.loads((golden(name) / "config.json").read_text())
    assert target.vocab_size == config["vocab_size"]
    assert target.context_length == 512
    assert target.eos_token_ids == (2,)
    assert target.dtype == torch.float32
    assert not target.model.training
    assert target.config._attn_implementation == "draftwing"
    weights = load_file(golden(name) / SINGLE)
    assert torch.equal(target.model.state_dict()["model.embed_tokens.weight"], weights["model.embed_tokens.weight"])


def test_dtype_auto_is_float32_on_a_cpu_and_can_be_set() -> None:
    folder = resolved(golden("llama8"))
    assert load_target(folder, device="cpu", dtype="bfloat16").dtype == torch.bfloat16
    assert {p.dtype for p in load_target(folder, device="cpu", dtype="bfloat16").model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 9, 7]}, 2, (7, 9)),
        ({"eos_token_id": 5}, 2, (5,)),
        ({"eos_token_id": 0}, 2, (0,)),
        ({}, [3, 4], (3, 4)),
        (None, 2, (2,)),
        (None, None, ()),
    ],
)
def test_generation_config_decides_what_ends_a_request(
    tmp_path: Path, generation: dict[str, Any] | None, config: Any, expected: tuple[int, ...]
) -> None:
    folder = copy_of("qwen3_8", tmp_path / "m", eos_token_id=config)
    path = folder / "generation_config.json"
    path.unlink()
    if generation is not None:
        path.write_text(json.dumps(generation))
    assert load_target(resolved(folder), device="cpu").eos_token_ids == expected


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    original = open_folder(golden("llama8"), source="a")
    copy = copy_of("llama8", tmp_path / "copy")
    shutil.copy(golden("llama8") / "config.json", copy)
    (copy / "README.md").write_text("says nothing about the model")
    assert open_folder(copy, source="b").digest == original.digest
    weights = load_file(copy / SINGLE)
    weights["lm_head.weight"][0, 0] += 1  # a fine-tuned model: same names, shapes and sizes
    save_file(weights, copy / SINGLE, metadata={"format": "pt"})
    tuned = open_folder(copy, source="b").digest
    assert tuned != original.digest
    (copy / "generation_config.json").write_text("{}")
    assert open_folder(copy, source="b").digest not in (tuned, original.digest)


def test_sharded_weights(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    whole = load_target(resolved(golden("llama8")), device="cpu").model.state_dict()
    parts = load_target(resolved(folder), device="cpu").model.state_dict()
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def sharded(tmp_path: Path) -> Path:
    folder = copy_of("llama8", tmp_path / "m")
    weights = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    placed = {name: file for file, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


# --- files


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def with_header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return changed


NORM = "model.norm.weight"
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "header length"),
    "seven bytes": (lambda data: data[:7], "header length"),
    "not safetensors": (lambda data: b"<html>an error page</html>", "header length"),
    "cut in the header": (lambda data: data[:500], "ends inside its header"),
    "cut in the weights": (lambda data: data[:-1], "bytes where its header describes"),
    "a byte too many": (lambda data: data + b"\0", "bytes where its header describes"),
    "header is no JSON": (lambda data: data[:8] + b"\xff" + data[9:], "not a JSON object"),
    "header is a list": (lambda data: (4).to_bytes(8, "little") + b"[{}]", "not a JSON object"),
    "unknown dtype": (with_header(lambda h: h[NORM].update(dtype="Q9")), f"{NORM} has no valid dtype"),
    "no offsets": (with_header(lambda h: h[NORM].pop("data_offsets")), f"{NORM} has no valid dtype"),
    "offsets are text": (with_header(lambda h: h[NORM].update(data_offsets=["0", "4"])), f"{NORM} has no valid dtype"),
    "shape of texts": (with_header(lambda h: h[NORM].update(shape=["64"])), f"{NORM} has no valid dtype"),
    "negative shape": (with_header(lambda h: h[NORM].update(shape=[-64])), f"{NORM} has no valid dtype"),
    "wrong shape": (with_header(lambda h: h[NORM].update(shape=[65])), f"{NORM} of F32 [65] is stored in 256 bytes"),
    "missing tensor": (with_header(lambda h: h.pop("model.layers.0.input_layernorm.weight")), "gap or overlap"),
    "overlap": (with_header(lambda h: h.update({NORM: h["model.layers.0.input_layernorm.weight"]})), "gap or overlap"),
}


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_safetensors(tmp_path: Path, what: str) -> None:
    change, said = DAMAGE[what]
    folder = copy_of("llama8", tmp_path / "m")
    rewrite(folder / SINGLE, change)
    message = message_of(ConfigError, lambda: resolved(folder))
    assert str(folder / SINGLE) in message
    assert said in message
    assert "again" in message


def test_headers_count_the_weights() -> None:
    weights = read_weight_files(golden("llama8"))
    loaded = load_file(golden("llama8") / SINGLE)
    assert weights.bytes_as(4) == sum(tensor.numel() * 4 for tensor in loaded.values())
    assert weights.bytes_as(2) * 2 == weights.bytes_as(4)
    assert weights.float_dtypes == {"F32"}


def missing_shard(folder: Path) -> None:
    (folder / "b.safetensors").unlink()


def broken_index(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


def mixed_index(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][NORM] = "a.safetensors"
    (folder / INDEX).write_text(json.dumps(index))


def cut_shard(folder: Path) -> None:
    rewrite(folder / "b.safetensors", lambda data: data[:-5])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (missing_shard, "lacks 1 of the 2 weight files its index names (b.safetensors)"),
        (broken_index, "not a weight index"),
        (mixed_index, f"places tensor {NORM} in a.safetensors"),
        (cut_shard, "b.safetensors is not a whole safetensors file"),
    ],
)
def test_damaged_shards(tmp_path: Path, change: Callable[[Path], None], said: str) -> None:
    folder = sharded(tmp_path)
    change(folder)
    assert said in message_of(ConfigError, lambda: resolved(folder))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def bad_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def config_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "acme/base"}')


def only_bin(folder: Path) -> None:
    (folder / SINGLE).rename(folder / "pytorch_model.bin")


def no_weight_files(folder: Path) -> None:
    (folder / SINGLE).unlink()


def only_gguf(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "model-q4.gguf").touch()


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (no_config, ["no config.json"]),
        (bad_config, ["config.json is not valid JSON", "line 1"]),
        (config_is_a_list, ["JSON list", "expected an object"]),
        (adapter, ["adapter (LoRA) for acme/base", "merge_and_unload"]),
        (only_bin, ["pytorch_model.bin (pickle)", "save_pretrained"]),
        (no_weight_files, ["no weights", SINGLE]),
        (only_gguf, ["model-q4.gguf", "name that file"]),
    ],
)
def test_what_is_no_model_folder(tmp_path: Path, change: Callable[[Path], None], said: list[str]) -> None:
    folder = copy_of("llama8", tmp_path / "m")
    change(folder)
    message = message_of(ConfigError, lambda: resolved(folder))
    assert str(folder) in message
    assert all(part in message for part in said), message


# --- configs

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **{
        kind: ({"model_type": kind}, "hybrid linear-attention")
        for kind in ("mamba", "jamba", "qwen3_next", "qwen3_5", "falcon_h1", "bamba", "granitemoehybrid", "zamba2",
                     "rwkv", "recurrent_gemma", "lfm2", "nemotron_h")
    },
    "hybrid by layers": ({"layer_types": ["linear_attention", "full_attention"]}, "layers of type linear_attention"),
    "hybrid by block types": ({"block_types": ["recurrent", "attention"]}, "layers of type recurrent"),
    "hybrid by key": ({"model_type": "new", "mamba_d_state": 16}, "mamba_d_state in its config.json"),
    "chunked": ({"layer_types": ["chunked_attention"] * 8}, "layers of type chunked_attention"),
    "no type": ({"model_type": None}, "no model_type"),
    "unknown type": ({"model_type": "frobnicate"}, "model_type 'frobnicate'"),
    "own code": ({"model_type": "own", "auto_map": {"AutoModelForCausalLM": "m.M"}}, "model.trust_remote_code: true"),
    "encoder": ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
    "embedding": ({"use_bidirectional_attention": True}, "both directions"),
    "vision": ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, "ViTForImageClassification"),
    "vision and text": ({"model_type": "gemma3", "vision_config": {"hidden_size": 8}}, "only text models"),
    "encoder-decoder": ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
    **{
        method: ({"quantization_config": {"quant_method": method}}, f"{method} quantized weights")
        for method in ("gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors", "mxfp4")
    },
    "longrope": ({"rope_scaling": {"rope_type": "longrope"}}, "rope type longrope"),
    "longrope, old name": ({"rope_scaling": {"type": "su"}}, "rope type su"),
    "dynamic": ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type dynamic"),
    "dynamic in one layer type": (
        {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}, "sliding_attention": {}}},
        "rope type dynamic",
    ),
    **{kind: ({"model_type": kind}, f"model_type '{kind}'") for kind in ("bloom", "mpt", "falcon")},  # ALiBi
    "windows in a mask alone": ({"model_type": "qwen2_moe", "use_sliding_window": True}, "sliding-window layers"),
}  # fmt: skip


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("what", REFUSED)
def test_models_that_cant_be_served(tmp_path: Path, what: str) -> None:
    changes, said = REFUSED[what]
    folder = copy_of("llama8", tmp_path / "m", **changes)
    message = message_of(ConfigError, lambda: resolved(folder))
    assert str(folder) in message
    assert said in message


@pytest.mark.usefixtures("no_weights")
def test_a_rope_type_that_transformers_reads_as_another(tmp_path: Path) -> None:
    factors = [1.0] * 8
    scaling = {"type": "yarn", "short_factor": factors, "long_factor": factors}
    folder = resolved(copy_of("llama8", tmp_path / "m", model_type="phi3", rope_scaling=scaling, rope_parameters=None))
    assert "rope type longrope" in message_of(ConfigError, lambda: load_target(folder, device="cpu"))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear"}, "sliding_attention": {"rope_type": "default"}}},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"model_type": "qwen2_moe", "use_sliding_window": False, "sliding_window": 4096},
        {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}},  # transformers' own code is used
        {"architectures": None},
    ],
)
def test_configs_that_can(changes: dict[str, Any]) -> None:
    check_config({**json.loads((golden("llama8") / "config.json").read_text()), **changes}, "it")


def test_own_code_is_the_operators_choice() -> None:
    check_config({"model_type": "own", "auto_map": {"AutoModelForCausalLM": "m.M"}}, "it", trust_remote_code=True)


def test_hybrids_are_never_verified() -> None:
    for kind in VERIFIED:
        check_config({"model_type": kind, "architectures": ["XForCausalLM"]}, "it")


# --- settings and the machine


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("error", "settings", "said"),
    [
        (ConfigError, {"dtype": "int3"}, ["model.dtype", "'int3'", "bfloat16"]),
        (ConfigError, {"device": "tpu"}, ["model.device", "'tpu'", "auto, cpu, cuda"]),
        (ConfigError, {"quantization": "int4", "dtype": "bfloat16"}, ["model.quantization", "bfloat16", "float32"]),
    ],
)
def test_settings(error: type[DraftwingError], settings: dict[str, Any], said: list[str]) -> None:
    folder = resolved(golden("llama8"))
    message = message_of(error, lambda: load_target(folder, **settings))
    assert all(part in message for part in said), message


@pytest.mark.usefixtures("no_weights")
def test_cuda_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = resolved(golden("llama8"))
    assert "model.device is cuda" in message_of(SetupError, lambda: load_target(folder, device="cuda"))
    assert loading.choose_device("auto").type == "cpu"


@pytest.mark.usefixtures("no_weights")
def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "available_bytes", lambda _: 100_000_000)
    folder = resolved(golden("llama8"))
    message = message_of(SetupError, lambda: load_target(folder, device="cpu"))
    assert "takes about 0.4 GB" in message
    assert "0.1 GB is" in message
    assert "model.dtype: bfloat16" in message


# --- weights that don't fit the config


def drop(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.layers.3.mlp.up_proj.weight"]


def add(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.3.mlp.extra.weight"] = torch.zeros(2)


def reshape(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.3.mlp.up_proj.weight"] = torch.zeros(95, 64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, "lacks weights that the model needs: model.layers.3.mlp.up_proj.weight"),
        (add, "holds weights that the model does not know: model.layers.3.mlp.extra.weight"),
        (reshape, "of a shape that does not fit its config.json: model.layers.3.mlp.up_proj.weight"),
    ],
)
def test_weights_of_another_model(tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], said: str) -> None:
    folder = copy_of("llama8", tmp_path / "m")
    weights = load_file(folder / SINGLE)
    change(weights)
    save_file(weights, folder / SINGLE, metadata={"format": "pt"})
    assert said in message_of(ConfigError, lambda: load_target(resolved(folder), device="cpu"))


def test_config_values_that_transformers_refuses(tmp_path: Path) -> None:
    folder = copy_of("llama8", tmp_path / "m", num_attention_heads="four")
    message = message_of(ConfigError, lambda: load_target(resolved(folder), device="cpu"))
    assert "config.json" in message


def test_tied_output_weights_are_not_missing(tmp_path: Path) -> None:
    folder = copy_of("llama8", tmp_path / "m", tie_word_embeddings=True)
    weights = load_file(folder / SINGLE)
    del weights["lm_head.weight"]
    save_file(weights, folder / SINGLE, metadata={"format": "pt"})
    state = load_target(resolved(folder), device="cpu").model.state_dict()
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])


@pytest.mark.parametrize("eos", ["2", 2.0, True, [1, None], -1, 160, {"id": 2}])
def test_eos_that_is_no_token(tmp_path: Path, eos: Any) -> None:
    folder = copy_of("llama8", tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    message = message_of(ConfigError, lambda: load_target(resolved(folder), device="cpu"))
    assert "eos_token_id" in message
    assert "from 0 to 159" in message


def test_config_values_of_any_type_are_no_crash() -> None:
    keys = ("layer_types", "rope_scaling", "rope_parameters", "architectures", "auto_map", "quantization_config",
            "vision_config", "model_type", "is_encoder_decoder")  # fmt: skip
    base = json.loads((golden("llama8") / "config.json").read_text())
    for key in keys:
        for value in (5, "text", [1, "a"], {"a": [1]}, True, 0.5):
            with suppress(ConfigError):
                check_config({**base, key: value}, "it")


# --- models that bring Python code of their own

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
    _supports_attention_backend = {supports}
"""


def own_code(tmp_path: Path, *, supports: bool) -> Path:
    auto_map = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnForCausalLM"}
    folder = copy_of("llama8", tmp_path / f"own{supports}", model_type="own", auto_map=auto_map)
    (folder / "own_code.py").write_text(CODE.format(supports=supports))
    return folder


@pytest.fixture
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transformers.dynamic_module_utils", "transformers.utils.hub"):
        monkeypatch.setattr(f"{module}.HF_MODULES_CACHE", str(tmp_path / "modules"), raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


@pytest.mark.usefixtures("modules_cache")
def test_own_code_runs_when_the_operator_says_so(tmp_path: Path) -> None:
    folder = own_code(tmp_path, supports=True)
    assert "trust_remote_code" in message_of(ConfigError, lambda: resolved(folder))
    target = load_target(resolved(folder, trust_remote_code=True), device="cpu", trust_remote_code=True)
    assert type(target.model).__name__ == "OwnForCausalLM"


@pytest.mark.usefixtures("modules_cache", "no_weights")
def test_own_code_with_attention_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = resolved(own_code(tmp_path, supports=False), trust_remote_code=True)
    message = message_of(ConfigError, lambda: load_target(folder, device="cpu", trust_remote_code=True))
    assert "attention" in message


@pytest.mark.parametrize(
    "case", ["eagle1_bias", "eagle1_nobias", "eagle3_d2t", "eagle3_speculators", "medusa1", "dflash2"]
)
def test_a_drafter_in_the_models_place_is_told_as_one(case: str) -> None:
    with pytest.raises(ConfigError, match=r"is a drafter \(method \w+\), no model of its own; name the model"):
        load_target(resolve_model(ModelConfig(path=str(GOLDENS / case / "drafter"))))
