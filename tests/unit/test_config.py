"""Where values come from, and what a wrong config says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from pydantic import ValidationError

from draftwing.config import Config, LoadedConfig, load_config, parse_setting, require_model, settings
from draftwing.config_errors import HIDDEN, MAX_PROBLEMS
from draftwing.config_models import TargetsConfig
from draftwing.drafters.registry import BUILT_IN
from draftwing.errors import ConfigError
from draftwing.limits import RequestLimits
from draftwing.policy.modes import FORMS

METHODS = ", ".join(sorted(BUILT_IN))

EXAMPLE = """
model:
  path: meta-llama/Llama-3.3-70B-Instruct   # folder, hub id or GGUF file
  name: llama-3.3-70b                       # served name; aliases: [...]
  dtype: bfloat16
  quantization: null
parallel: {tensor: 8, expert: 1, pipeline: 1}
drafters:
  - {name: head, method: eagle3, path: yuhuili/EAGLE3-LLaMA3.3-Instruct-70B}
  - {name: lookup, method: ngram, max_match: 4}
  - {name: small, method: draft_model, path: meta-llama/Llama-3.2-1B-Instruct, placement: {replicas: 2, gpus: 1}}
policy: {mode: adaptive, profile: s3://bucket/profiles, targets: {tpot_ms: 30}}
sampling: invariant                         # or rejection
cache: {block_tokens: 32, gpu_fraction: 0.9}
limits: {sequences: 256, queue: 512, context: 32768, batch_tokens: 8192}
server: {host: 127.0.0.1, port: 8000, keys: null, replicas: 2}
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(
    text: str | None = None, overrides: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> LoadedConfig:
    file = None
    if text is not None:
        file = Path("c.yaml")
        file.write_text(text, encoding="utf-8")
    return load_config(file, overrides, environ or {})


def problems(
    text: str | None = None, overrides: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, overrides, environ)
    return str(caught.value).splitlines()


def test_without_any_source_every_value_is_a_default() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert loaded.file is None
    assert set(loaded.origins.values()) == {"default"}
    assert list(loaded.origins) == list(settings())


def test_the_first_source_that_has_a_value_wins() -> None:
    text = "limits: {sequences: 1, queue: 1, n: 1}\n"
    environ = {"DRAFTWING_LIMITS__QUEUE": "2", "DRAFTWING_LIMITS__N": "2"}
    loaded = load(text, {"limits.n": 3}, environ)
    limits = loaded.config.limits
    assert (limits.sequences, limits.queue, limits.n, limits.prompts) == (1, 2, 3, RequestLimits().prompts)
    keys = ("limits.sequences", "limits.queue", "limits.n", "limits.prompts")
    assert [loaded.origins[key] for key in keys] == [
        "file c.yaml:1",
        "env DRAFTWING_LIMITS__QUEUE",
        "flag",
        "default",
    ]


def test_the_file_is_looked_for_in_order(tmp_path: Path) -> None:
    home, xdg = tmp_path / "home", tmp_path / "xdg"
    places = [home / ".config/draftwing/config.yaml", xdg / "draftwing/config.yaml", Path("draftwing.yaml")]
    environ = {"HOME": str(home)}
    assert load(environ=environ).file is None
    for i, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"model: {{name: m{i}}}")
        if place == places[1]:
            environ["XDG_CONFIG_HOME"] = str(xdg)
        loaded = load(environ=environ)
        assert (loaded.config.model.name, loaded.file) == (f"m{i}", place)
    assert load("model: {name: named}", environ=environ).config.model.name == "named"


def test_an_empty_file_and_empty_sections_set_nothing() -> None:
    assert load("").config == Config()
    assert load("# nothing\n---\nmodel:\n  # path: x\npolicy:\n").config == Config()


@pytest.mark.parametrize(
    ("text", "overrides", "mode"),
    [
        ("", {}, "off"),
        ("drafters: [{method: ngram}]", {}, "adaptive"),
        ("drafters: [{method: none}]", {}, "off"),
        ("drafters: [{method: ngram}]\npolicy: {mode: off}", {}, "off"),
        ("drafters: [{method: ngram}]\npolicy: {mode: fixed:k=2}", {}, "fixed:k=2"),
        ("policy: {mode: off}", {"drafters": [{"method": "ngram"}]}, "off"),
        ("drafters: [{method: ngram}]\npolicy: {targets: null}", {}, "adaptive"),
        ("drafters: [{method: ngram}]\nsampling: rejection", {}, "fixed:k=4"),
        ("drafters: [{method: ngram}]", {"sampling": "rejection"}, "fixed:k=4"),
        ("drafters: [{method: none}]\nsampling: rejection", {}, "off"),
    ],
)
def test_a_configured_drafter_is_used_unless_the_mode_says_otherwise(
    text: str, overrides: dict[str, Any], mode: str
) -> None:
    loaded = load(text, overrides)
    assert loaded.config.policy.mode == mode
    assert (loaded.origins["policy.mode"] == "default") == ("mode" not in text)


def test_a_drafter_keeps_its_own_options() -> None:
    (drafter,) = load("drafters: [{method: ngram, max_match: 4, rule: vllm}]").config.drafters
    assert (drafter.name, drafter.method, drafter.options) == ("ngram", "ngram", {"max_match": 4, "rule": "vllm"})


def test_the_prefill_chunk_fits_a_small_step_by_default() -> None:
    assert load("limits: {batch_tokens: 64}").config.limits.prefill_chunk == 64
    assert problems("limits: {batch_tokens: 64, prefill_chunk: 65}") == [
        "c.yaml:1: limits.prefill_chunk is 65, more than limits.batch_tokens; expected at most 64"
    ]


def test_the_request_limits_of_the_config_are_those_that_requests_are_checked_by() -> None:
    assert Config().limits.request == RequestLimits()
    assert load("limits: {n: 3, body_bytes: 2048}").config.limits.request == RequestLimits(n=3, body_bytes=2048)


def test_what_is_not_built_yet_is_refused_by_name() -> None:
    assert problems(EXAMPLE) == [
        "c.yaml:8: drafters is [{'method': 'eagle3', 'name': 'head', "
        "'path': 'yuhuili/EAGLE3-LLaMA3.3-Instru..., 3 drafters of which 0 have method auto; keep one drafter, "
        "or add one {method: auto} to choose among the others",
        "c.yaml:16: server.replicas is 2, and more than one target replica is not available in this version; "
        "expected 1",
    ]


def test_the_rest_of_the_documented_example_is_accepted() -> None:
    text = EXAMPLE.replace("replicas: 2}\n", "replicas: 1}\n")
    lines = [line for line in text.splitlines() if "eagle3" not in line and "draft_model" not in line]
    text = "\n".join(line for line in lines if not line.startswith("server"))
    loaded = load(text + "\nserver: {host: 127.0.0.1, port: 8000, keys: null}")
    assert loaded.config.model.dtype == "bfloat16"
    assert loaded.config.limits.context == 32768
    assert loaded.config.drafters[0].name == "lookup"
    assert loaded.config.policy.mode == "adaptive"
    assert loaded.config.policy.targets == TargetsConfig(tpot_ms=30)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("{mode: table}", "mode table needs a profile; publish one: draftwing tune"),
        ("{mode: off, profile: p}", "mode 'off' uses no profile; remove it, or set mode table or adaptive"),
        ("{mode: fixed:k=2, targets: {tpot_ms: 9}}", "mode 'fixed:k=2' knows no targets"),
        ("{mode: adaptive, targets: {ttft_ms: 9}}", "ttft_ms is not available in this version; remove it, tpot_ms is"),
    ],
)
def test_a_setting_that_the_mode_does_not_use_is_refused(policy: str, said: str) -> None:
    assert said in problems(f"drafters: [{{method: ngram}}]\npolicy: {policy}")[0]


