"""The session of a tuning run: its key, its folder, and the clocks it may use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwing.config import load_config
from draftwing.config_models import Config
from draftwing.drafters.base import DrafterTraits
from draftwing.engine.identity import drafter_text
from draftwing.errors import ConfigError
from draftwing_tuner.session import open_session
from tests.tiny_models import golden

DRAFTER = [{"name": "lookup", "method": "ngram", "max_match": 4}]


def config_of(**settings: object) -> Config:
    base: dict[str, object] = {
        "model.path": str(golden("llama8")),
        "model.compile": False,
        "model.cpu_threads": 1,
        "cache.tokens": 1024,
        "drafters": DRAFTER,
    }
    return load_config(None, base | settings).config


def test_a_session_says_what_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWING_CACHE", str(tmp_path))
    session = open_session(config_of(), clock="cpu", out=None, tell=lambda _: None)
    assert session.key["drafter"] == "ngram(max_match=4)"
    assert session.key["dtype"] == "float32"
    assert session.key["threads"] == "1"
    assert len(session.key["model_digest"]) == 16
    assert session.config.policy.mode == "off"
    assert session.out.parent == tmp_path / "tune"
    assert session.out.is_dir()
    again = open_session(config_of(), clock="cpu", out=None, tell=lambda _: None)
    assert (again.out, again.key) == (session.out, session.key)
    other = open_session(config_of(drafters=[{"method": "suffix"}]), clock="cpu", out=None, tell=lambda _: None)
    assert other.out != session.out
    assert isinstance(session.engine.drafting.drafter.traits, DrafterTraits)


def test_the_cpu_clock_needs_one_thread(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        with pytest.raises(ConfigError, match=r"set model.cpu_threads: 1, or use --clock wall"):
            open_session(config_of(**{"model.cpu_threads": 2}), clock="cpu", out=tmp_path, tell=lambda _: None)
    finally:
        torch.set_num_threads(threads)


def test_a_drafter_s_name_is_no_part_of_the_key_and_its_files_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = config_of(drafters=[{"name": "a", "method": "draft_model", "path": str(tmp_path)}])
    second = config_of(drafters=[{"name": "b", "method": "draft_model", "path": str(tmp_path)}])
    assert drafter_text(first) == drafter_text(second)
    assert str(tmp_path) not in drafter_text(first)
    before = drafter_text(first)
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert drafter_text(first) != before
    assert drafter_text(config_of(drafters=[])) == ""


def test_prompts_come_from_a_file_or_along(tmp_path: Path) -> None:
    session = open_session(config_of(), clock="wall", out=tmp_path, tell=lambda _: None)
    assert len(session.prompts(None)) >= 3
    if session.tokenizer is None:
        with pytest.raises(ConfigError, match="has no tokenizer"):
            session.prompts(tmp_path / "prompts.jsonl")
