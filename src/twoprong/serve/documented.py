"""What the OpenAPI document says of bodies and answers that FastAPI does not see."""

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
PROBLEMS = {str(status): PROBLEM for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)}
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
