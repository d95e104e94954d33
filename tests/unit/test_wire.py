"""The wire: what goes in comes out, and bytes that are no message end in WireError, nothing else."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.core import (
    AcceptanceSummary,
    Emission,
    EngineCounters,
    FinishReason,
    Request,
    SamplingParams,
    TokenLogprob,
)
from draftwing.parallel import messages, wire
from draftwing.parallel.messages import Events, Message, Ping, Pong, RankStats, Refused, Submit
from draftwing.parallel.wire import ProtocolMismatch, WireError, decode, encode

quick = settings(max_examples=60, deadline=None)
i64 = st.integers(-(2**63), 2**63 - 1)
tokens = st.lists(st.integers(0, 2**31), max_size=20)
floats = st.floats(allow_nan=False)
ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
finish: st.SearchStrategy[FinishReason | None] = st.sampled_from([None, "stop", "length", "cancelled", "error"])

params = st.builds(
    SamplingParams,
    max_tokens=i64,
    min_tokens=i64,
    temperature=floats,
    top_k=i64,
    top_p=floats,
    min_p=floats,
    repetition_penalty=floats,
    frequency_penalty=floats,
    presence_penalty=floats,
    logit_bias=st.dictionaries(i64, floats, max_size=5),
    seed=st.integers(0, 2**64 - 1),
    stop=st.lists(texts, max_size=3).map(tuple),
    stop_token_ids=st.lists(i64, max_size=3).map(tuple),
    logprobs=st.none() | i64,
)
requests = st.builds(Request, id=ids, prompt_ids=tokens, params=params, generated_ids=tokens)
summaries = st.builds(AcceptanceSummary, drafted=tokens, accepted=tokens, max_depth=i64, verifies=i64)
logprobs = st.builds(
    TokenLogprob, token=i64, logprob=st.floats(), alternatives=st.lists(st.tuples(i64, floats), max_size=3)
).filter(lambda value: value.logprob == value.logprob)
emissions = st.builds(
    Emission,
    request_id=ids,
    token_ids=tokens,
    text=texts,
    logprobs=st.none() | st.lists(logprobs, max_size=3),
    finish_reason=finish,
    stop_reason=st.none() | texts | i64,
    error=st.none() | texts,
    summary=st.none() | summaries,
)
counters = st.builds(EngineCounters, steps=i64, accepted_per_depth=tokens, finished=st.dictionaries(texts, i64))
stats = st.builds(RankStats, pid=i64, kv_use=floats, last_step_age_s=st.none() | floats, counters=counters)
opened = st.builds(messages.Opened, i64, requests)
committed = st.builds(messages.Committed, ids, i64, i64, tokens)
wanted = st.builds(messages.Wanted, ids, i64, i64, tokens, i64)
drafts = st.builds(messages.RemoteDraft, ids, i64, i64, tokens, tokens, st.none() | st.lists(floats, max_size=5))
any_message: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        messages.DraftWork,
        st.lists(opened, max_size=3),
        st.lists(committed, max_size=3),
        st.lists(ids, max_size=3),
        st.lists(wanted, max_size=3),
    ),
    st.builds(messages.DraftsMade, st.lists(drafts, max_size=3), st.lists(ids, max_size=3), i64),
    st.builds(Submit, requests),
    st.builds(messages.Cancel, ids),
    st.builds(Ping, i64),
    st.just(messages.Drain()),
    st.just(messages.Shutdown()),
    st.builds(Events, st.lists(emissions, max_size=4)),
    st.builds(Refused, request_id=ids, message=texts, param=st.none() | texts, retry_after_s=i64),
    st.builds(messages.Lost),
    st.just(messages.Beat()),
    st.builds(Pong, i64, stats),
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=30,
)


def framed(kind: object, fields: object, protocol: object = wire.PROTOCOL) -> bytes:
    frame: bytes = msgpack.packb([protocol, kind, fields])
    return frame


def fields_of(message: Message) -> list[object]:
    _, _, fields = msgpack.unpackb(encode(message), strict_map_key=False)
    assert isinstance(fields, list)
    return fields


@quick
@given(any_message)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    assert decode(encode(message)) == message


@quick
@given(st.binary(max_size=200))
def test_garbage_is_a_wire_error(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode(frame)


@quick
@given(any_message, st.data())
def test_a_damaged_frame_decodes_or_is_a_wire_error(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        decode(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


@quick
@given(st.integers(-1, 12) | plain, plain)
def test_well_formed_nonsense_is_a_wire_error_or_a_valid_message(kind: object, fields: object) -> None:
    try:
        message = decode(framed(kind, fields))
    except WireError:
        return
    assert fields_of(message) == fields


def test_extremes_of_integers_survive() -> None:
    request = Request("r", [2**63 - 1, 0], SamplingParams(seed=2**64 - 1, top_k=-(2**63)))
    assert decode(encode(Submit(request))) == Submit(request)


def test_numpy_scalars_are_sent_as_numbers() -> None:
    emission = Emission("r", [np.int64(3)], logprobs=[TokenLogprob(np.int32(3), np.float32(-0.5))])  # type: ignore[list-item, arg-type]
    received = decode(encode(Events([emission])))
    assert received == Events([Emission("r", [3], logprobs=[TokenLogprob(3, -0.5)])])


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("prompt_ids", [1, True], "Request.prompt_ids"),
        ("prompt_ids", [1, 2.0], "Request.prompt_ids"),
        ("prompt_ids", [2**63], "Request.prompt_ids"),
        ("prompt_ids", "12", "Request.prompt_ids"),
        ("choice", True, "Request.choice"),
        ("id", "", "Request.id"),
        ("id", "x" * 1000, "Request.id"),
        ("params", None, "Request.params"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, named: str) -> None:
    fields = fields_of(Submit(Request("r", [1], SamplingParams())))
    request = fields[0]
    assert isinstance(request, list)
    request[[f.name for f in dataclasses.fields(Request)].index(field)] = value
    with pytest.raises(WireError, match=named):
        decode(framed(0, fields))


def test_seed_is_unsigned_and_other_integers_signed() -> None:
    with pytest.raises(WireError, match="unsigned"):
        decode(encode(Submit(Request("r", [1], SamplingParams(seed=-1)))))
    with pytest.raises(WireError, match="signed 64-bit"):
        decode(encode(Ping(2**63)))


def test_missing_and_additional_fields_are_errors() -> None:
    fields = fields_of(Ping(1))
    with pytest.raises(WireError, match="Ping is a list of 1 fields"):
        decode(framed(2, [*fields, 0]))
    with pytest.raises(WireError, match="Ping is a list of 1 fields"):
        decode(framed(2, []))


def test_an_unknown_choice_is_an_error_that_lists_the_known() -> None:
    fields = fields_of(Events([Emission("r", [1])]))
    emission = fields[0][0]  # type: ignore[index]
    emission[4] = "tired"
    with pytest.raises(WireError, match=r"Emission\.finish_reason: expected one of stop, length, cancelled, error"):
        decode(framed(5, fields))


def test_another_protocol_is_refused_by_name() -> None:
    with pytest.raises(ProtocolMismatch, match="other/9"):
        decode(framed(8, [], protocol="other/9"))


def test_what_cannot_be_sent_is_a_wire_error() -> None:
    for request in (
        Request("r", [2**64], SamplingParams()),
        Request("r", [1], SamplingParams(stop=(object(),))),  # type: ignore[arg-type]
        Request("\ud800", [1], SamplingParams()),
        Request("r", [1], SamplingParams(stop=("x" * wire.MAX_FRAME_BYTES,))),
    ):
        with pytest.raises(WireError):
            encode(Submit(request))


@pytest.mark.parametrize(
    "frame",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion
        b"\x91" * 100_000,  # nested too deep
        b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes
        b"\x00" * (wire.MAX_FRAME_BYTES + 1),
        msgpack.packb([wire.PROTOCOL, 0, [[msgpack.Timestamp(1), msgpack.ExtType(5, b"x")]]]),
    ],
    ids=["array", "map", "deep", "bytes", "large", "ext"],
)
def test_hostile_frames_cost_nothing(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode(frame)
