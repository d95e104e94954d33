"""Every input that a serious server must refuse, with its status, the field it names and its code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI

from draftwing.limits import RequestLimits
from draftwing_serve.gateway import GatewayCore
from draftwing_serve.http_api import make_app
from tests.unit.serve.fakes import CONTEXT, FakeEngine, make_client, make_core

OK = {"prompt": "hello", "max_tokens": 4}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
LIMITS = RequestLimits(body_bytes=100_000, prompts=4, n=4, messages=8)
BAD = "invalid_request_error"
LONG = "context_length_exceeded"
NOT_BUILT = "unsupported_parameter"


def completion(**fields: Any) -> tuple[str, Any]:
    return "/v1/completions", OK | fields


def chat(**fields: Any) -> tuple[str, Any]:
    return "/v1/chat/completions", CHAT | fields


def turn(**fields: Any) -> tuple[str, Any]:
    return chat(messages=[{"role": "user", "content": "hi"} | fields])


def raw(text: str | bytes) -> tuple[str, Any]:
    return "/v1/completions", text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


CASES: dict[str, tuple[tuple[str, Any], str | None, str]] = {
    # the prompt
    "no prompt": (("/v1/completions", {"max_tokens": 4}), "prompt", BAD),
    "prompt null": (completion(prompt=None), "prompt", BAD),
    "prompt empty": (completion(prompt=""), "prompt", BAD),
    "prompts empty": (completion(prompt=[]), "prompt", BAD),
    "one of the prompts empty": (completion(prompt=["a", ""]), "prompt", BAD),
    "ids empty": (completion(prompt=[[]]), "prompt", BAD),
    "prompt a number": (completion(prompt=5), "prompt", BAD),
    "prompt an object": (completion(prompt={"a": 1}), "prompt", BAD),
    "strings and ids mixed": (completion(prompt=["a", 1]), "prompt", BAD),
    "id negative": (completion(prompt=[1, -1]), "prompt", BAD),
    "id beyond the vocabulary": (completion(prompt=[1, 300]), "prompt", BAD),
    "id a boolean": (completion(prompt=[1, True]), "prompt", BAD),
    "id a float": (completion(prompt=[1, 2.0]), "prompt", BAD),
    "id huge": (raw('{"prompt": [1' + "0" * 5000 + "]}"), None, BAD),
    "id of 20 digits": (completion(prompt=[10**19]), "prompt", BAD),
    "too many prompts": (completion(prompt=["a"] * 5), "prompt", BAD),
    "prompt over the context": (completion(prompt="a" * CONTEXT), "prompt", LONG),
    "no room for a token": (completion(prompt=[1] * CONTEXT, max_tokens=None), "prompt", LONG),
    "prompt and max_tokens over the context": (completion(max_tokens=CONTEXT), "prompt", LONG),
    # the messages
    "no messages": (("/v1/chat/completions", {}), "messages", BAD),
    "messages empty": (chat(messages=[]), "messages", BAD),
    "messages a string": (chat(messages="hi"), "messages", BAD),
    "too many messages": (chat(messages=CHAT["messages"] * 9), "messages", BAD),
    "unknown role": (turn(role="wizard"), "messages.0.role", BAD),
    "content missing": (chat(messages=[{"role": "user"}]), "messages.0.content", BAD),
    "content null": (turn(content=None), "messages.0.content", BAD),
    "content a number": (turn(content=3), "messages.0.content", BAD),
    "content without parts": (turn(content=[]), "messages.0.content", BAD),
    "content an image": (turn(content=[{"type": "image_url", "image_url": {"url": "x"}}]), "messages.0.content", BAD),
    "content part without text": (turn(content=[{"type": "text"}]), "messages.0.content", BAD),
    "chat over the context": (turn(content="a" * CONTEXT), "messages", LONG),
    "template over the context": (turn(content="a" * (CONTEXT - 8)), "messages", LONG),
    "tool calls": (turn(role="assistant", tool_calls=[{"id": "1"}]), "messages.tool_calls", NOT_BUILT),
    # lengths and counts
    "max_tokens zero": (completion(max_tokens=0), "max_tokens", BAD),
    "max_tokens negative": (completion(max_tokens=-1), "max_tokens", BAD),
    "max_tokens huge": (completion(max_tokens=2**40), "max_tokens", BAD),
    "max_tokens a boolean": (completion(max_tokens=True), "max_tokens", BAD),
    "max_tokens a float": (completion(max_tokens=4.0), "max_tokens", BAD),
    "max_tokens a string": (completion(max_tokens="4"), "max_tokens", BAD),
    "max_completion_tokens zero": (chat(max_completion_tokens=0), "max_completion_tokens", BAD),
    "min_tokens negative": (completion(min_tokens=-1), "min_tokens", BAD),
    "min_tokens over max_tokens": (completion(min_tokens=5), "min_tokens", BAD),
    "n zero": (completion(n=0), "n", BAD),
    "n negative": (completion(n=-2), "n", BAD),
    "n huge": (completion(n=10**9), "n", BAD),
    "n with greedy": (completion(n=2, temperature=0), "n", BAD),
    "best_of": (completion(best_of=3), "best_of", NOT_BUILT),
    # sampling
    "temperature negative": (completion(temperature=-0.1), "temperature", BAD),
    "temperature over 2": (completion(temperature=2.1), "temperature", BAD),
    "temperature a boolean": (completion(temperature=True), "temperature", BAD),
    "temperature NaN": (raw('{"prompt": "a", "temperature": NaN}'), None, BAD),
    "temperature Infinity": (raw('{"prompt": "a", "temperature": Infinity}'), None, BAD),
    "temperature overflows": (raw('{"prompt": "a", "temperature": 1e999}'), None, BAD),
    "top_p zero": (completion(top_p=0), "top_p", BAD),
    "top_p over 1": (completion(top_p=1.01), "top_p", BAD),
    "top_k negative": (completion(top_k=-1), "top_k", BAD),
    "top_k a float": (completion(top_k=1.5), "top_k", BAD),
    "min_p negative": (completion(min_p=-0.1), "min_p", BAD),
    "min_p over 1": (completion(min_p=1.1), "min_p", BAD),
    "repetition_penalty zero": (completion(repetition_penalty=0), "repetition_penalty", BAD),
    "repetition_penalty huge": (completion(repetition_penalty=1e30), "repetition_penalty", BAD),
    "frequency_penalty": (completion(frequency_penalty=2.5), "frequency_penalty", BAD),
    "presence_penalty": (completion(presence_penalty=-2.5), "presence_penalty", BAD),
    "seed over 64 bits": (completion(seed=2**64), "seed", BAD),
    "seed under int64": (completion(seed=-(2**63) - 1), "seed", BAD),
    "seed a float": (completion(seed=1.0), "seed", BAD),
    "logit_bias key": (completion(logit_bias={"the": 1}), "logit_bias", BAD),
    "logit_bias id": (completion(logit_bias={"300": 1}), "logit_bias", BAD),
    "logit_bias value": (completion(logit_bias={"3": 101}), "logit_bias.3", BAD),
    "logit_bias boolean": (completion(logit_bias={"3": True}), "logit_bias", BAD),
    "logit_bias twice": (completion(logit_bias={"3": 1, "03": 1}), "logit_bias", BAD),
    "logit_bias a list": (completion(logit_bias=[1]), "logit_bias", BAD),
    "speculation": (completion(speculation="maybe"), "speculation", BAD),
    # stops
    "stop empty": (completion(stop=""), "stop.0", BAD),
    "stop too many": (completion(stop=list("abcde")), "stop", BAD),
    "stop long": (completion(stop="a" * 1000), "stop.0", BAD),
    "stop a number": (completion(stop=[1]), "stop", BAD),
    "stop_token_ids": (completion(stop_token_ids=[300]), "stop_token_ids.0", BAD),
    "stop_token_ids boolean": (completion(stop_token_ids=[True]), "stop_token_ids.0", BAD),
    # logprobs
    "logprobs negative": (completion(logprobs=-1), "logprobs", BAD),
    "logprobs over the limit": (completion(logprobs=21), "logprobs", BAD),
    "logprobs boolean": (completion(logprobs=True), "logprobs", BAD),
    "logprobs with echo": (completion(logprobs=1, echo=True), "echo", NOT_BUILT),
    "chat logprobs a number": (chat(logprobs=3), "logprobs", BAD),
    "top_logprobs without logprobs": (chat(top_logprobs=3), "top_logprobs", BAD),
    "top_logprobs over the limit": (chat(logprobs=True, top_logprobs=21), "top_logprobs", BAD),
    # what is not built
    "response_format": (chat(response_format={"type": "json_object"}), "response_format", NOT_BUILT),
    "tools": (chat(tools=[{"type": "function"}]), "tools", NOT_BUILT),
    "tool_choice": (chat(tool_choice="required"), "tool_choice", NOT_BUILT),
    "suffix": (completion(suffix="end"), "suffix", NOT_BUILT),
    "a template of the request's own": (chat(chat_template="{{ x }}"), "chat_template", NOT_BUILT),
    "template arguments": (chat(chat_template_kwargs={"tokenize": True}), "chat_template_kwargs", NOT_BUILT),
    "guided_json": (completion(guided_json={}), "guided_json", NOT_BUILT),
    "audio": (chat(audio={"voice": "x"}), "audio", NOT_BUILT),
    # the rest of the request
    "stream_options without stream": (completion(stream_options={}), "stream_options", BAD),
    "stream a string": (completion(stream="yes"), "stream", BAD),
    "stream_options a list": (completion(stream=True, stream_options=[1]), "stream_options", BAD),
    "request_id empty": (completion(request_id=""), "request_id", BAD),
    "request_id long": (completion(request_id="a" * 129), "request_id", BAD),
    "model a number": (completion(model=3), "model", BAD),
    "model unknown": (completion(model="gpt-9"), "model", "model_not_found"),
    "detokenize an id": (("/detokenize", {"tokens": [300]}), "tokens", BAD),
    "tokenize nothing": (("/tokenize", {}), "prompt", BAD),
    # the JSON
    "no JSON": (raw("hello"), None, BAD),
    "empty body": (raw(""), None, BAD),
    "an array": (raw("[1]"), None, BAD),
    "cut off": (raw('{"prompt": "a"'), None, BAD),
    "key twice": (raw('{"prompt": "a", "prompt": "b"}'), "prompt", BAD),
    "nested deeply": (raw('{"prompt": "a", "x": ' + "[" * 64 + "]" * 64 + "}"), None, BAD),
    "nested beyond the stack": (raw('{"x": ' + "[" * 40_000 + "]" * 40_000 + "}"), None, BAD),
    "huge integer": (raw('{"prompt": "a", "seed": ' + "9" * 5000 + "}"), None, BAD),
    "lone surrogate": (raw('{"prompt": "a\\ud800"}'), None, BAD),
    "lone surrogate in a key": (raw('{"prompt": "a", "\\udfff": 1}'), None, BAD),
    "surrogate bytes": (raw('{"prompt": "\ud800"}'), None, BAD),
    "NUL": (raw('{"prompt": "a\\u0000"}'), None, BAD),
    "not UTF-8": (raw(b'{"prompt": "\xff"}'), None, BAD),
    "UTF-16": (raw('{"prompt": "a"}'.encode("utf-16")), None, BAD),
}
STATUS = {"model_not_found": 404}


@pytest.fixture(scope="module")
def core() -> GatewayCore:
    return make_core(FakeEngine(fail="a bad request came through"), limits=LIMITS)


@pytest.fixture(scope="module")
def app(core: GatewayCore) -> FastAPI:
    return make_app(core)


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str, core: GatewayCore, app: FastAPI, run: Callable[..., Any]) -> None:
    (path, body), param, code = CASES[name]

    async def ask() -> Any:
        async with make_client(core, app) as client:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.post(path, content=content, headers={"content-type": "application/json"})

    response = run(ask())
    error = response.json()["error"]
    assert response.status_code == STATUS.get(code, 400), error
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code), error
    assert error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) <= 1000
    assert "Error" not in error["message"]
    assert "object at 0x" not in error["message"]


def test_context_message_is_what_clients_search_for(run: Callable[..., Any]) -> None:
    async def ask() -> Any:
        async with make_client(make_core()) as client:
            return await client.post("/v1/completions", json=OK | {"prompt": "a" * 300})

    message = run(ask()).json()["error"]["message"]
    assert message.startswith("This model's maximum context length is 256 tokens")
    assert "this model's maximum context length is" in message.lower()
    assert "301" in message


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ({"content-type": ""}, 415, "unsupported_media_type"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"content-type": "application/json", "host": "evil/?#"}, 400, "invalid_request_error"),
        ({"content-type": "application/json", "host": "a b"}, 400, "invalid_request_error"),
        ({"content-type": "application/json; charset=utf-8"}, 200, None),
    ],
)
def test_headers(headers: dict[str, str], status: int, code: str | None, run: Callable[..., Any]) -> None:
    async def ask() -> Any:
        async with make_client(make_core()) as client:
            return await client.post("/v1/completions", content=json.dumps(OK), headers=headers)

    response = run(ask())
    assert response.status_code == status
    if code is not None:
        assert response.json()["error"]["code"] == code


@pytest.mark.parametrize("declared", [True, False])
def test_large_body(declared: bool, run: Callable[..., Any]) -> None:
    body = json.dumps(OK | {"prompt": "a" * 200_000}).encode()

    async def chunks() -> Any:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async def ask() -> Any:
        async with make_client(make_core(limits=LIMITS)) as client:
            headers = {"content-type": "application/json"}
            return await client.post("/v1/completions", content=body if declared else chunks(), headers=headers)

    response = run(ask())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_slow_body(run: Callable[..., Any]) -> None:
    """A body that never ends is given up."""

    async def ask() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        first = True

        async def receive() -> dict[str, Any]:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": b"{", "more_body": True}
            await asyncio.Event().wait()
            return {}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "http_version": "1.1",
            "headers": [(b"content-type", b"application/json")], "scheme": "http", "server": ("test", 80),
        }  # fmt: skip
        await make_app(make_core(body_timeout_s=0.05))(scope, receive, send)
        return sent

    assert run(ask())[0]["status"] == 408


def test_messages_stay_short(run: Callable[..., Any]) -> None:
    """Many problems with large inputs give one bounded answer."""
    body = {"messages": [{"role": "x" * 10_000, "content": ["y" * 1000] * 5}] * 8}

    async def ask() -> Any:
        async with make_client(make_core()) as client:
            return await client.post("/v1/chat/completions", json=body)

    response = run(ask())
    assert len(response.content) < 2000
    assert response.json()["error"]["message"].endswith("; and 11 more")
