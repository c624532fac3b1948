"""What every request goes through: an id, limits on its body, patience, and errors as problems."""

import asyncio
import logging
import re
import time
import uuid
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twoprong.serve.batcher import Slots
from twoprong.serve.logs import REQUEST_ID
from twoprong.serve.metrics import Metrics
from twoprong.serve.problems import MEDIA_TYPE, Problem
from twoprong.serve.settings import LimitSettings

log = logging.getLogger("twoprong")
access = logging.getLogger("twoprong.access")

GONE = 499  # the client left; nobody reads the answer
ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
ZIPPED = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

STEP = 2**16  # bytes; a body that comes slowly, or not at all, keeps no more room than this from others

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Requests:
    """Middleware: gives each request an id, puts it into the answer if `echo`, counts and logs what became of it."""

    def __init__(self, app: ASGIApp, metrics: Metrics, echo: bool = True) -> None:
        self.app, self.metrics, self.echo = app, metrics, echo

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"], start, status = request_id, time.perf_counter(), 500
        REQUEST_ID.set(request_id)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.echo:
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - start
            endpoint = scope.get("template", "other")
            self.metrics.requests.labels(endpoint, str(status)).inc()
            if status == 200 and "key" in scope:  # which only requests with images have
                self.metrics.seconds.observe(seconds)
            said = {"request_id": request_id, "endpoint": endpoint, "status": status, "seconds": round(seconds, 4)}
            access.info("%s %s %d", scope["method"], endpoint, status, extra={"fields": said | {"key": scope.get("key")}})


def problem_response(problem: Problem, request: Request) -> Response:
    body = problem.body(request.scope.get("request_id", ""))
    return Response(body, problem.status, problem.headers, MEDIA_TYPE)


def guarded(path: str, handler: Handler) -> Handler:
    """The handler of a path whose errors become problems.

    What is not foreseen is logged; the client hears only that it happened.
    """

    async def call(request: Request) -> Response:
        request.scope["template"] = path  # for metrics and logs: not what clients make up
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except Exception as error:
            problem = Problem.of(error)
            if problem.status == 500:
                log.exception("request %s failed", request.scope.get("request_id"))
            return problem_response(problem, request)

    return call


def announced(request: Request, limits: LimitSettings) -> int:
    """How many bytes the body will have: as it says, or else as many as it may. Raises Problem 413 before any is read."""
    said, size = request.headers.get("content-length", ""), limits.max_upload
    if said.isascii() and said.isdigit():
        size = int(said.lstrip("0")[:20] or 0)  # a number with more digits is too large in any case
    if size > limits.max_upload:
        raise Problem(413, f"expected at most {limits.max_upload:,} bytes")
    zipped = request.headers.get("content-encoding", "identity") != "identity"
    return limits.max_upload if zipped else size


async def read_body(request: Request, limits: LimitSettings, slots: Slots, size: int) -> bytes:
    """The body of the `announced` size, unzipped. Room in `slots` is taken for what has come, and for a step ahead.

    Raises Problem 408 where it is slow, 413 where it is large, 415 for another encoding; OverloadError.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", *ZIPPED):
        raise Problem(415, f"Content-Encoding: expected {', '.join(ZIPPED)} or none")
    body, held = bytearray(), 0
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) <= held:
                    continue
                if len(body) > size:
                    raise Problem(413, f"expected at most {size:,} bytes")
                more = min(len(body) + STEP, size) - held
                slots.extend(0, more)
                held += more
    except TimeoutError as error:
        raise Problem(408, f"the body did not come within {limits.read_seconds:g} s") from error
    if encoding == "identity":
        return bytes(body)
    found = await asyncio.to_thread(_unzipped, body, encoding, limits.max_upload)
    slots.extend(0, max(0, len(found) - held))
    return found


def _unzipped(body: bytearray, encoding: str, limit: int) -> bytes:
    unzip = zlib.decompressobj(ZIPPED[encoding])
    try:
        found = unzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise Problem(400, f"Content-Encoding: this is not {encoding}") from error
    if len(found) > limit:
        raise Problem(413, f"expected at most {limit:,} bytes, unzipped")
    if not unzip.eof or unzip.unused_data:
        raise Problem(400, f"Content-Encoding: this is not one whole {encoding} stream")
    return found


async def while_connected(request: Request, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The work's result; it is cancelled when the client leaves (ClientDisconnect) or it takes too long (Problem 504)."""
    gone = asyncio.create_task(_left(request))

    def give_up(_: Any) -> None:
        with suppress(RuntimeError):  # the answer came first
            time_left.reschedule(0.0)

    try:
        async with asyncio.timeout(seconds) as time_left:
            gone.add_done_callback(give_up)
            return await work
    except TimeoutError as error:
        if gone.done():
            raise ClientDisconnect from error
        raise Problem(504, f"no answer within {seconds:g} s") from error
    finally:
        gone.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
