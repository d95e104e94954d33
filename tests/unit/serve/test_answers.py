"""What clients get back: bodies, chunks, usage, log-probabilities, headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from draftwing_serve.gateway import GatewayCore
from tests.unit.serve.fakes import CONTEXT, OUTPUT, FakeEngine, make_client, make_core

Run = Callable[..., Any]
CHAT = [{"role": "user", "content": "hi"}]
USAGE = {
    "prompt_tokens": 6,
    "completion_tokens": 10,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def ask(run: Run, core: GatewayCore, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    async def work() -> httpx.Response:
        async with make_client(core) as client:
            return await client.post(path, json=body, headers=headers)

    response: httpx.Response = run(work())
    return response


def complete(run: Run, core: GatewayCore | None = None, **fields: Any) -> httpx.Response:
    return ask(run, core or make_core(), "/v1/completions", {"prompt": "hello", "max_tokens": 10} | fields)


def chat(run: Run, core: GatewayCore | None = None, **fields: Any) -> httpx.Response:
    return ask(run, core or make_core(), "/v1/chat/completions", {"messages": CHAT, "max_tokens": 10} | fields)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """A stream's chunks; its form is checked on the way."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_completion(run: Run) -> None:
    response = complete(run)
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {"index": 0, "text": OUTPUT[:10], "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert body["usage"] == USAGE
    assert response.headers["x-draftwing-seed"] == str(body["seed"])


def test_chat(run: Run) -> None:
    body = chat(run).json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": OUTPUT[:10], "refusal": None}


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[256, 97, 98]]),
        (["ab", "c"], [[256, 97, 98], [256, 99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_prompt_forms(prompt: Any, ids: list[list[int]], run: Run) -> None:
    engine = FakeEngine()
    body = complete(run, make_core(engine), prompt=prompt, n=2).json()
    assert sorted(request.prompt_ids for request in engine.requests) == sorted(2 * ids)
    assert sorted(request.choice for request in engine.requests) == sorted([0, 1] * len(ids))
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(ids)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert body["usage"]["completion_tokens"] == 20 * len(ids)


def test_content_parts_are_joined(run: Run) -> None:
    engine = FakeEngine()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat(run, make_core(engine), messages=[{"role": "developer", "content": parts}])
    assert bytes(engine.requests[0].prompt_ids[1:]) == b"<system>ab\n<assistant>"


def test_parameters_reach_the_engine(run: Run) -> None:
    engine = FakeEngine()
    sent = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "frequency_penalty": 0.2,
        "presence_penalty": -0.3, "seed": 42, "min_tokens": 2, "ignore_eos": True,
    }  # fmt: skip
    more = {"stop": "x", "stop_token_ids": [5], "logit_bias": {"3": -1}, "logprobs": 2, "speculation": "off"}
    body = complete(run, make_core(engine), **sent, **more).json()
    params = engine.requests[0].params
    assert {name: getattr(params, name) for name in sent} == sent
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("x",), (5,), {3: -1.0})
    assert (params.logprobs, params.speculate, params.max_tokens) == (2, False, 10)
    assert body["seed"] == 42
    assert "speculative_decoding" not in body["metrics"]


def test_max_completion_tokens_comes_first(run: Run) -> None:
    assert chat(run, max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_defaults_for_max_tokens(run: Run) -> None:
    """16 for completions as OpenAI has it, the rest of the context for chat; cut to what fits."""
    assert complete(run, max_tokens=None).json()["usage"]["completion_tokens"] == 16
    assert complete(run, max_tokens=None, prompt=[1] * (CONTEXT - 5)).json()["usage"]["completion_tokens"] == 5
    assert chat(run, max_tokens=None).json()["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize(("sent", "meant"), [(0, 0), (2**63 - 1, 2**63 - 1), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1)])
def test_seed(sent: int, meant: int, run: Run) -> None:
    engine = FakeEngine()
    body = complete(run, make_core(engine), seed=sent).json()
    assert engine.requests[0].params.seed == meant
    assert body["seed"] == sent


def test_drawn_seeds_differ_and_can_be_sent_back(run: Run) -> None:
    seeds = {complete(run).json()["seed"] for _ in range(4)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_stream(run: Run) -> None:
    chunks = events(complete(run, stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["One", " tw", "o t", "h"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_chat_stream(run: Run) -> None:
    chunks = events(chat(run, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "One"}
    assert deltas[1:] == [{"content": " tw"}, {"content": "o t"}, {"content": "h"}]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_stream_usage(run: Run) -> None:
    *chunks, last = events(complete(run, stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == USAGE
    assert last["metrics"]["speculative_decoding"]["num_spec_tokens"] == 4


def test_continuous_usage(run: Run) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = events(complete(run, stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [3, 6, 9, 10]
    assert last["usage"]["completion_tokens"] == 10


def test_cached_tokens_count_once_a_prompt(run: Run) -> None:
    body = complete(run, make_core(FakeEngine(cached=2)), prompt=["abc", "def"], n=3).json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def salt(run: Run, key: str | None = None, **fields: Any) -> str:
    """The salt that reaches the engine."""
    engine = FakeEngine()
    core = make_core(engine, keys=("key-number-1", "key-number-2") if key else ())
    response = (
        complete(run, core, **fields)
        if key is None
        else ask(
            run, core, "/v1/completions", {"prompt": "hello", "max_tokens": 1} | fields, authorization=f"Bearer {key}"
        )
    )
    assert response.status_code == 200
    return engine.requests[0].salt


def test_every_key_and_cache_salt_has_its_own_salt(run: Run) -> None:
    """Rule R5: what one key's requests leave in caches is invisible to another's."""
    first, second = "key-number-1", "key-number-2"
    salts = [
        salt(run),
        salt(run, first),
        salt(run, second),
        salt(run, cache_salt=first),
        salt(run, first, cache_salt="a"),
        salt(run, first, cache_salt="b"),
        salt(run, second, cache_salt="a"),
    ]
    assert salts[0] == ""
    assert salts[3] != salts[1], "an unauthenticated client must not guess its way into a key's cache"
    assert len(set(salts)) == len(salts)
    assert salt(run, first, cache_salt="a") == salts[4]
    assert not any(first in text for text in salts)


@pytest.mark.parametrize("value", ["", "x" * 513, 5])
def test_cache_salt_is_bounded(value: Any, run: Run) -> None:
    response = complete(run, cache_salt=value)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_salt"


def test_stream_of_many_choices(run: Run) -> None:
    chunks = events(complete(run, stream=True, n=2, prompt=["a", "b"], return_token_ids=True))
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == dict.fromkeys(range(4), OUTPUT[:10])
    firsts = {c["index"]: c["prompt_token_ids"] for x in chunks for c in x["choices"] if "prompt_token_ids" in c}
    assert firsts == {0: [256, 97], 1: [256, 97], 2: [256, 98], 3: [256, 98]}


def test_echo(run: Run) -> None:
    assert complete(run, echo=True).json()["choices"][0]["text"] == "hello" + OUTPUT[:10]
    assert events(complete(run, echo=True, stream=True))[0]["choices"][0]["text"] == "helloOne"
    assert complete(run, echo=True, prompt=[[104, 105]]).json()["choices"][0]["text"] == "hi" + OUTPUT[:10]


def test_token_ids(run: Run) -> None:
    (choice,) = complete(run, return_token_ids=True).json()["choices"]
    assert choice["token_ids"] == list(OUTPUT[:10].encode())
    assert choice["prompt_token_ids"] == [256, *b"hello"]
    chunks = events(complete(run, return_token_ids=True, stream=True))
    assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks] == [3, 3, 3, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs(stream: bool, run: Run) -> None:
    response = complete(run, logprobs=2, stream=stream, max_tokens=4)
    chunks = events(response) if stream else [response.json()]
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [text for part in found for text in part["tokens"]] == list("One ")
    assert [offset for part in found for offset in part["text_offset"]] == [0, 1, 2, 3]
    assert [x for part in found for x in part["token_logprobs"]] == [-0.5] * 4
    assert found[0]["top_logprobs"][0] == {"A": -2.0, "B": -3.0, "O": -0.5}


def test_completion_logprobs_zero_names_no_alternatives(run: Run) -> None:
    logprobs = complete(run, logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] is None
    assert len(logprobs["tokens"]) == 10


def test_chat_logprobs(run: Run) -> None:
    content = chat(run, logprobs=True, top_logprobs=1, max_tokens=2).json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "O",
        "logprob": -0.5,
        "bytes": [79],
        "top_logprobs": [{"token": "A", "logprob": -2.0, "bytes": [65]}],
    }
    assert len(content) == 2


def test_speculation_object(run: Run) -> None:
    """The contract that AIPerf checks: a dense histogram of num_spec_tokens + 1 integers that adds up."""
    spec = complete(run).json()["metrics"]["speculative_decoding"]
    histogram = spec["acceptance_histogram"]
    assert len(histogram) == spec["num_spec_tokens"] + 1
    assert sum(histogram) == spec["num_spec_steps"] == 4
    assert sum(j * steps for j, steps in enumerate(histogram)) == spec["num_accepted_draft_tokens"] == 5
    assert spec["num_draft_tokens"] == 12
    assert spec["mean_acceptance_length"] == 1 + 5 / 4
    assert spec["draft_acceptance_rate"] == 5 / 12


def test_ignored_fields_are_named(run: Run) -> None:
    response = complete(run, user="me", foo=1, stream=True, stream_options={"bar": 2}, tools=[])
    assert response.headers["x-draftwing-ignored-fields"] == "user, foo, stream_options.bar"
    odd: dict[str, Any] = {"bad\r\nname: x": 1, "é" * 100: 2}
    response = complete(run, None, **odd)
    assert response.headers["x-draftwing-ignored-fields"] == "bad??name??x, " + "?" * 64
    assert "x-draftwing-ignored-fields" not in complete(run).headers


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        ("abc-1", None, "abc-1"),
        ("a b\tc/;d", None, "abcd"),
        ("x" * 500, None, "x" * 128),
        ("from-header", "from-body", "from-header"),
        (None, "from-body", "from-body"),
    ],
)
def test_request_id(header: str | None, body: str | None, expected: str, run: Run) -> None:
    headers = {} if header is None else {"x-request-id": header}
    fields = {"prompt": "a"} if body is None else {"prompt": "a", "request_id": body}
    response = ask(run, make_core(), "/v1/completions", fields, **headers)
    assert response.headers["x-request-id"] == expected
    assert response.json()["id"] == f"cmpl-{expected}"


def test_request_id_is_made_where_none_came(run: Run) -> None:
    ids = {complete(run).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_model_alias(run: Run) -> None:
    assert complete(run, model="alias").json()["model"] == "alias"


def test_target_without_tokenizer(run: Run) -> None:
    core = make_core(tokenizer=False)
    assert complete(run, core, prompt=[1, 2]).status_code == 200
    for fields in ({"prompt": "text"}, {"prompt": [1], "stop": "x"}):
        refused = complete(run, make_core(tokenizer=False), **fields)
        assert refused.status_code == 400
        assert "no tokenizer" in refused.json()["error"]["message"]


def test_tokenize(run: Run) -> None:
    assert ask(run, make_core(), "/tokenize", {"prompt": "ab"}).json() == {
        "tokens": [256, 97, 98],
        "count": 3,
        "max_model_len": CONTEXT,
    }
    plain = ask(run, make_core(), "/tokenize", {"prompt": "ab", "add_special_tokens": False})
    assert plain.json()["tokens"] == [97, 98]
    assert ask(run, make_core(), "/tokenize", {"messages": CHAT}).json()["count"] == 21
    assert ask(run, make_core(), "/detokenize", {"tokens": [97, 98]}).json() == {"prompt": "ab"}
