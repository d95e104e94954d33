"""vLLM's speculative config as our settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.checkpoints.methods import settle_methods
from draftwing.config import load_config
from draftwing.config_models import FROM_CHECKPOINT
from draftwing.drafters.registry import check_drafter
from draftwing.errors import ConfigError
from draftwing.speculative_config import COMMON, METHODS, from_speculative_config
from tests.unit.test_resolve import FOLDERS, GOLDENS

ALL = "'ngram', 'suffix', 'draft_model', 'eagle', 'eagle3', 'medusa', 'mtp', 'dflash', 'dspark'"
READ = "methods draft_model, eagle, eagle3, medusa, mtp, dflash, dspark"


@pytest.mark.parametrize(
    ("lengths", "shortest", "longest"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 3}, 3, 3),
        ({"prompt_lookup_max": 4, "prompt_lookup_min": 1}, 1, 4),
    ],
)
def test_it_means_what_it_means_to_vllm(lengths: dict[str, int], shortest: int, longest: int) -> None:
    found = from_speculative_config(json.dumps({"method": "ngram", "num_speculative_tokens": 4, **lengths}))
    (drafter,) = found["drafters"]
    assert (drafter["min_match"], drafter["max_match"], drafter["rule"]) == (shortest, longest, "vllm")
    config = load_config(None, found, {}).config
    assert config.policy.mode == "fixed:k=4"
    assert config.drafters[0].method == "ngram"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        from_speculative_config(text)
    return [line.removeprefix("--speculative-config: ") for line in str(caught.value).splitlines()]


GOOD: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"promt_lookup_max": 4}, "promt_lookup_max is not accepted; did you mean prompt_lookup_max?"),
        ({"zzz": 4}, f"zzz is not accepted; expected {', '.join((*COMMON, *METHODS['ngram']))}"),
        ({"model": "x"}, f"model belongs to {READ}, and the method is ngram; remove it"),
        (
            {"disable_by_batch_size": 4},
            "disable_by_batch_size has no equivalent: the policy decides how much to draft; remove it",
        ),
        ({"method": "custom_class"}, f"method is 'custom_class'; this version drafts with {ALL}"),
        ({"method": None}, f"method is None; this version drafts with {ALL}"),
        ({"method": "eagle3"}, "model is missing; expected a text"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0; expected a whole number from 1 to 64"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1; expected a whole number from 1 to 64"),
        ({"num_speculative_tokens": 65}, "num_speculative_tokens is 65; expected a whole number from 1 to 64"),
        ({"num_speculative_tokens": 4.0}, "num_speculative_tokens is 4.0; expected a whole number from 1 to 64"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens is True; expected a whole number from 1 to 64"),
        ({"num_speculative_tokens": "4"}, "num_speculative_tokens is '4'; expected a whole number from 1 to 64"),
        ({"prompt_lookup_max": None}, "prompt_lookup_max is None; expected a whole number from 1 to 64"),
        (
            {"prompt_lookup_max": 2, "prompt_lookup_min": 3},
            "prompt_lookup_min is 3; expected at most prompt_lookup_max, 2",
        ),
    ],
)
def test_each_wrong_key_is_named(change: dict[str, Any], line: str) -> None:
    assert problems(json.dumps(GOOD | change)) == [line]


@pytest.mark.parametrize(
    ("method", "ours"),
    [
        (None, FROM_CHECKPOINT),
        ("draft_model", "draft_model"),
        ("eagle", "eagle"),
        ("eagle3", "eagle3"),
        ("medusa", "medusa"),
        ("mtp", "mtp"),
        ("deepseek_mtp", "mtp"),
        ("qwen3_next_mtp", "mtp"),
        ("dflash", FROM_CHECKPOINT),
        ("dspark", "dspark"),
    ],
)
def test_a_checkpoint_drafts(method: str | None, ours: str) -> None:
    given = {"model": "some/model", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}
    config = load_config(None, from_speculative_config(json.dumps({**given, **named(method)})), {}).config
    assert config.policy.mode == "fixed:k=3"
    assert config.drafters[0].method == ours
    assert config.drafters[0].options == {"path": "some/model"}


def named(method: str | None) -> dict[str, str]:
    return {} if method is None else {"method": method}


@pytest.mark.parametrize("method", ["mtp", "glm4_moe_mtp"])
def test_modules_of_the_target_need_no_model(method: str) -> None:
    config = load_config(None, from_speculative_config(json.dumps({"method": method})), {}).config
    assert (config.drafters[0].method, config.drafters[0].options, config.policy.mode) == ("mtp", {}, "fixed:k=1")
    check_drafter(config.drafters[0])


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder.endswith("/drafter")])
def test_a_checkpoint_says_its_method_with_vllms_name_for_it_or_without(folder: str) -> None:
    method = FOLDERS[folder][0]
    for name in (None, method.replace("dflash2", "dflash")):
        given = {"model": str(GOLDENS / folder), "num_speculative_tokens": 3, **named(name)}
        config = load_config(None, from_speculative_config(json.dumps(given)), {}).config
        assert settle_methods(config).drafters[0].method == method


def test_a_checkpoint_of_another_method_is_refused() -> None:
    given = {"model": str(GOLDENS / "eagle3_d2t/drafter"), "num_speculative_tokens": 3, "method": "medusa"}
    with pytest.raises(ConfigError, match=r"drafters\.0\.method is 'medusa', but the checkpoint .* 'eagle3'"):
        settle_methods(load_config(None, from_speculative_config(json.dumps(given)), {}).config)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"model": ""}, "model is ''; expected a text"),
        ({"revision": 3}, "revision is 3; expected a text"),
        (
            {"prompt_lookup_max": 3},
            "prompt_lookup_max belongs to method ngram; remove it",
        ),
        (
            {"prompt_lookup_max": 3, "method": "eagle"},
            "prompt_lookup_max belongs to method ngram, and the method is eagle; remove it",
        ),
        (
            {"draft_tensor_parallel_size": 2},
            "draft_tensor_parallel_size is 2; expected 1, as a drafter runs on one rank",
        ),
        (
            {"zzz": 1},
            "zzz is not accepted; expected method, num_speculative_tokens, model, revision, draft_tensor_parallel_size",
        ),
    ],
)
def test_each_wrong_key_of_a_draft_model_is_named(change: dict[str, Any], line: str) -> None:
    assert problems(json.dumps({"model": "x", "num_speculative_tokens": 3} | change)) == [line]


def test_suffix_decoding_takes_its_options() -> None:
    given = {
        "suffix_decoding_max_tree_depth": 12,
        "suffix_decoding_max_cached_requests": 100,
        "suffix_decoding_max_spec_factor": 2,
        "suffix_decoding_min_token_prob": 0.25,
    }
    config = load_config(None, from_speculative_config(json.dumps({"method": "suffix", **given})), {}).config
    options = {"max_depth": 12, "max_requests": 100, "factor": 2.0, "min_probability": 0.25}
    assert config.drafters[0].options == options
    assert config.policy.mode == "fixed:k=12"
    check_drafter(config.drafters[0])
    plain = load_config(None, from_speculative_config('{"method": "suffix"}'), {}).config
    assert plain.policy.mode == "fixed:k=24"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"suffix_decoding_max_tree_depth": 1},
            "suffix_decoding_max_tree_depth is 1; expected a whole number from 2 to 256",
        ),
        (
            {"suffix_decoding_min_token_prob": 1.5},
            "suffix_decoding_min_token_prob is 1.5; expected a number from 0.0 to 1.0",
        ),
        (
            {"suffix_decoding_max_cached_requests": True},
            "suffix_decoding_max_cached_requests is True; expected a whole number from -1 to 2147483647",
        ),
        ({"model": "x"}, f"model belongs to {READ}, and the method is suffix; remove it"),
    ],
)
def test_each_wrong_key_of_suffix_is_named(change: dict[str, Any], line: str) -> None:
    assert problems(json.dumps({"method": "suffix"} | change)) == [line]


def test_a_draft_model_needs_a_model() -> None:
    assert problems('{"method": "draft_model", "num_speculative_tokens": 2}') == ["model is missing; expected a text"]


def test_what_is_missing_is_named() -> None:
    assert problems("{}") == [
        f"method is missing; this version drafts with {ALL}",
        "num_speculative_tokens is missing; expected a whole number from 1 to 64",
    ]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "not valid JSON"),
        ("{'method': 'ngram'}", "not valid JSON"),
        ('{"method": "ngram",}', "not valid JSON"),
        ("[1]", "--speculative-config is [1]; expected a JSON object"),
        ('{"method": "ngram", "method": "ngram"}', "method is set twice; keep one"),
        ('{"num_speculative_tokens": NaN}', "NaN is not JSON"),
        ('{"num_speculative_tokens": ' + "9" * 5000 + "}", "a number too long"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_not_a_json_object_is_refused_in_one_line(text: str, cause: str) -> None:
    (line,) = problems(text)
    assert cause in line
    assert len(line) < 200


KEYS = [*COMMON, *METHODS["ngram"], *METHODS["draft_model"]]
VALUES = st.none() | st.integers() | st.text(max_size=9)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=9), VALUES))
@settings(max_examples=100, deadline=None)
def test_any_object_is_a_setting_or_a_config_error(data: dict[str, Any]) -> None:
    try:
        found = from_speculative_config(json.dumps(data | {"method": "ngram"}))
    except ConfigError:
        return
    load_config(None, found, {})