@pytest.mark.parametrize(
    "policy", ["{mode: adaptive}", "{mode: adaptive:k=2}", "{profile: p}", "{targets: {tpot_ms: 9}}"]
)
def test_a_policy_that_looks_at_what_was_drawn_is_refused_with_rejection(policy: str) -> None:
    (line,) = problems(f"drafters: [{{method: ngram}}]\npolicy: {policy}\nsampling: rejection")
    assert "but sampling is 'rejection', which needs mode off or fixed, not 'adaptive" in line


def test_a_profile_or_a_target_asks_for_adaptive() -> None:
    for policy in ("{profile: p}", "{targets: {tpot_ms: 20}}"):
        assert load(f"drafters: [{{method: ngram}}]\npolicy: {policy}").config.policy.mode == "adaptive"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("modle: {}", "c.yaml:1: modle is not a setting; did you mean model?"),
        ("model:\n  dtyp: x", "c.yaml:2: model.dtyp is not a setting; did you mean model.dtype?"),
        ("model: {port: 1}", "c.yaml:1: model.port is not a setting; did you mean server.port?"),
        ("dtype: x", "c.yaml:1: dtype is not a setting; did you mean model.dtype?"),
        ("policy.mode: off", "c.yaml:1: policy.mode is not a setting; write policy.mode as nested keys"),
        (
            "cache: {zzz: 1}",
            "c.yaml:1: cache.zzz is not a setting; expected one of block_tokens, gpu_fraction, tokens, prefix",
        ),
        (
            "zzz: 1",
            "c.yaml:1: zzz is not a setting; "
            "expected one of model, parallel, drafters, sampling, policy, cache, limits, server",
        ),
        (
            "policy: {targets: {tpt_ms: 3}}",
            "c.yaml:1: policy.targets.tpt_ms is not a setting; did you mean policy.targets.tpot_ms?",
        ),
        (
            "model: {dtype: float8}",
            "c.yaml:1: model.dtype is 'float8'; expected 'auto', 'float32', 'bfloat16' or 'float16'",
        ),
        (
            "model: {quantization: int3}",
            "c.yaml:1: model.quantization is 'int3'; expected null or 'int8' or 'int4'",
        ),
        ("model: {offline: yes}", "c.yaml:1: model.offline is 'yes'; expected true or false"),
        ("model: {path: ''}", "c.yaml:1: model.path is ''; expected text of 1 to 4096 characters on one line"),
        (
            "model: {revision: 123}",
            "c.yaml:1: model.revision is 123; expected null or text of 1 to 128 characters, none of them a space",
        ),
        (
            "limits: {sequences: 0}",
            "c.yaml:1: limits.sequences is 0; expected a whole number (at least 1, at most 65536)",
        ),
        (
            "limits: {queue: -1}",
            "c.yaml:1: limits.queue is -1; expected a whole number (at least 0, at most 1048576)",
        ),
        (
            "limits: {sequences: true}",
            "c.yaml:1: limits.sequences is true; expected a whole number (at least 1, at most 65536)",
        ),
        (
            "limits: {sequences: '3'}",
            "c.yaml:1: limits.sequences is '3'; expected a whole number (at least 1, at most 65536)",
        ),
        (
            "limits: {sequences: 2.0}",
            "c.yaml:1: limits.sequences is 2.0; expected a whole number (at least 1, at most 65536)",
        ),
        (
            "limits: {sequences: null}",
            "c.yaml:1: limits.sequences is null; expected a whole number (at least 1, at most 65536)",
        ),
        (
            "cache: {gpu_fraction: .nan}",
            "c.yaml:1: cache.gpu_fraction is nan; expected a number (above 0, at most 1)",
        ),
        (
            "cache: {gpu_fraction: .inf}",
            "c.yaml:1: cache.gpu_fraction is inf; expected a number (above 0, at most 1)",
        ),
        ("cache: {gpu_fraction: 0}", "c.yaml:1: cache.gpu_fraction is 0; expected a number (above 0, at most 1)"),
        ("cache: 5", "c.yaml:1: cache must be a mapping with block_tokens, gpu_fraction, tokens, prefix"),
        (
            "[1]",
            "c.yaml: a config is a mapping with model, parallel, drafters, sampling, policy, cache, limits, server",
        ),
        (
            "drafters: {method: ngram}",
            "c.yaml:1: drafters is {'method': 'ngram'}; "
            "expected a list of drafters, each a mapping with method, name and options",
        ),
        (
            "drafters:\n  - name: x",
            "c.yaml:2: drafters.0.method is missing; expected text of 1 to 128 characters, none of them a space",
        ),
        (
            "drafters:\n  - {method: ngram, name: 'a b'}",
            "c.yaml:2: drafters.0.name is 'a b'; expected text of 1 to 128 characters, none of them a space",
        ),
        (
            "drafters: [{method: ngram}, {method: none}]",
            "c.yaml:1: drafters is [{'method': 'ngram'}, {'method': 'none'}], "
            "2 drafters of which 0 have method auto; keep one drafter, or add one {method: auto} "
            "to choose among the others",
        ),
        (
            "policy: {mode: fixed:k=2}",
            "c.yaml:1: policy is {'mode': 'fixed:k=2'}, "
            "but no drafter is configured; add one to drafters, or use mode off",
        ),
        (
            "policy: {mode: 3}",
            f"c.yaml:1: policy.mode is 3; expected {FORMS}",
        ),
        (
            "policy: {mode: fast}",
            f"c.yaml:1: policy.mode is 'fast'; expected {FORMS}",
        ),
        (
            "sampling: exact",
            "c.yaml:1: sampling is 'exact'; expected 'invariant' or 'rejection'",
        ),
        (
            "drafters:\n  - {method: ngram, max_mach: 3}",
            "c.yaml:2: drafters.0.max_mach is not a setting; did you mean drafters.0.max_match?",
        ),
        (
            "drafters:\n  - {method: ngram, max_match: 1.5}",
            "c.yaml:2: drafters.0.max_match is 1.5; expected a whole number (at least 1, at most 64)",
        ),
        (
            "drafters:\n  - {method: ngarm}",
            f"c.yaml:2: drafters.0.method is 'ngarm'; did you mean 'ngram'?; expected one of {METHODS}",
        ),
        (
            "drafters:\n  - {method: eagle3, path: x, placement: {replicas: 2}}",
            "c.yaml:2: drafters.0.placement is {'replicas': 2}, but method 'eagle3' runs beside its target; a drafter "
            "with a placement has one of ngram, suffix, draft_model",
        ),
        (
            "drafters:\n  - {method: ngram, placement: {mode: enumerate}}",
            "c.yaml:2: drafters.0.placement.mode is 'enumerate'; expected 'colocated' or 'alternate'",
        ),
        ("sampling: greedy", "c.yaml:1: sampling is 'greedy'; expected 'invariant' or 'rejection'"),
    ],
)
def test_a_wrong_file_says_where_what_and_what_is_accepted(text: str, line: str) -> None:
    assert problems(text) == [line]


