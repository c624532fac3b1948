"""An HTTP replica on Ray Serve: a whole service of its own, whose worker is the model replicas."""

import errno
import logging
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import metadata
from math import ceil
from pathlib import Path
from typing import Any

from ray import serve

from twoprong.errors import StateError
from twoprong.serve.app import make_app
from twoprong.serve.logs import log_to
from twoprong.serve.replicas import AT_ONCE, Replicas
from twoprong.serve.run import administered, bound_socket
from twoprong.serve.service import Service, running
from twoprong.serve.settings import ServeSettings
from twoprong.serve.worker import WorkerSettings

log = logging.getLogger("twoprong")

PORTS = 100  # that are tried for the admin port, from the given one on: a machine may have several ingress replicas


@dataclass(frozen=True)
class Deployed:
    """What is deployed: given to every ingress replica."""

    worker: WorkerSettings
    settings: ServeSettings
    admin_host: str = "127.0.0.1"
    admin_port: int = 8001
    json_logs: bool = False

    @property
    def batches(self) -> int:
        """How many batches an ingress replica has under way at most: together they can keep all model replicas busy."""
        return ceil(AT_ONCE * self.settings.ray.max_models / self.settings.ray.ingresses)


@serve.ingress()
class Ingress:
    """The same queue and application as on one machine. Ray calls `__serve_build_asgi_app__` once, before any request."""

    def __init__(self, models: Any, deployed: Deployed) -> None:
        log_to(logging.StreamHandler(sys.stderr), deployed.json_logs)
        self._models, self._deployed, self._parts = models, deployed, AsyncExitStack()
        self._service: Service | None = None
        self._admin: tuple[str, int] = "", 0

    async def __serve_build_asgi_app__(self) -> Any:
        deployed, enter = self._deployed, self._parts.enter_async_context
        bound = self._parts.enter_context(_first_free(deployed.admin_host, deployed.admin_port))
        settings = _own(deployed.settings, serve.get_replica_context().rank.rank)
        self._service = await enter(running(settings, Replicas(self._models, deployed.worker), deployed.batches))
        await enter(administered(self._service, bound))
        self._admin = bound.getsockname()[:2]
        log.info("the admin port of this ingress replica is %s:%d", *self._admin)
        return make_app(self._service, metadata.version("twoprong"), echo=False)  # Ray's proxy echoes request ids

    async def admin(self) -> tuple[str, int]:
        """Where this replica's admin port is."""
        return self._admin

    async def drain(self) -> bool:
        """Refuse what is new and answer what was accepted; False if that took longer than the grace time."""
        return self._service is None or await self._service.drain()

    async def check_health(self) -> None:
        """Raises StateError where the queue does not move; Ray then replaces the replica."""
        if self._service is not None and not self._service.watchdog.alive:
            raise StateError("the queue does not move")

    async def __del__(self) -> None:
        await self._parts.aclose()


def _own(settings: ServeSettings, rank: int) -> ServeSettings:
    """The settings with a folder for review of this replica's own: two in one folder would overwrite each other."""
    if not settings.review.folder:
        return settings
    folder = str(Path(settings.review.folder) / f"ingress-{rank}")
    return settings.model_copy(update={"review": settings.review.model_copy(update={"folder": folder})})


def _first_free(host: str, port: int) -> socket.socket:
    """A listening socket on the first free port. Raises StateError where none is."""
    for number in range(port, port + PORTS) if port else (0,):
        try:
            bound = bound_socket(host, number)
        except StateError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
            continue
        try:
            bound.listen()  # only now is it taken: another replica may have bound it, too
            return bound
        except OSError:
            bound.close()
    raise StateError(f"{host}:{port}: none of {PORTS} ports is free there; choose another --admin-port")
