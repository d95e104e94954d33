"""Around every request: its id, the API key, the headers that attacks use, and the last resort for our own faults."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwing_serve import errors
from draftwing_serve.errors import ApiError
from draftwing_serve.prepare import salt_of
from draftwing_serve.streams import ClientGone

if TYPE_CHECKING:
    from draftwing_serve.gateway import GatewayCore

logger = logging.getLogger(__name__)
CLIENT_CLOSED = 499  # nobody reads an answer; this is for the metrics
PUBLIC_PATHS = frozenset({"/health"})
OWN_DOOR = "/dash"  # these routes check the keys themselves: a browser sends no Authorization header
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_ID_CHARS = re.compile(r"[^A-Za-z0-9._:-]")


class Guard:
    """ASGI middleware: answers that it refuses itself have the same error body as all others."""

    def __init__(self, app: ASGIApp, core: GatewayCore) -> None:
        self._app = app
        self._core = core
        self._keys = [hashlib.sha256(key.encode()).digest() for key in core.options.keys]
        self._id_chars = core.preparer.limits.request_id_chars

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _clean(headers.get("x-request-id", ""), self._id_chars) or uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["sent_request_id"] = "x-request-id" in headers
        state["salt"] = ""
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._core.options.echo_request_id:
                    MutableHeaders(scope=message)["x-request-id"] = state["request_id"]
            try:
                await send(message)
            except OSError:
                raise ClientGone from None

        try:
            try:
                state["salt"] = self._check(scope["path"], headers)
            except ApiError as error:
                await error_response(error)(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except ClientGone:
            status = CLIENT_CLOSED
        except Exception:
            logger.exception("the request failed", extra={"request_id": state["request_id"]})
            if status:
                raise  # too late for an answer of ours: the connection must end
            await error_response(errors.internal())(scope, receive, send_with_id)
        finally:
            self._core.metrics.http.labels(scope["method"], _route(scope), str(status)).inc()

    def _check(self, path: str, headers: Headers) -> str:
        """The salt of the request's key; ApiError where it is refused."""
        host = headers.get("host")
        if host is not None and not _HOST.fullmatch(host):
            raise ApiError(400, "invalid_request_error", "the Host header is not a host name", param="host")
        if self._keys and path not in PUBLIC_PATHS and path != OWN_DOOR and not path.startswith(f"{OWN_DOOR}/"):
            return self._authenticate(headers.getlist("authorization"))
        return ""

    def _authenticate(self, values: list[str]) -> str:
        """Every key is compared, each in constant time, so that the time says nothing about them."""
        if len(values) != 1:
            raise errors.unauthorized("send exactly one Authorization header: Bearer and an API key")
        scheme, _, key = values[0].partition(" ")
        given = hashlib.sha256(key.strip().encode()).digest()
        known = [hmac.compare_digest(given, accepted) for accepted in self._keys]
        if scheme.lower() != "bearer" or not any(known):
            raise errors.unauthorized("the API key is missing or not one of this server's")
        return salt_of("API key", key.strip())


def error_response(error: ApiError) -> Response:
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


def request_id_of(scope: Scope, from_body: str | None) -> str:
    """The request's id: the header's, else the body's, else the one made here. What is returned is also echoed."""
    state = scope["state"]
    if from_body is not None and not state["sent_request_id"]:
        state["request_id"] = _clean(from_body, len(from_body)) or state["request_id"]
    request_id: str = state["request_id"]
    return request_id


def _clean(request_id: str, most: int) -> str:
    """Safe in logs and headers."""
    return _ID_CHARS.sub("", request_id[:most])


def _route(scope: Scope) -> str:
    """The route's pattern, never the path itself: a label must not have as many values as clients like."""
    route = scope.get("route")
    return getattr(route, "path", "other")