def test_all_problems_of_all_sources_are_told_at_once() -> None:
    lines = problems(
        "model: {dtyp: x}\nlimits:\n  n: 0",
        {"server.prot": 1, "server.port": 70000},
        {"DRAFTWING_MODEL__PAHT": "x", "DRAFTWING_LIMITS__QUEUE": "many"},
    )
    assert lines == [
        "c.yaml:1: model.dtyp is not a setting; did you mean model.dtype?",
        "environment: DRAFTWING_MODEL__PAHT is not a setting; did you mean DRAFTWING_MODEL__PATH?",
        "server.prot is not a setting; did you mean server.port?",
        "DRAFTWING_LIMITS__QUEUE: limits.queue is 'many'; expected a whole number (at least 0, at most 1048576)",
        "c.yaml:3: limits.n is 0; expected a whole number (at least 1, at most 65536)",
        "server.port is 70000; expected a whole number (at least 1, at most 65535)",
    ]


def test_a_problem_is_one_short_line_whatever_the_value() -> None:
    (line,) = problems(overrides={"model.dtype": "x\n" * 100_000})
    assert len(line) < 200
    (line,) = problems(overrides={"k" * 100_000: 1})
    assert len(line) < 300
    lines = problems("limits:\n" + "".join(f"  k{i}: 1\n" for i in range(MAX_PROBLEMS + 5)))
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1] == "and 5 more"


