"""Errors as clients see them: RFC 9457, with the member `error` that the Open Inference Protocol wants."""

import json
from http import HTTPStatus

from twoprong.serve.batcher import BatchError, UnavailableError

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):  # noqa: N818  # the RFC's own word
    """An answer other than 200. `detail` is for the client: it never says anything of other clients, routes or tests."""

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after

    @classmethod
    def of(cls, error: Exception) -> "Problem":
        """What a client is told of an error."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, UnavailableError):
            busy = "the batch of this image could not be judged; try again" if isinstance(error, BatchError) else str(error)
            return cls(503, busy, error.retry_after)
        return cls(500, "something went wrong here; the request id is in the log")

    def body(self, request_id: str) -> bytes:
        said = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "error": self.detail,
            "request_id": request_id,
        }
        return json.dumps(said).encode()

    @property
    def headers(self) -> dict[str, str]:
        wait = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}
        return wait | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})
