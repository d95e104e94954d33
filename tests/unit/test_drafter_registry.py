"""Methods by name: built in, plugged in, planned and unknown, and what wrong options say."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from draftwing.config_models import DrafterConfig
from draftwing.drafters import registry
from draftwing.drafters.base import Drafter
from draftwing.drafters.ngram import METHOD, NgramDrafter
from draftwing.drafters.none import NoneDrafter
from draftwing.drafters.registry import find_method, make_drafter
from draftwing.errors import ConfigError


def config(**settings: Any) -> DrafterConfig:
    return DrafterConfig.model_validate(settings)


def plug(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    points = EntryPoints([EntryPoint(name, value, registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))


def test_built_in_methods() -> None:
    assert isinstance(make_drafter(config(method="none")), NoneDrafter)
    drafter = make_drafter(config(method="ngram", name="lookup", max_match=7, rule="vllm"))
    assert isinstance(drafter, NgramDrafter)
    assert (drafter.options.max_match, drafter.options.rule) == (7, "vllm")
    for name in registry.BUILT_IN:
        needs = {"path": "somewhere"} if "path" in find_method(name).options.model_fields else {}
        assert isinstance(make_drafter(config(method=name, **needs)), Drafter)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_match": 0}, "drafters.2.max_match is 0; expected a whole number (at least 1, at most 64)"),
        ({"max_match": "4"}, "drafters.2.max_match is '4'; expected a whole number"),
        ({"max_match": 3, "min_match": 4}, "drafters.2.min_match is 4, more than max_match; expected 1 to 3"),
        ({"rule": "hf", "min_match": 2}, "drafters.2.min_match is 2, but rule hf"),
        ({"rule": "vllm", "draft_per_match": 2}, "drafters.2.draft_per_match is 2, but rule vllm knows no such bound"),
        ({"draft_per_match": 0}, "drafters.2.draft_per_match is 0; expected null or a number"),
        ({"rule": "first"}, "drafters.2.rule is 'first'; expected 'recent', 'vllm' or 'hf'"),
        ({"max_mach": 3}, "did you mean drafters.2.max_match?"),
        ({"path": "somewhere"}, "drafters.2.path is not a setting"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_drafter(config(method="ngram", **options), index=2)
    assert says in str(error.value)


def test_unknown_methods() -> None:
    with pytest.raises(ConfigError, match=r"drafters\.0\.method is 'ngrams'; did you mean 'ngram'\?; expected one of"):
        make_drafter(config(method="ngrams"))
    with pytest.raises(ConfigError, match="method is 'zzz'; expected one of"):
        find_method("zzz")


def test_a_plug_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, "mine", "draftwing.drafters.ngram:METHOD")
    assert find_method("mine") is METHOD
    assert isinstance(make_drafter(config(method="mine")), NgramDrafter)
    with pytest.raises(ConfigError, match=r"expected one of .*draft_model, .*mine, .*ngram, none"):
        find_method("x")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("mine", "draftwing.nowhere:METHOD", "can't be loaded: No module named"),
        ("mine", "draftwing.drafters.ngram:NOTHING", "can't be loaded"),
        ("mine", "draftwing.drafters.registry:GROUP", "gives a str; expected a DrafterMethod"),
        ("ngram", "draftwing.drafters.none:METHOD", "is built in, but the plug-in 'draftwing.drafters.none:METHOD'"),
    ],
)
def test_a_wrong_plug_in_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    plug(monkeypatch, name, value)
    with pytest.raises(ConfigError) as error:
        find_method(name)
    assert says in str(error.value)


def test_no_torch_is_loaded() -> None:
    code = (
        "import sys; from draftwing.drafters.registry import find_method; find_method('ngram'); find_method('none');"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
