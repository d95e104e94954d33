"""The whole way on real Ray: gateway, target replica, rank, engine, as an OpenAI client sees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.serve_tools import GOLDEN, eventually, free_port, make_model, metric, serve_command

PROMPT = "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    "
SEQUENCES, QUEUE = 4, 4


@pytest.fixture(scope="module")
def url(ray_session: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from ray import serve

    from draftwing.config import Config
    from draftwing_serve.app import APPLICATION, build
    from draftwing_serve.ray_edge import shutdown_serve

    model = make_model(tmp_path_factory.mktemp("model") / "tiny")
    port = free_port()
    config = Config.model_validate(
        {
            "model": {"path": str(model), "name": "tiny", "cpu_threads": 1},
            "drafters": [{"method": "ngram"}],
            "policy": {"mode": "fixed:k=4"},
            "cache": {"tokens": 8192},
            "limits": {"sequences": SEQUENCES, "queue": QUEUE},
            "server": {"port": port},
        }
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(config), name=APPLICATION, route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    shutdown_serve()


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def test_completion_is_the_same_with_and_without_speculation(client: openai.OpenAI) -> None:
    texts = []
    for speculation in ("on", "off"):
        answer = client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=64, temperature=0, extra_body={"speculation": speculation}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(PROMPT)
        assert answer.choices[0].finish_reason in ("length", "stop")
        texts.append(answer.choices[0].text)
        metrics: Any = answer.model_extra["metrics"]  # type: ignore[index]
        assert ("speculative_decoding" in metrics) == (speculation == "on")
    assert texts[0] == texts[1]
    assert texts[0]


def test_seed_is_returned_and_repeats_the_output(client: openai.OpenAI) -> None:
    first = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24)
    again = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, seed=first.model_extra["seed"])  # type: ignore[index]
    other = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, seed=first.model_extra["seed"] + 1)  # type: ignore[index]
    assert first.choices[0].text == again.choices[0].text != other.choices[0].text


def test_chat_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "max_completion_tokens": 48,
        "temperature": 0.7,
        "seed": 5,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].model_extra["metrics"]["speculative_decoding"]["num_spec_tokens"] <= 4


def test_choices_and_prompts(client: openai.OpenAI) -> None:
    prompts = [[5, 6, 7], [8, 9]]
    answer = client.completions.create(
        model="tiny", prompt=prompts, n=2, max_tokens=8, seed=1, logprobs=2, extra_body={"return_token_ids": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5
    ids = [choice.model_extra["token_ids"] for choice in answer.choices]  # type: ignore[index]
    assert ids[0] != ids[1]
    assert answer.usage.completion_tokens == sum(map(len, ids))
    for choice, tokens in zip(answer.choices, ids, strict=True):
        assert choice.logprobs is not None
        assert len(choice.logprobs.tokens or []) == len(tokens)


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a" * 600)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unbuilt:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], response_format={"type": "json_object"}
        )
    assert unbuilt.value.code == "unsupported_parameter"


def test_request_id_comes_back_once(url: str) -> None:
    sent = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "mine-1"})
    assert sent.headers.get_list("x-request-id") == ["mine-1"]
    assert sent.json()["id"] == "cmpl-mine-1"
    made = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
    (made_id,) = made.headers.get_list("x-request-id")
    assert made.json()["id"] == f"cmpl-{made_id}"


def test_full_queue(url: str) -> None:
    asked = {"prompt": "a", "n": 16, "max_tokens": 400, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["type"] == "overloaded_error"
    # The choices that had been taken are given up with the refused ones.
    eventually(lambda: metric(url, "draftwing_requests_running") == 0, within_s=2)


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_frees_its_slots(url: str, stream: bool) -> None:
    asked = {"prompt": "a", "n": SEQUENCES, "max_tokens": 480, "ignore_eos": True, "stream": stream}
    before = metric(url, "draftwing_requests_total", outcome="cancelled")
    if stream:
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=60) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json=asked, timeout=0.3)
    eventually(lambda: metric(url, "draftwing_requests_total", outcome="cancelled") == before + 1, within_s=5)
    eventually(lambda: metric(url, "draftwing_requests_running") == 0, within_s=2)


def test_metrics(url: str, client: openai.OpenAI) -> None:
    client.completions.create(model="tiny", prompt=PROMPT, max_tokens=32, temperature=0)
    drafts = metric(url, "draftwing_spec_decode_num_drafts_total")
    per_position = metric(url, "draftwing_spec_decode_num_accepted_tokens_per_pos_total")
    assert drafts > 0
    assert per_position == metric(url, "draftwing_spec_decode_num_accepted_tokens_total")
    assert metric(url, "draftwing_engine_step_seconds_total", part="forward") > 0
    assert metric(url, "draftwing_requests_waiting") == 0


def test_second_server_on_the_same_ray(ray_session: str, url: str, tmp_path: Path) -> None:
    """Serve listens already, elsewhere than asked: one clear line, and the first server stays."""
    port = url.rsplit(":", 1)[1]
    for asked, expected in (
        (str(free_port()), f"already runs on this Ray at 127.0.0.1:{port}"),
        (port, "can't be used"),
    ):
        process = serve_command("--model", str(GOLDEN), "--port", asked, RAY_ADDRESS=ray_session)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 3, err
        assert expected in err.splitlines()[-1]
    assert httpx.get(f"{url}/health", timeout=30).status_code == 200


def test_stream_outlives_its_rank(url: str) -> None:
    """The rank is killed in the midst of a stream: Serve replaces the replica, and the stream goes on to its end."""
    asked = {"prompt": PROMPT, "max_tokens": 400, "seed": 3, "temperature": 0.8, "ignore_eos": True}
    expected = httpx.post(f"{url}/v1/completions", json=asked, timeout=60).json()
    lost = metric(url, "draftwing_replicas_lost_total")
    with httpx.stream("POST", f"{url}/v1/completions", json=asked | {"stream": True}, timeout=120) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        chunks = [json.loads(next(lines)[6:])]
        os.kill(rank_pid(), signal.SIGKILL)
        chunks += [json.loads(line[6:]) for line in lines]
    assert "error" not in chunks[-1]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected["choices"][0]["text"]
    assert metric(url, "draftwing_replicas_lost_total") == lost + 1
    assert httpx.get(f"{url}/health", timeout=30).status_code == 200


def rank_pid() -> int:
    """Process of the rank that serves now."""
    from ray import serve

    from draftwing.parallel.client import EngineClient
    from draftwing.parallel.endpoint import Endpoint
    from draftwing_serve.app import APPLICATION, TARGET

    described = serve.get_deployment_handle(TARGET, APPLICATION).describe.remote().result(timeout_s=30)

    async def ask() -> int:
        client = await EngineClient.connect(Endpoint(**described["endpoint"]))
        try:
            return (await client.stats()).pid
        finally:
            await client.close()

    return asyncio.run(ask())
