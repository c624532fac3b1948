"""`twoprong serve`."""

import asyncio
import ipaddress
import json
import logging
import sys

import typer

from twoprong.cli.arguments.serve import LogFormat, ServeArguments
from twoprong.cli.arguments.shared import Device
from twoprong.errors import InputError
from twoprong.shipped import find

log = logging.getLogger("twoprong")


def serve(given: ServeArguments) -> None:
    """Serve until told to stop. Exit code 1 if something that was accepted could not be answered in the grace time."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"serve needs more packages ({error.name} is missing): pip install 'twoprong[serve]'") from error
    from twoprong.serve.logs import log_to
    from twoprong.serve.run import Addresses
    from twoprong.serve.run import serve as run
    from twoprong.serve.settings import load_settings

    settings, bundle = load_settings(given.config), find(given.bundle)
    log_to(logging.StreamHandler(sys.stderr), given.log_format is LogFormat.json)
    if not settings.keys and not _loopback(given.host):
        log.warning("no API keys are set and %s is not this machine alone: everybody may use the service", given.host)
    if not _loopback(given.admin_host):
        log.warning("the admin port listens on %s: it tells routes and statistics to whoever asks", given.admin_host)

    def listening(where: Addresses) -> None:
        sys.stdout.write(json.dumps({"listening": vars(where)}) + "\n")
        sys.stdout.flush()

    where = Addresses(given.host, given.port, given.admin_host, given.admin_port)
    whole = asyncio.run(
        run(str(bundle), _device(given.device), settings, where, listening, tuple(given.allow or ()), given.demo)
    )
    if not whole:
        raise typer.Exit(1)


def _device(device: Device) -> str:
    from twoprong.cli.device import choose

    return str(choose(device))


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
