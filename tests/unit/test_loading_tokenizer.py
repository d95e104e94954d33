"""The tokenizer adapter: transformers' ids and text, a chat template in its sandbox, one-line refusals."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftwing.checkpoints.model_folder import open_folder
from draftwing.checkpoints.tokenizer import TextTokenizer, load_tokenizer
from draftwing.errors import ConfigError, RequestError
from tests.tiny_models import copy_of

TEXTS = ("the cat sat", " leading and  double", "caf\u00e9 \U0001f389", "", "a</s>b", "line\nline\n", "<s>the")
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<s>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the cat sat on the mat and the hat " * 9], trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    pieces = ["<pad>", "<s>", "</s>", "<unk>", *(f"<0x{i:02X}>" for i in range(256))]
    vocab = {
        piece: i for i, piece in enumerate([*pieces, "\u2581", *"abcdehilnostu\n<>/", "\u2581t", "th", "\u2581th"])
    }
    merges = [("\u2581", "t"), ("t", "h"), ("\u2581t", "h")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


KINDS = {"byte level": byte_level, "sentencepiece": sentencepiece}


def save(folder: Path, kind: str, **more: Any) -> None:
    backend = KINDS[kind]()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", **more).save_pretrained(folder)


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = copy_of("qwen3_8", tmp_path / "m")
    save(made, request.param)
    return made


def load(folder: Path) -> TextTokenizer:
    tokenizer = load_tokenizer(open_folder(folder, source="it"))
    assert tokenizer is not None
    return tokenizer


def test_ids_and_text_are_those_of_transformers(folder: Path) -> None:
    ours = load(folder)
    auto: Any = AutoTokenizer
    theirs = auto.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text).input_ids
        assert ours.encode(text, special=False) == theirs(text, add_special_tokens=False).input_ids
        ids = ours.encode(text)
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == expected
    assert ours.encode("the")[0] == 1
    assert ours.vocab_size == len(theirs)
    assert ours.eos_token_ids == (2,)


def test_token_text_keeps_spaces_and_special_tokens(folder: Path) -> None:
    ours = load(folder)
    ids = ours.encode("the the the")
    assert "".join(ours.token_text(token) for token in ids).replace("<s>", "").strip() == "the the the"
    assert any(ours.token_text(token).startswith(" ") for token in ids)
    assert ours.token_text(2) == "</s>"
    assert ours.decode([2]) == ""


def test_half_a_character_reads_as_replacement(folder: Path) -> None:
    ours = load(folder)
    ids = ours.encode("\U0001f389", special=False)
    assert "\ufffd" in ours.decode(ids[:-1])
    assert ours.decode(ids).strip() == "\U0001f389"


def test_a_truncation_in_the_file_does_not_cut_prompts(folder: Path) -> None:
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text())
    stored["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(stored))
    assert len(load(folder).encode("the cat sat on the mat")) > 4


def test_from_several_threads(folder: Path) -> None:
    ours = load(folder)
    texts = [f"the cat {'sat ' * (i % 7)}{i}" for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ours.encode, texts)) == [ours.encode(text) for text in texts]


def test_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(open_folder(copy_of("qwen3_8", tmp_path / "m"), source="it")) is None


def test_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    with pytest.raises(ConfigError, match=r"the tokenizer in .* can't be loaded") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_chat_is_what_transformers_renders(tmp_path: Path) -> None:
    folder = copy_of("qwen3_8", tmp_path / "m")
    save(folder, "byte level", chat_template=TEMPLATE)
    ours = load(folder)
    assert ours.has_chat_template
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    auto: Any = AutoTokenizer
    theirs = auto.from_pretrained(folder)
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<s>user: the cat\n<s>assistant: sat\nassistant:"
    assert ours.chat(messages) == theirs(text, add_special_tokens=False).input_ids


def test_chat_without_a_template(folder: Path) -> None:
    ours = load(folder)
    assert not ours.has_chat_template
    with pytest.raises(RequestError, match="no chat template") as caught:
        ours.chat([{"role": "user", "content": "hi"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (TEMPLATE, "no tools here"),
        ("{{ messages[7].content }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages"),  # the sandbox
        ("{% if %}", "refuses these messages"),
    ],
)
def test_messages_that_the_template_refuses(tmp_path: Path, template: str, said: str) -> None:
    folder = copy_of("qwen3_8", tmp_path / "m")
    save(folder, "byte level", chat_template=template)
    with pytest.raises(RequestError, match=said) as caught:
        load(folder).chat([{"role": "tool", "content": "x"}])
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


def test_template_in_a_file_of_its_own_is_found_and_counts_for_identity(tmp_path: Path) -> None:
    folder = copy_of("qwen3_8", tmp_path / "m")
    save(folder, "byte level")
    before = open_folder(folder, source="it").digest
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert load(folder).has_chat_template
    assert open_folder(folder, source="it").digest != before


def test_tokenizer_with_code_of_its_own_is_not_run(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    config = {
        **json.loads(path.read_text()),
        "auto_map": {"AutoTokenizer": ["code.Mine", None]},
        "tokenizer_class": "Mine",
    }
    path.write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('ran')\n")
    assert load(folder).encode("the")
