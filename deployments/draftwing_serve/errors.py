"""What a client sees when a request fails: one body shape, a status, and whether it may try again.

Messages are bounded and written by us; text of an unexpected exception goes to the log, never to a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from draftwing.errors import DraftwingError, OverloadedError, RequestError
from draftwing.limits import shown

MAX_MESSAGE = 1000
MAX_PROBLEMS = 5
MAX_SHOWN_INPUT = 100

STATUS_OF_CODE = {"model_not_found": 404, "not_found": 404}


class ApiError(DraftwingError):
    """A refusal or failure with its HTTP status.

    kind: the contract's `type`. code: machine-readable detail, the kind itself by default. retry_after_s: sent as
    Retry-After. retriable: sent as x-should-retry, which the openai client obeys; None says nothing.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        retriable: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code if code is not None else kind
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)
        if retriable is not None:
            self.headers["x-should-retry"] = "true" if retriable else "false"

    def body(self) -> dict[str, Any]:
        message = self.message
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 1] + "…"
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}}


def from_request_error(error: RequestError) -> ApiError:
    """Deterministic refusals are 4xx, so that no client repeats them."""
    status = STATUS_OF_CODE.get(error.code, 400)
    return ApiError(status, "invalid_request_error", str(error), param=error.param, code=error.code)


def from_overload(error: OverloadedError) -> ApiError:
    return ApiError(503, "overloaded_error", str(error), retry_after_s=error.retry_after_s, retriable=True)


def from_validation(error: ValidationError) -> ApiError:
    return from_problems(error.errors(include_url=False, include_context=False))


def from_problems(problems: Sequence[Any]) -> ApiError:
    """The first few of pydantic's problems, each with its field, what is wrong and a short cut of what came."""
    lines = []
    for problem in problems[:MAX_PROBLEMS]:
        line = f"{_field(problem['loc']) or 'body'}: {problem['msg']}"
        if problem["type"] != "missing":
            line += f", got {shown(problem['input'])}"
        lines.append(line)
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return ApiError(400, "invalid_request_error", "; ".join(lines), param=_field(problems[0]["loc"]) or None)


def context_length_exceeded(limit: int, prompt_tokens: int, max_tokens: int | None, param: str) -> RequestError:
    """Clients recognise this one by its first words (LiteLLM) and by its code (LangChain)."""
    asked = f"the prompt has {prompt_tokens} tokens"
    if max_tokens is not None:
        asked += f" and {max_tokens} more were asked for (max_tokens), {prompt_tokens + max_tokens} in all"
    message = f"This model's maximum context length is {limit} tokens, but {asked}; shorten the prompt or the output"
    return RequestError(message, param=param, code="context_length_exceeded")


def unsupported(param: str, value: object, accepted: str) -> RequestError:
    """A known field whose effect is not built: refused, because ignoring it would change what comes out."""
    return RequestError(
        f"{param} = {shown(value)} is not supported; accepted: {accepted}", param=param, code="unsupported_parameter"
    )


def not_found(path: str) -> ApiError:
    return ApiError(404, "invalid_request_error", f"no such route: {path[:MAX_SHOWN_INPUT]}", code="not_found")


def method_not_allowed(method: str, path: str, allow: str) -> ApiError:
    message = f"{method[:16]} is not allowed on {path[:MAX_SHOWN_INPUT]}; accepted: {allow}"
    headers = {"allow": allow}
    return ApiError(405, "invalid_request_error", message, code="method_not_allowed", headers=headers)


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, "invalid_request_error", f"the body is over the limit of {limit} bytes", code="body_too_large")


def unauthorized(reason: str) -> ApiError:
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, "authentication_error", reason, code="invalid_api_key", headers=headers)


def internal() -> ApiError:
    return ApiError(500, "server_error", "the server failed on this request; its log says why", retriable=False)


def request_failed() -> ApiError:
    """The engine gave this one request up (for example the model's numbers were not finite)."""
    message = "the model could not finish this request; the server's log says why"
    return ApiError(500, "server_error", message, code="request_failed", retriable=False)


def replica_lost(*, started: bool) -> ApiError:
    """No replica could take the request over in time. Safe to repeat: output is a function of the request alone."""
    message = "the model's replica stopped and no other took this request over in time; send it again"
    if started:
        return ApiError(500, "server_error", message, code="replica_lost", retriable=True)
    return ApiError(503, "server_error", message, code="replica_lost", retry_after_s=2, retriable=True)


def deadline_exceeded(seconds: float) -> ApiError:
    message = f"the request did not finish within {seconds:g} seconds; ask for fewer tokens or try again later"
    return ApiError(504, "timeout", message, retriable=False)


def _field(location: tuple[int | str, ...]) -> str:
    """Dotted field name; pydantic adds the names of union members, which are not part of what the client sent."""
    parts = [str(part) for part in location]
    return ".".join(part for part in parts if part.isdigit() or part.replace("_", "").isalnum())[:200]