@pytest.mark.parametrize(
    "value", ["swordfish123", ["swordfish"], ["swordfish123", 5], [["swordfish123"]], {"swordfish123": 1}, []]
)
def test_a_secret_is_never_in_a_message(value: object) -> None:
    if value != ["swordfish"]:
        text = "\n".join(problems(overrides={"server.keys": value}))
        assert "swordfish" not in text
        assert HIDDEN in text
    assert "swordfish" not in repr(load(overrides={"server.keys": ["swordfish123"]}))
    assert "swordfish" not in "\n".join(problems(overrides={"server": ["swordfish123"]}))


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("DRAFTWING_MODEL__PATH", "some/model", "path", "some/model"),
        ("DRAFTWING_MODEL__NAME", "123", "name", "123"),
        ("DRAFTWING_MODEL__REVISION", "true", "revision", "true"),
        ("DRAFTWING_MODEL__REVISION", "null", "revision", None),
        ("DRAFTWING_MODEL__OFFLINE", "true", "offline", True),
        ("DRAFTWING_MODEL__CPU_THREADS", "3", "cpu_threads", 3),
        ("DRAFTWING_MODEL__CPU_THREADS", "null", "cpu_threads", None),
        ("DRAFTWING_MODEL__ALIASES", "[a, b]", "aliases", ["a", "b"]),
        ("DRAFTWING_MODEL__DTYPE", "float32", "dtype", "float32"),
    ],
)
def test_a_variable_is_read_by_the_type_of_its_setting(name: str, text: str, key: str, value: object) -> None:
    file = "model: {revision: main, cpu_threads: 2}"
    assert getattr(load(file, environ={name: text}).config.model, key) == value


