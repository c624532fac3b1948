"""`twoprong serve`: both ports, signals, and an end that loses nothing."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata

import uvicorn
from starlette.types import ASGIApp

from twoprong.errors import InputError, StateError
from twoprong.serve.admin import make_admin
from twoprong.serve.app import make_app
from twoprong.serve.protocol import Protocol
from twoprong.serve.service import Service, running, worker_settings
from twoprong.serve.settings import ServeSettings
from twoprong.serve.worker import Worker

log = logging.getLogger("twoprong")

BACKLOG = 1024
CLOSING = 5  # seconds that open connections have after the last answer


@dataclass(frozen=True)
class Addresses:
    """Where to listen; a port of 0 is chosen by the system."""

    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8001


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the service decides when to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    bundle: str,
    device: str,
    settings: ServeSettings,
    where: Addresses,
    listening: Callable[[Addresses], None],
    allow: tuple[str, ...] = (),
    demo: bool = False,
) -> bool:
    """Serve until SIGTERM or SIGINT, then drain. Whether everything that was accepted was answered.

    Raises InputError for one port twice, StateError where an address is taken or the bundle cannot be loaded.
    """
    stop, loop, loading = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()

    def end() -> None:
        nonlocal loading
        stop.set()
        if loading is not None:  # nothing was accepted yet
            loading.cancel()
            loading = None

    if where.port and where.port == where.admin_port:
        raise InputError(f"--admin-port: expected another port than --port, got {where.port} for both")
    public, admin = bound_socket(where.host, where.port), bound_socket(where.admin_host, where.admin_port)
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, end)
    with public, admin, suppress(asyncio.CancelledError):
        worker = Worker(worker_settings(bundle, device, settings, allow, demo), settings.spare)
        async with running(settings, worker) as service, administered(service, admin):
            loading = None
            front = _server(make_app(service, metadata.version("twoprong")))
            listen(public)
            serving = asyncio.create_task(front.serve([public]))
            listening(Addresses(*public.getsockname()[:2], *admin.getsockname()[:2]))
            ended = asyncio.create_task(stop.wait())
            await asyncio.wait({ended, serving}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            log.info("stopping: %d images are to be answered", service.batcher.pending)
            whole = await service.drain()
            front.should_exit = True
            await serving
            return whole
    return True


@asynccontextmanager
async def administered(service: Service, bound: socket.socket) -> AsyncIterator[None]:
    """The admin port of a service: in a thread, so that it answers when the service's loop is stuck."""
    listen(bound)
    back = _server(make_admin(service))
    aside = threading.Thread(target=lambda: asyncio.run(back.serve([bound])), name="admin", daemon=True)
    aside.start()
    try:
        yield
    finally:
        back.should_exit = True
        aside.join(CLOSING)


def _server(app: ASGIApp) -> Server:
    return Server(
        uvicorn.Config(
            app, http=Protocol, log_config=None, access_log=False, lifespan="off", backlog=BACKLOG, server_header=False,
            timeout_keep_alive=30, timeout_graceful_shutdown=CLOSING, ws="none",
        )
    )  # fmt: skip


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is to listen. Raises StateError where somebody else listens; of somebody who is about to, `listen`
    hears."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise _taken(host, port, error) from error
    bound.setblocking(False)
    return bound


def listen(bound: socket.socket) -> None:
    """Take connections. Raises StateError where somebody else who has bound the port was first."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _taken(host, port, error) from error


def _taken(host: str, port: int, error: OSError) -> StateError:
    return StateError(f"{host}:{port}: cannot listen there ({error.strerror or error}); choose another port")
