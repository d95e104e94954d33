"""The parts of the OpenAPI document that FastAPI can't derive, because bodies are read by our own strict reader."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

_MEANING = {
    400: "The request is malformed, out of range or asks for what is not supported.",
    401: "The API key is missing or wrong.",
    404: "No such route or model.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the limit.",
    415: "The body is not JSON.",
    500: "The server failed on this request.",
    503: "Too busy, or no replica is up; Retry-After says when to try again.",
    504: "The request did not finish in time.",
}

_NULLABLE_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ERROR_BODY = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE_TEXT,
                "code": _NULLABLE_TEXT,
            },
        }
    },
}

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": _ERROR_BODY}}}
    for status, text in _MEANING.items()
}


@cache
def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """A route's request body as the model describes it."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inline(schema)}}}}


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Without references: FastAPI collects only the components that it found itself."""
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            name = node.get("$ref", "").removeprefix("#/components/schemas/")
            if name in definitions:
                return resolve(definitions[name])
            return {key: resolve(value) for key, value in node.items()}
        if isinstance(node, list):
            return [resolve(item) for item in node]
        return node

    resolved: dict[str, Any] = resolve(schema)
    return resolved
