"""The public HTTP application. Clients get labels and probabilities; never a route, a statistic, or a word of others."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from twoprong.serve import v2
from twoprong.serve.batcher import Slots
from twoprong.serve.documented import ASKS, CLASSIFY, INFER, described, document
from twoprong.serve.http import Requests, announced, guarded, problem_response, read_body, while_connected
from twoprong.serve.images import Pictures, decode, digest, opened_if_small
from twoprong.serve.pages import page
from twoprong.serve.problems import Problem
from twoprong.serve.service import Service

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

RAW = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
VERSION = "1"  # of the model: a service has one


def make_app(service: Service, version: str, echo: bool = True) -> FastAPI:
    """The routes over a service. `echo` says whether request ids are put into answers here."""
    app = FastAPI(title="twoprong", version=version, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.metrics = service.metrics  # for requests that cannot be read
    app.add_middleware(Requests, metrics=service.metrics, echo=echo)
    answers = Answers(service, version)

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        response = problem_response(Problem(error.status_code, str(error.detail)), request)
        response.headers.update(error.headers or {})  # a 405 says which methods are allowed
        return response

    paths: dict[str, Any] = {}

    def route(method: str, path: str, handler: Any, says: dict[str, Any] = ASKS) -> None:
        app.add_route(path, guarded(path, handler), methods=[method])  # Starlette's: FastAPI's own would cost a third more
        paths[path] = described(method, path, handler, says)

    app.openapi = lambda: document(app.title, version, paths)  # type: ignore[method-assign]
    route("POST", "/v1/classify", answers.classify, CLASSIFY)
    route("GET", "/v2", answers.server)
    route("GET", "/v2/health/live", answers.live)
    route("GET", "/v2/health/ready", answers.ready)
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{number}"):
        route("GET", path, answers.metadata)
        route("GET", f"{path}/ready", answers.ready)
        route("POST", f"{path}/infer", answers.infer, INFER)
    if service.settings.page:
        app.add_api_route("/", lambda: page("index"), include_in_schema=False)
        app.add_api_route("/samples", lambda: JSONResponse(service.model.samples), include_in_schema=False)
    return app


class Answers:
    """One method per endpoint. Errors are raised; `guarded` makes problems of them."""

    def __init__(self, service: Service, version: str) -> None:
        self._service, self._model, self._limits = service, service.model, service.settings.limits
        self._version = version

    async def classify(self, request: Request) -> Response:
        """One picture: JPEG, PNG or WebP, as the body or as the only file of a form."""
        key = self._known(request, 1)
        kind = request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
        if kind not in (*RAW, "multipart/form-data"):
            raise Problem(415, f"Content-Type: expected {', '.join(RAW)} or multipart/form-data")
        top = _top_k(request, self._model.classes)
        size = announced(request, self._limits)
        with self._service.batcher.reserve(key, prod(self._model.shape), announced=size) as slots:
            body = await read_body(request, self._limits, slots, size)
            work = self._classify(slots, kind, request.headers, body)
            (found,) = await while_connected(request, work, self._limits.answer_seconds)
        return JSONResponse(_classified(found, self._model.classes, top, request.scope["request_id"]))

    async def infer(self, request: Request) -> Response:
        """The Open Inference Protocol: one tensor of images, or encoded pictures as BYTES."""
        self._check_model(request)
        key, size = self._known(request, 1), announced(request, self._limits)
        with self._service.batcher.reserve(key, 0, announced=size) as slots:
            body = await read_body(request, self._limits, slots, size)
            work = self._infer(slots, key, request.headers.get(v2.HEADER), body)
            del body
            asked, found = await while_connected(request, work, self._limits.answer_seconds)
        answer, headers = asked.answer(self._model, found)
        return Response(answer, headers=headers)

    async def server(self, request: Request) -> Response:
        """What this server is, and the names of its models."""
        said = {"name": "twoprong", "version": self._version, "extensions": ["binary_tensor_data"]}
        return JSONResponse(said | {"models": [self._model.name]})

    async def metadata(self, request: Request) -> Response:
        """The model's inputs and outputs."""
        self._check_model(request)
        return JSONResponse(v2.metadata(self._model))

    async def live(self, request: Request) -> Response:
        """Whether the process runs."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Whether requests are answered now."""
        if "name" in request.path_params:
            self._check_model(request)
        if not self._service.ready:
            raise Problem(503, "not ready", 1)
        return JSONResponse({"ready": True})

    def _known(self, request: Request, images: int) -> str:
        """The name of the client's key, with some images counted against its rate."""
        name = request.scope["key"] = self._service.keys.name(request.headers)
        self._service.keys.spend(name, images)
        return name

    def _check_model(self, request: Request) -> None:
        if request.path_params["name"] != self._model.name:
            raise Problem(404, f"expected the model {self._model.name!r}")
        if request.path_params.get("number", VERSION) != VERSION:
            raise Problem(404, f"expected version {VERSION!r}")

    def _picture(self, data: "bytes | Picture") -> np.ndarray:
        return decode(data, self._model.shape, self._limits.max_pixels)

    async def _aside(self, work: Callable[[], Any]) -> Any:
        """The result of work that would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._service.decoders, work)

    async def _classify(self, slots: Slots, kind: str, headers: Headers, body: bytes) -> np.ndarray:
        if kind == "multipart/form-data":
            body = await _only_file(headers, body)
        small = opened_if_small(body)
        image = self._picture(small) if small else await self._aside(partial(self._picture, body))
        return await _answered(slots, [image])

    async def _infer(self, slots: Slots, key: str, length: str | None, body: bytes) -> tuple[v2.Request, np.ndarray]:
        asked = await self._aside(partial(v2.Request, body, length, self._model.shape, self._limits.max_images))
        del body  # what is kept while images wait should be the images
        if asked.images > (most := slots.most(prod(self._model.shape))):
            raise Problem(413, f"expected at most {most} images beside a body of this size, got {asked.images}; send fewer")
        self._service.keys.spend(key, asked.images, spent=1)
        slots.extend(asked.images - 1, asked.images * prod(self._model.shape))
        pictures = Pictures(self._model.shape, self._limits.max_pixels)
        try:
            images = await self._aside(partial(asked.decode, pictures))
        finally:
            pictures.give_up()  # a thread that is in the middle of it cannot be cancelled
        return asked, await _answered(slots, images)


async def _answered(slots: Slots, images: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(await slots.submit_all(images, [digest(image) for image in images]))


def _top_k(request: Request, classes: Sequence[str] | None) -> int:
    given, most = request.query_params.get("top_k", "5"), 1000 if classes is None else len(classes)
    if not (given.isascii() and given.isdigit() and len(given) < 6 and int(given) >= 1):
        raise Problem(422, "top_k: expected a whole number from 1")
    return min(int(given), most)


def _classified(found: np.ndarray, classes: Sequence[str] | None, top: int, request_id: str) -> dict[str, Any]:
    def one(label: int) -> dict[str, Any]:
        named = {} if classes is None else {"class": classes[label]}
        return {"label": label, **named, "probability": round(float(found[label]), 6)}

    best = [one(int(label)) for label in np.argsort(-found, kind="stable")[:top]]
    return {**best[0], "probabilities": best, "request_id": request_id}


async def _only_file(headers: Headers, body: bytes) -> bytes:
    async def whole() -> Any:
        yield body

    try:
        form = await MultiPartParser(headers, whole(), max_files=1, max_fields=4).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise Problem(400, "expected a form with one file") from error
    try:
        files = [value for value in form.values() if not isinstance(value, str)]
        if len(files) != 1:
            raise Problem(400, f"expected a form with one file, got {len(files)}")
        return await files[0].read()
    finally:
        await form.close()
