"""YAML without surprises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.config_yaml import parse_yaml
from draftwing.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("<<", "<<"),
        ("fixed:k=4", "fixed:k=4"),
        ("'3'", "3"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("1e5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        ("1.2.3", "1.2.3"),
        ("[a, {b: 1}]", ["a", {"b": 1}]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    data, _ = parse_yaml(f"a: {text}", "f")
    assert data == {"a": value}
    assert type(data["a"]) is type(value)


def test_nan_is_read_as_a_number() -> None:
    assert math.isnan(parse_yaml(".nan", "f")[0])


def test_every_key_and_entry_has_its_line() -> None:
    _, lines = parse_yaml("a: 1\nb:\n  c: x\n  d:\n    - 1\n    - {e: 2}\n", "f")
    assert lines == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "d"): 4,
        ("b", "d", 0): 5,
        ("b", "d", 1): 6,
        ("b", "d", 1, "e"): 6,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f:3: a is set twice, first in line 1; keep one"),
        ("a:\n  b: 1\n  b: 1", "f:3: a.b is set twice, first in line 2; keep one"),
        ("- {b: 1, b: 2}", "f:1: 0.b is set twice, first in line 1; keep one"),
        ("a: &x 1\nb: *x", "f:2: aliases (*name) are not accepted; write the value out"),
        ("1: a", "f:1: a key must be text"),
        ("? [a]\n: b", "f:1: a key must be text"),
        ("a: !!python/object:os.system x", "f:1: the tag 'tag:yaml.org,2002:python/object:os.system' is not accepted"),
        ("a: !!set {b}", "f:1: the tag 'tag:yaml.org,2002:set' is not accepted"),
        ("a: !!binary aGk=", "f:1: the tag 'tag:yaml.org,2002:binary' is not accepted"),
        ("a: !x [1]", "f:1: the tag '!x' is not accepted"),
        ("a: !!int x", "f:1: not a value of type int"),
        ("a: !!float ''", "f:1: not a value of type float"),
        ("a: !!bool maybe", "f:1: not a value of type bool"),
        ("a: " + "9" * 5000, "f:1: not a value of type int"),
        ("a:\n" + "[" * 30, "f:2: nested deeper than 20 levels"),
        ("a: 1\n---\nb: 2", "f:2: not valid YAML"),
        ("a: b: c", "f:1: not valid YAML"),
        ("a: 1\n\tb: 2", "f:2: not valid YAML"),
        ("a: [1", "f:1: not valid YAML"),
        ("a: 1\nb: \x07", "f:2: the character U+0007 is not allowed in YAML"),
        ("a: \ud800", "f:1: the character U+D800 is not allowed in YAML"),
        ("#" * (2**20 + 1), "f: 1048577 characters; a config has at most 1048576"),
    ],
)
def test_what_hides_its_meaning_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@#,? \n\t01.~<", max_size=40) | st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_text_is_data_or_one_line_of_error(text: str) -> None:
    try:
        data = parse_yaml(text, "f")[0]
    except ConfigError as error:
        data = str(error)
        assert_one_line(data)
    assert data is None or isinstance(data, (str, int, float, bool, list, dict))


def assert_one_line(message: str) -> None:
    assert message.startswith("f:")
    assert len(message.splitlines()) == 1
