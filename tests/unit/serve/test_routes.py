"""The routes around generation: keys, health, models, metrics, the OpenAPI document, extension routes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, HTTPException
from prometheus_client.parser import text_string_to_metric_families

from draftwing.errors import SetupError
from draftwing_serve import extensions
from draftwing_serve.gateway import GatewayCore
from tests.unit.serve.fakes import FakeEngine, make_client, make_core, overloaded

Run = Callable[..., Any]
ROUTES = ("/v1/models", "/v1/models/tiny", "/version", "/metrics", "/openapi.json")


def get(run: Run, path: str, core: GatewayCore | None = None, *, method: str = "GET", **headers: str) -> httpx.Response:
    async def work() -> httpx.Response:
        async with make_client(core or make_core()) as client:
            return await client.request(method, path, headers=headers)

    response: httpx.Response = run(work())
    return response


@pytest.mark.parametrize("path", ROUTES)
def test_open_without_keys(path: str, run: Run) -> None:
    assert get(run, path).status_code == 200
    assert get(run, path, authorization="Bearer").status_code == 200  # lm-eval sends an empty key


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic key-number-1", "key-number-1", "Bearer é"]
)
def test_keys(path: str, authorization: str | None, run: Run) -> None:
    headers = {} if authorization is None else {"authorization": authorization.encode()}
    response = get(run, path, make_core(keys=("key-number-1", "key-number-2")), **headers)  # type: ignore[arg-type]
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["type"] == "authentication_error"


def test_right_keys(run: Run) -> None:
    for key in ("key-number-1", "key-number-2"):
        core = make_core(keys=("key-number-1", "key-number-2"))
        assert get(run, "/v1/models", core, authorization=f"Bearer {key}").status_code == 200


def test_two_authorization_headers(run: Run) -> None:
    async def work() -> httpx.Response:
        async with make_client(make_core(keys=("key-number-1",))) as client:
            headers = [("authorization", "Bearer key-number-1"), ("authorization", "Bearer other")]
            return await client.get("/v1/models", headers=headers)

    assert run(work()).status_code == 401


def test_health_needs_no_key(run: Run) -> None:
    assert get(run, "/health", make_core(keys=("key-number-1",))).status_code == 200


def test_health_without_engine(run: Run) -> None:
    engine = FakeEngine(closed=True)
    response = get(run, "/health", make_core(engine))
    assert response.status_code == 503
    assert "retry-after" in response.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", "/v1/models/a/b", 404, "model_not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/completions/", 404, "not_found"),
    ],
)
def test_routing_errors(method: str, path: str, status: int, code: str, run: Run) -> None:
    response = get(run, path, method=method)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == code
    assert "x-request-id" in response.headers


def test_metrics(run: Run) -> None:
    """Everything parses, and the counts are those of what was asked."""
    core = make_core()

    async def work() -> str:
        async with make_client(core) as client:
            await client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 10, "n": 2})
            await client.post("/v1/completions", json={"prompt": ""})
            await client.get("/somewhere/unknown")
            return (await client.get("/metrics")).text

    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(run(work()))
        for sample in family.samples
    }
    assert samples["draftwing_requests_total", "completed", "completions"] == 1
    assert samples["draftwing_http_requests_total", "/v1/completions", "400", "POST"] == 1
    assert samples["draftwing_http_requests_total", "404", "GET", "other"] == 1
    assert samples["draftwing_prompt_tokens_total",] == 6
    assert samples["draftwing_generation_tokens_total",] == 20
    assert samples["draftwing_choices_total", "length"] == 2
    assert samples["draftwing_time_to_first_token_seconds_count",] == 1
    assert samples["draftwing_time_to_first_token_seconds_bucket", "0.0005"] >= 0
    assert samples["draftwing_inter_chunk_seconds_count",] == 6
    assert samples["draftwing_time_per_output_token_seconds_count",] == 2
    assert samples["draftwing_requests_in_flight",] == 0
    assert samples["draftwing_spec_decode_num_drafts_total",] == 5
    assert samples["draftwing_spec_decode_num_draft_tokens_total",] == 20
    assert samples["draftwing_spec_decode_num_accepted_tokens_total",] == 9
    assert samples["draftwing_spec_decode_num_accepted_tokens_per_pos_total", "1"] == 4
    assert samples["draftwing_prefix_cache_queries_total",] == 12
    assert samples["draftwing_prefix_cache_hits_total",] == 8


def test_engine_totals_never_fall(run: Run) -> None:
    """A new rank counts from zero; what the old one counted stays."""
    first, second = FakeEngine(), FakeEngine()
    core = make_core(first, second)

    async def drafts() -> float:
        await core.refresh_engine_metrics()
        value = core.metrics.registry.get_sample_value("draftwing_spec_decode_num_drafts_total")
        assert value is not None
        return value

    async def work() -> list[float]:
        await core.pool.refresh()
        both = await drafts()
        core.pool.lost(core.pool.engines[0])
        return [both, await drafts(), await drafts()]

    assert run(work()) == [10, 10, 10]


def test_openapi_documents_errors_and_bodies(run: Run) -> None:
    document = get(run, "/openapi.json").json()
    post = document["paths"]["/v1/completions"]["post"]
    assert {"400", "401", "404", "408", "413", "415", "500", "503", "504"} <= post["responses"].keys()
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["prompt"]
    assert len(schema["properties"]["prompt"]["anyOf"]) == 4
    assert "$ref" not in str(schema)


def test_internal_errors_say_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()

    def broken(body: bytes) -> None:
        raise ValueError("secret detail in /some/path")

    monkeypatch.setattr(core.preparer, "completion", broken)

    async def work() -> httpx.Response:
        async with make_client(core) as client:
            return await client.post("/v1/completions", json={"prompt": "a"})

    response = run(work())
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert response.headers["x-should-retry"] == "false"


def test_overload(run: Run) -> None:
    async def work() -> list[httpx.Response]:
        core = make_core(FakeEngine(refuse=overloaded()))
        async with make_client(core) as client:
            body = {"prompt": "a", "max_tokens": 4}
            return [await client.post("/v1/completions", json=body | {"stream": stream}) for stream in (False, True)]

    for response in run(work()):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "3"
        assert response.json()["error"]["type"] == "overloaded_error"


def extend(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("extra", value, extensions.GROUP)
    monkeypatch.setattr(extensions, "installed_routes", lambda: (point,))


def extra_routes(core: GatewayCore) -> APIRouter:
    router = APIRouter()

    @router.get("/extra")
    async def extra(number: int) -> dict[str, Any]:
        if number < 0:
            raise HTTPException(418, "a teapot")
        return {"model": core.preparer.facts.name, "number": number}

    return router


def test_extension_routes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    extend(monkeypatch, f"{__name__}:extra_routes")
    assert get(run, "/extra?number=2").json() == {"model": "tiny", "number": 2}
    wrong = get(run, "/extra?number=x")
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "query.number"
    assert get(run, "/extra?number=-1").json()["error"]["message"] == "a teapot"


@pytest.mark.parametrize("value", ["no.such.module:x", f"{__name__}:missing", f"{__name__}:make_core"])
def test_broken_extension(value: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    extend(monkeypatch, value)
    with pytest.raises(SetupError, match="extra"):
        get(run, "/version")
