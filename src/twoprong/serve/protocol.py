"""HTTP as uvicorn reads it, except that the head of a request is bounded and that what cannot be read is a problem, too."""

import asyncio
import uuid
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from twoprong.serve.http import access
from twoprong.serve.problems import MEDIA_TYPE, Problem

HEAD = 2**16  # bytes of a request line and its headers
STEP = 2**14  # bytes that are parsed at a time: up to two of them may come on top
LINGER = 2.0  # seconds


class Protocol(HttpToolsProtocol):
    """One connection. A head that is too long is answered 431 while it is received, what is not HTTP 400; both end it."""

    _unfinished = 0  # bytes since the last part of a body or end of a head or message: of a head, or of a body's trailers
    _refused = False

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), STEP):
            piece = data[start : start + STEP]
            self._unfinished += len(piece)
            super().data_received(piece)
            if self._refused:
                return
            if self._unfinished > HEAD:
                self._refuse(Problem(431, f"expected at most {HEAD:,} bytes of request line and headers"))
                return

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "expected a request in HTTP/1.1; this cannot be read"))

    def _refuse(self, problem: Problem) -> None:
        """Answer, and take nothing more. What still comes is thrown away for a moment: closing at once would reset the
        connection before the client has read the answer."""
        self._refused, request_id = True, uuid.uuid4().hex
        app: Any = self.config.app
        if metrics := getattr(app.state, "metrics", None):
            metrics.requests.labels("other", str(problem.status)).inc()
        said = {"request_id": request_id, "endpoint": "other", "status": problem.status}
        access.info("refused %d", problem.status, extra={"fields": said})
        body = problem.body(request_id)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[problem.status] + lines + b"\r\n" + body)
        self.transport.set_protocol(asyncio.Protocol())
        self.loop.call_later(LINGER, self.transport.close)
        self.connection_lost(ConnectionAbortedError())  # as far as uvicorn knows: who reads the body need not wait for it
