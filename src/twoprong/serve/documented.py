"""The OpenAPI document: every endpoint's parameters, bodies and answers."""

import re
from collections.abc import Callable
from typing import Any

PROBLEM: dict[str, Any] = {
    "description": "What was expected and what came (RFC 9457)",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status", "detail", "error", "request_id"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "error": {"type": "string"},
                    "request_id": {"type": "string"},
                },
            }
        }
    },
}
PROBLEMS = {str(status): PROBLEM for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 431, 500, 503, 504)}
BINARY = {"schema": {"type": "string", "format": "binary"}}
BEST = {
    "type": "object",
    "required": ["label", "probability"],
    "properties": {"label": {"type": "integer"}, "class": {"type": "string"}, "probability": {"type": "number"}},
}

CLASSIFY: dict[str, Any] = {
    "parameters": [
        {"name": "top_k", "in": "query", "required": False, "schema": {"type": "integer", "minimum": 1, "default": 5}}
    ],
    "requestBody": {
        "required": True,
        "content": {
            "image/jpeg": BINARY,
            "image/png": BINARY,
            "image/webp": BINARY,
            "multipart/form-data": {
                "schema": {"type": "object", "required": ["image"], "properties": {"image": BINARY["schema"]}}
            },
        },
    },
    "responses": {
        "200": {
            "description": "The class of the image",
            "content": {
                "application/json": {
                    "schema": {
                        "allOf": [BEST],
                        "required": ["probabilities", "request_id"],
                        "properties": {
                            "probabilities": {"type": "array", "items": BEST},
                            "request_id": {"type": "string"},
                        },
                    }
                }
            },
        },
        **PROBLEMS,
    },
}

INFER: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}, "application/octet-stream": BINARY},
    },
    "responses": {
        "200": {
            "description": "Probabilities and labels",
            "content": {"application/json": {"schema": {"type": "object"}}, "application/octet-stream": BINARY},
        },
        **PROBLEMS,
    },
}

ASKS: dict[str, Any] = {
    "responses": {
        "200": {"description": "The answer", "content": {"application/json": {"schema": {"type": "object"}}}},
        **PROBLEMS,
    }
}


def described(method: str, path: str, handler: Callable[..., Any], says: dict[str, Any]) -> dict[str, Any]:
    """What the document says of one endpoint. Its summary is the handler's docstring."""
    named: list[Any] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall("{(.*?)}", path)
    ]
    operation = {"operationId": f"{handler.__name__} {path.strip('/')}", "summary": handler.__doc__}
    return {method.lower(): says | operation | {"parameters": named + says.get("parameters", [])}}


def document(title: str, version: str, paths: dict[str, Any]) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": title, "version": version}, "paths": paths}