def test_lists_can_be_set_by_a_variable() -> None:
    loaded = load(environ={"DRAFTWING_DRAFTERS": "[{method: ngram, max_match: 2}]"})
    assert loaded.config.drafters[0].options == {"max_match": 2}
    assert loaded.config.policy.mode == "adaptive"


@pytest.mark.parametrize(
    "name",
    [
        "DRAFTWING_REQUIRE_ALL",
        "DRAFTWING_GOLDENS",
        "DRAFTWING_CACHE",
        "DRAFTWING_SERVICE_HOST",
        "DRAFTWING_GATEWAY_SERVICE_PORT_HTTP",
        "DRAFTWING_PORT",
        "DRAFTWING_PORT_8000_TCP_ADDR",
        "OTHER_MODEL__PAHT",
    ],
)
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert set(load(environ={name: "tcp://10.0.0.1:8000"}).origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DRAFTWING_MODEL_PATH", "did you mean DRAFTWING_MODEL__PATH?"),
        ("DRAFTWING_SERVER__PROT", "did you mean DRAFTWING_SERVER__PORT?"),
        ("DRAFTWING_MODEL", "`draftwing config show` lists the settings"),
        ("DRAFTWING_", "`draftwing config show` lists the settings"),
        ("DRAFTWING_DRAFTERS__0__METHOD", "`draftwing config show` lists the settings"),
    ],
)
def test_an_unknown_variable_is_an_error(name: str, hint: str) -> None:
    assert problems(environ={name: "x"}) == [f"environment: {name} is not a setting; {hint}"]


def test_a_variable_that_is_not_yaml_names_itself() -> None:
    (line,) = problems(environ={"DRAFTWING_LIMITS__N": "[1"})
    assert line.startswith("DRAFTWING_LIMITS__N:1: not valid YAML")


def test_parse_setting_names_an_unknown_key() -> None:
    assert parse_setting("limits.n", "3") == 3
    with pytest.raises(ConfigError, match=r"limits\.m is not a setting"):
        parse_setting("limits.m", "3")
    with pytest.raises(ConfigError, match="policy is not a setting; write policy as nested keys"):
        parse_setting("policy", "{mode: off}")


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"model: \xff"), "is not UTF-8 text (byte 7)"),
        (lambda path: path.write_bytes(b"#" * 2_000_000), "a config has at most 1048576"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(make: Any, cause: str) -> None:
    make(Path("c.yaml"))
    with pytest.raises(ConfigError) as caught:
        load_config(Path("c.yaml"), None, {})
    assert "c.yaml" in str(caught.value)
    assert cause in str(caught.value)


def test_a_model_is_asked_for_only_where_it_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"model\.path is not set; give --model"):
        require_model(load().config)
    require_model(load("model: {path: x}").config)


def test_the_served_name_is_the_last_part_of_the_path() -> None:
    for path, name in (("a/b/Model-1/", "Model-1"), ("org/model", "model"), ("x/y.gguf", "y")):
        assert load(overrides={"model.path": path}).config.model.served_name == name
    assert load("model: {path: a/b, name: c}").config.model.served_name == "c"


def test_a_config_made_in_code_is_checked_too() -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"model": {"pth": "x"}})
    with pytest.raises(ValidationError):
        Config.model_validate({"parallel": {"pipeline": 2}})
    with pytest.raises(ValidationError, match="frozen"):
        Config().limits.n = 3  # type: ignore[misc]


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*settings(), "model", "policy", "policy.targets", "x.y"]), DATA, max_size=4))
@profile(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_data_is_a_config_or_a_config_error(overrides: dict[str, Any]) -> None:
    try:
        load_config(None, overrides, {})
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines
        assert all(len(line) < 400 for line in lines)


def test_a_config_survives_the_way_to_another_process() -> None:
    config = load("model: {path: x}\ndrafters: [{method: ngram, max_match: 2}]\nlimits: {batch_tokens: 64}").config
    assert Config.model_validate_json(config.model_dump_json()) == config
