"""The admin application, on a port of its own: metrics, health, settings, the last batches. It is not for clients."""

import re
from ipaddress import ip_address
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from twoprong.serve.pages import page
from twoprong.serve.service import Service

LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)


def make_admin(service: Service) -> FastAPI:
    """The routes over a service. It runs in a thread of its own, so that it answers when the service's loop is stuck."""
    checks = [Depends(_check_host)]
    app = FastAPI(
        title="twoprong admin", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, dependencies=checks
    )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/dashboard")
    async def dashboard() -> Response:
        return page("dashboard")

    @app.get("/healthz")
    async def healthz() -> Response:
        said = {
            "ready": service.ready,
            "worker": service.worker.ready,
            "loop": service.watchdog.alive,
            "draining": service.draining,
            "restarts": service.worker.restarts,
        }
        return JSONResponse(said, 200 if service.ready else 503)

    @app.get("/config")
    async def config() -> dict[str, Any]:
        shown = service.settings.model_dump(mode="json") | {"batch": service.batcher.settings.model_dump(mode="json")}
        for key in shown["keys"].values():
            key["sha256"] = key["sha256"][:8] + "..."  # enough to tell keys apart
        return {
            "settings": shown,
            "model": {name: value for name, value in vars(service.model).items() if name != "samples"},
            "worker": vars(service.worker.settings),
        }

    @app.get("/batches")
    async def batches() -> list[dict[str, Any]]:
        return list(service.metrics.history)

    @app.get("/flagged")
    async def flagged() -> list[dict[str, Any]]:
        return [] if service.review is None else service.review.newest()

    @app.get("/flagged/{name}.png")
    async def picture(name: str) -> Response:
        found = None if service.review is None else service.review.picture(name)
        return Response(status_code=404) if found is None else Response(found, media_type="image/png")

    return app


async def _check_host(request: Request) -> None:
    """Refuse another host's name on a loopback address: a web page can make its own name mean this machine (DNS
    rebinding), and would then read the answers."""
    here = ip_address(request.scope["server"][0])
    here = getattr(here, "ipv4_mapped", None) or here  # of an IPv4 connection to an IPv6 socket
    if here.is_loopback and not LOCAL.fullmatch(request.headers.get("host", "")):
        raise HTTPException(403, "expected the host localhost, 127.0.0.1 or [::1]")
