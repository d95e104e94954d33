"""Replicas that die, clients that leave, work that takes too long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from draftwing.parallel.client import DeathCause
from draftwing_serve.gateway import GatewayCore
from draftwing_serve.http_api import make_app
from draftwing_serve.streams import merge
from tests.unit.serve.fakes import OUTPUT, FakeEngine, make_client, make_core

Run = Callable[..., Any]
BODY = {"prompt": "hello", "max_tokens": 10}


async def post(core: GatewayCore, **fields: Any) -> Any:
    async with make_client(core) as client:
        return await client.post("/v1/completions", json=BODY | fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("die_after", [0, 1, 3])
def test_request_outlives_its_replica(stream: bool, die_after: int, run: Run) -> None:
    """The text is whole, without a gap or a repetition, and usage counts it once."""
    first, second = FakeEngine(die_after=die_after, cached=3), FakeEngine(cached=5)
    core = make_core(first, second)
    response = run(post(core, stream=stream, seed=7, stream_options={"include_usage": True} if stream else None))
    assert response.status_code == 200
    if stream:
        chunks = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1])
        usage = chunks[-1]["usage"]
    else:
        text, usage = response.json()["choices"][0]["text"], response.json()["usage"]
    assert text == OUTPUT[:10]
    assert usage.pop("prompt_tokens_details") == {"cached_tokens": 3 if die_after else 5}  # where it first ran
    assert usage == {"prompt_tokens": 6, "completion_tokens": 10, "total_tokens": 16}
    (resumed,) = second.requests
    assert resumed.generated_ids == list(OUTPUT[: 3 * die_after].encode())
    assert resumed.emitted_chars == 3 * die_after
    assert (resumed.params, resumed.choice) == (first.requests[0].params, first.requests[0].choice)
    assert resumed.id != first.requests[0].id
    assert first.closed
    assert core.metrics.registry.get_sample_value("draftwing_resumed_total") == 1


def test_other_choices_go_on(run: Run) -> None:
    """Each choice moves by itself; those on living replicas notice nothing."""
    first, second = FakeEngine(die_after=1), FakeEngine()
    response = run(post(make_core(first, second), n=4))
    assert [choice["text"] for choice in response.json()["choices"]] == [OUTPUT[:10]] * 4


def test_no_replica_takes_over(run: Run) -> None:
    response = run(post(make_core(FakeEngine(die_after=0), patience_s=0.05)))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert response.headers["x-should-retry"] == "true"
    assert response.json()["error"]["code"] == "replica_lost"


def test_new_request_does_not_wait_long_for_a_replica(run: Run) -> None:
    begun = time.monotonic()
    response = run(post(make_core(FakeEngine(closed=True), patience_s=60)))
    assert response.status_code == 503
    assert time.monotonic() - begun < 2


def test_no_replica_takes_over_after_the_first_chunk(run: Run) -> None:
    streamed = run(post(make_core(FakeEngine(die_after=1), patience_s=0.05), stream=True))
    assert streamed.status_code == 200
    *_, error, done, end = streamed.text.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "replica_lost"
    assert (done, end) == ("data: [DONE]", "")
    whole = run(post(make_core(FakeEngine(die_after=1), patience_s=0.05)))
    assert whole.status_code == 500


@pytest.mark.parametrize(("cause", "most"), [("disconnected", 4), ("shutdown", 4), ("step_failed", 2)])
def test_a_request_does_not_end_every_replica(cause: DeathCause, most: int, run: Run) -> None:
    engines = [FakeEngine(die_after=0, cause=cause) for _ in range(8)]
    assert run(post(make_core(*engines))).status_code == 503
    assert sum(bool(engine.requests) for engine in engines) == most


def test_another_model_does_not_take_over(run: Run) -> None:
    engine = FakeEngine()
    core = make_core(engine, patience_s=0.05)

    async def work() -> Any:
        await core.pool.refresh()
        state = core.preparer.completion(json.dumps(BODY).encode())
        state.choices[0].model_digest = "other"
        with pytest.raises(Exception, match="replica") as caught:
            async for _ in core.start(state, "id").emissions():
                pass
        return caught.value

    assert run(work()).status == 503
    assert engine.requests == []


def test_engine_fails_the_request(run: Run) -> None:
    response = run(post(make_core(FakeEngine(fail="logits of /secret are not finite"))))
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "request_failed"
    assert "secret" not in response.text


def test_fault_of_ours_in_an_open_stream(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    core = make_core(FakeEngine(die_after=1))

    async def broken() -> list[Any]:
        raise KeyError("secret")

    async def work() -> Any:
        await core.pool.refresh()
        core.pool._discover = broken
        return await post(core, stream=True)

    response = run(work())
    error = json.loads(response.text.split("\n\n")[-3].removeprefix("data: "))["error"]
    assert error["type"] == "server_error"
    assert "secret" not in response.text
    assert "secret" in caplog.text


def test_deadline(run: Run) -> None:
    engine = FakeEngine(step_s=0.04)
    response = run(post(make_core(engine, request_timeout_s=0.1)))
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout"
    assert (engine.live, engine.cancelled) == (0, 1)


class Connection:
    """One ASGI request whose client can leave. after: response messages after which it does."""

    def __init__(self, core: GatewayCore, body: dict[str, Any], *, after: int, spec: str) -> None:
        self._core = core
        self._body = json.dumps(body).encode()
        self._after = after
        self._left = asyncio.Event()
        self._spec = spec
        self.sent: list[Any] = []

    async def run(self) -> None:
        bodies = [{"type": "http.request", "body": self._body, "more_body": False}]

        async def receive() -> Any:
            if bodies:
                return bodies.pop()
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if self._spec == "2.4" and self._left.is_set():
                raise OSError("connection closed")
            self.sent.append(message)
            if len(self.sent) >= self._after:
                self._left.set()

        scope = {
            "type": "http", "asgi": {"spec_version": self._spec}, "method": "POST", "path": "/v1/completions",
            "query_string": b"", "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
            "scheme": "http", "server": ("test", 80),
        }  # fmt: skip
        if not self._after:
            asyncio.get_running_loop().call_later(0.05, self._left.set)
        await make_app(self._core)(scope, receive, send)


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize(("stream", "after"), [(False, 0), (True, 0), (True, 3)])
def test_client_leaves(stream: bool, after: int, spec: str, run: Run) -> None:
    """Before the first chunk and in the midst of a stream, the engine's slot is free again at once."""
    engine = FakeEngine(step_s=0.02)
    if not after:
        engine.gate = asyncio.Event()
    core = make_core(engine)

    async def work() -> None:
        body = BODY | {"max_tokens": 200, "stream": stream, "n": 2}
        connection = Connection(core, body, after=after, spec=spec)
        await connection.run()

    run(work())
    assert len(engine.requests) == 2
    assert (engine.live, engine.cancelled) == (0, 2)
    assert core.pool.engines[0].in_flight == 0
    registry = core.metrics.registry
    assert registry.get_sample_value("draftwing_requests_in_flight") == 0
    labels = {"endpoint": "completions", "outcome": "cancelled"}
    assert registry.get_sample_value("draftwing_requests_total", labels) == 1


def test_merge_closes_all_when_one_fails(run: Run) -> None:
    closed: list[int] = []

    async def source(number: int) -> Any:
        try:
            yield number
            if number == 1:
                raise ValueError("one failed")
            await asyncio.Event().wait()
        finally:
            closed.append(number)

    async def work() -> list[int]:
        with pytest.raises(ValueError, match="one failed"):
            async for _ in merge([source(0), source(1), source(2)]):
                pass
        return list(closed)

    assert sorted(run(work())) == [0, 1, 2]
