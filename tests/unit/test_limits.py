"""Sampling parameters out of range are refused with their dotted field; none is clamped."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.core import SamplingParams
from draftwing.errors import RequestError
from draftwing.limits import SHOWN_CHARS, RequestLimits, check_params, shown

V = 100
LIMITS = RequestLimits()
NAN, INF = math.nan, math.inf


def test_defaults_and_every_edge_are_accepted() -> None:
    check_params(SamplingParams(), V)
    check_params(
        SamplingParams(
            max_tokens=1,
            min_tokens=1,
            temperature=2.0,
            top_k=10**6,
            top_p=1e-9,
            min_p=1.0,
            repetition_penalty=0.01,
            frequency_penalty=-2.0,
            presence_penalty=2.0,
            logit_bias={0: -100.0, V - 1: 100.0},
            seed=2**64 - 1,
            stop=("x" * LIMITS.stop_chars,) * LIMITS.stop,
            stop_token_ids=(0, V - 1),
            logprobs=LIMITS.logprobs,
        ),
        V,
    )
    check_params(SamplingParams(temperature=0, top_k=0, logprobs=0, seed=0), V)


@pytest.mark.parametrize(
    ("field", "values", "param"),
    [
        ("max_tokens", [0, -1, 2**31, 10**400, 1.5, True, "1", None], "max_tokens"),
        ("min_tokens", [-1, 17, 0.5, False], "min_tokens"),
        ("temperature", [NAN, INF, -INF, -0.1, 2.1, 1e-7, -1e-300, "1", True, None], "temperature"),
        ("top_k", [-1, 2.0, NAN, True], "top_k"),
        ("top_p", [0, 0.0, -0.1, 1.1, NAN, INF, True], "top_p"),
        ("min_p", [-0.1, 1.1, NAN, INF], "min_p"),
        ("repetition_penalty", [0, -1, INF, NAN, 101, 0.001], "repetition_penalty"),
        ("frequency_penalty", [-2.1, 2.1, NAN, INF], "frequency_penalty"),
        ("presence_penalty", [-2.1, 2.1, NAN, -INF], "presence_penalty"),
        ("seed", [-1, 2**64, 1.0, NAN, True], "seed"),
        ("logprobs", [-1, LIMITS.logprobs + 1, 1.0, True], "logprobs"),
        ("stop", [("a",) * (LIMITS.stop + 1)], "stop"),
        ("stop", [("",), ("x" * (LIMITS.stop_chars + 1),), (3,)], "stop.0"),
        ("stop", [("ok", "")], "stop.1"),
        ("stop_token_ids", [(-1,), (V,), (True,), (1.0,)], "stop_token_ids.0"),
        ("stop_token_ids", [(1,) * (LIMITS.stop_token_ids + 1)], "stop_token_ids"),
        ("logit_bias", [{-1: 0.0}, {V: 0.0}, {"1": 0.0}, {True: 0.0}, {1.0: 0.0}], "logit_bias"),
        ("logit_bias", [{1: 100.1}, {1: NAN}, {1: -INF}, {1: "x"}, {1: None}], "logit_bias.1"),
        ("logit_bias", [dict.fromkeys(range(LIMITS.logit_bias + 1), 0.0)], "logit_bias"),
    ],
)
def test_what_is_out_of_range_names_its_field_value_and_range(field: str, values: list[Any], param: str) -> None:
    for value in values:
        with pytest.raises(RequestError) as caught:
            check_params(replace(SamplingParams(), **{field: value}), V)
        assert caught.value.param == param
        assert str(caught.value).startswith(f"{param} ")
        assert "; expected " in str(caught.value)
        assert len(str(caught.value)) < SHOWN_CHARS + 120


def test_the_message_is_one_a_client_can_act_on() -> None:
    with pytest.raises(RequestError) as caught:
        check_params(SamplingParams(temperature=NAN), V)
    assert str(caught.value) == "temperature is nan; expected 0 or a number from 1e-06 to 2"
    with pytest.raises(RequestError) as caught:
        check_params(SamplingParams(max_tokens=4, min_tokens=5), V)
    assert str(caught.value) == "min_tokens is 5; expected a whole number from 0 to max_tokens, 4"


def test_the_operators_limits_are_the_ones_that_count() -> None:
    params = SamplingParams(stop=("a", "b"), logprobs=30)
    check_params(params, V, RequestLimits(stop=2, logprobs=30))
    with pytest.raises(RequestError, match="stop has 2 entries; expected at most 1"):
        check_params(params, V, RequestLimits(stop=1, logprobs=30))


def test_a_refused_value_is_shown_on_one_short_printable_line() -> None:
    for value in ("x" * 10**6, "\n\x1b[31m\ud800\u202e", [["a" * 99] * 99] * 99, 10**5000, [10**5000]):
        text = shown(value)
        assert len(text) <= SHOWN_CHARS
        assert text.isprintable()
        assert text.encode()


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in fields(SamplingParams) if field.name not in ("stop", "logit_bias")]),
        VALUES,
        max_size=3,
    ),
    st.dictionaries(VALUES, VALUES, max_size=3),
    st.lists(VALUES, max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_nothing_but_a_request_error_comes_out(values: dict[str, Any], bias: dict[Any, Any], stop: list[Any]) -> None:
    values.pop("stop_token_ids", None)
    with suppress(RequestError):
        check_params(SamplingParams(**values, logit_bias=bias, stop=tuple(stop)), V)
        assert all(math.isfinite(value) for value in values.values() if isinstance(value, float))
