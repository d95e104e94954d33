"""The HTTP API: routes around a `GatewayCore`, as a FastAPI application that runs with or without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from draftwing import __version__
from draftwing.core import Emission
from draftwing_serve import errors
from draftwing_serve.errors import ApiError
from draftwing_serve.extensions import extension_routers
from draftwing_serve.gateway import GatewayCore, Run
from draftwing_serve.guard import Guard, error_response, request_id_of
from draftwing_serve.openapi import ERRORS, body_of
from draftwing_serve.prepare import Job
from draftwing_serve.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from draftwing_serve.responses import Answer
from draftwing_serve.streams import EventStream, unless_disconnected

DONE = b"data: [DONE]\n\n"


def make_app(core: GatewayCore) -> FastAPI:
    app = FastAPI(
        title="Draftwing", version=__version__, docs_url=None, redoc_url=None, responses=ERRORS, redirect_slashes=False
    )
    app.include_router(_generation_routes(core))
    app.include_router(_information_routes(core))
    for router in extension_routers(core):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _validation_exception)
    app.add_exception_handler(ApiError, _api_error)
    app.add_middleware(Guard, core=core)
    return app


def _generation_routes(core: GatewayCore) -> APIRouter:
    router = APIRouter(tags=["generation"])

    @router.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await _generate(core, request, core.preparer.completion)

    @router.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await _generate(core, request, core.preparer.chat)

    @router.post("/tokenize", openapi_extra=body_of(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        return JSONResponse(await core.prepared(core.preparer.tokenize, await _json_body(core, request)))

    @router.post("/detokenize", openapi_extra=body_of(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        return JSONResponse(await core.prepared(core.preparer.detokenize, await _json_body(core, request)))

    return router


def _information_routes(core: GatewayCore) -> APIRouter:
    router = APIRouter(tags=["information"])
    facts = core.preparer.facts
    models = [
        {
            "id": name,
            "object": "model",
            "created": facts.created,
            "owned_by": "draftwing",
            "root": facts.name,
            "max_model_len": facts.context,
        }
        for name in (facts.name, *facts.aliases)
    ]

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": models}

    @router.get("/v1/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        for model in models:
            if model["id"] == name:
                return model
        served = ", ".join(str(model["id"]) for model in models)
        message = f"the model {name[:128]!r} is not served here; served: {served}"
        raise ApiError(404, "invalid_request_error", message, param="model", code="model_not_found")

    @router.get("/health")
    async def health() -> Response:
        """200 when an engine answers, else 503."""
        if await core.healthy():
            return Response(status_code=200)
        raise errors.replica_lost(started=False)

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/metrics")
    async def metrics() -> Response:
        await core.refresh_engine_metrics()
        return Response(core.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


async def _generate(core: GatewayCore, request: Request, read: Callable[[bytes, str], Job]) -> Response:
    salt: str = request.scope["state"]["salt"]
    job = await core.prepared(lambda body: read(body, salt), await _json_body(core, request))
    request_id = request_id_of(request.scope, job.request_id)
    headers = {"x-draftwing-seed": str(job.seed)}
    if job.ignored:
        headers["x-draftwing-ignored-fields"] = _field_list(job.ignored)
    run = core.start(job, request_id)
    answer = Answer(job, request_id, run.created, core.preparer.tokenizer)
    if not job.stream:
        body = await unless_disconnected(request.receive, _whole(run, answer))
        return JSONResponse(body, headers=headers)
    # Admission errors come with the first emission, early enough for a status of their own.
    emissions = run.emissions()
    try:
        first = await unless_disconnected(request.receive, anext(emissions))
    except BaseException:
        await emissions.aclose()
        raise
    return EventStream(_events(run, job, answer, first, emissions), headers)


async def _whole(run: Run, answer: Answer) -> dict[str, Any]:
    async with aclosing(run.emissions()) as emissions:
        async for index, emission in emissions:
            answer.add(index, emission)
    return answer.whole(run.timings())


async def _events(
    run: Run,
    job: Job,
    answer: Answer,
    first: tuple[int, Emission],
    emissions: AsyncGenerator[tuple[int, Emission], None],
) -> AsyncGenerator[bytes, None]:
    """Server-sent events: one a step and choice, then usage if asked for. A late failure is an event too."""
    async with aclosing(emissions):
        yield _event(answer.chunk(*first))
        try:
            async for index, emission in emissions:
                yield _event(answer.chunk(index, emission))
        except ApiError as error:
            yield _event(error.body())
        else:
            if job.include_usage:
                yield _event(answer.last_chunk(run.timings()))
        yield DONE


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


async def _json_body(core: GatewayCore, request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"content-type {kind[:64]!r} is not accepted; send application/json"
        raise ApiError(415, "invalid_request_error", message, code="unsupported_media_type")
    limit = core.preparer.limits.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise errors.body_too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(core.options.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise errors.body_too_large(limit)
                parts.append(part)
    except TimeoutError:
        message = f"the body did not arrive within {core.options.body_timeout_s:g} seconds"
        raise ApiError(408, "timeout", message) from None
    return b"".join(parts)


def _field_list(names: list[str]) -> str:
    """A header value from names that a client chose."""
    clean = ["".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "?" for c in name[:64]) for name in names]
    return ", ".join(clean[:32])


async def _http_exception(request: Request, error: Exception) -> Response:
    """Routing failures, and those that extension routes raise."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 404:
        return error_response(errors.not_found(path))
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return error_response(errors.method_not_allowed(request.method, path, allow))
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    return error_response(ApiError(error.status_code, kind, str(error.detail), headers=error.headers))


async def _validation_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(errors.from_problems(error.errors()))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)
