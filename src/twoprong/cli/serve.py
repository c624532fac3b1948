"""`twoprong serve`."""

import asyncio
import importlib
import ipaddress
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from twoprong.cli.arguments.serve import Engine, LogFormat, ServeArguments
from twoprong.cli.arguments.shared import Device
from twoprong.errors import InputError
from twoprong.shipped import HOME, find

if TYPE_CHECKING:
    from twoprong.serve.run import Addresses
    from twoprong.serve.settings import ServeSettings

log = logging.getLogger("twoprong")

Listening = Callable[["Addresses"], None]
WEB = ("fastapi", "prometheus_client", "uvicorn")


def serve(given: ServeArguments) -> None:
    """Serve until told to stop. Exit code 1 if something that was accepted could not be answered in the grace time."""
    _need("serve", "serve", WEB)
    if given.engine is Engine.ray:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to others
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # lines of several replicas look alike; read when ray is imported
        _need("serve --engine ray", "ray", ("ray.serve",))
    from twoprong.serve.logs import log_to
    from twoprong.serve.run import Addresses
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
    serve_with = _on_ray if given.engine is Engine.ray else _here
    whole = serve_with(str(bundle), settings, where, listening, given)
    if not whole:
        raise typer.Exit(1)


def _need(what: str, extra: str, modules: Iterable[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(
                f"{what} needs more packages ({error.name} is missing): pip install 'twoprong[{extra}]'"
            ) from error


def _here(bundle: str, settings: "ServeSettings", where: "Addresses", listening: Listening, given: ServeArguments) -> bool:
    from uvicorn.loops.auto import auto_loop_factory  # uvloop's loop, where that is installed

    from twoprong.serve.run import serve as run

    allow = tuple(given.allow or ())
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(run(bundle, _device(given.device), settings, where, listening, allow, given.demo))


def _on_ray(bundle: str, settings: "ServeSettings", where: "Addresses", listening: Listening, given: ServeArguments) -> bool:
    from twoprong.serve.ingress import Deployed
    from twoprong.serve.ray import device_of, serve_on_ray
    from twoprong.serve.service import worker_settings

    device, path = device_of(settings), Path(bundle).absolute()
    if given.device not in (Device.auto, device):
        raise InputError(f"--device {given.device}: on Ray the models' device follows ray.model_gpus; set it in --config")
    there = path.name if path.parent == HOME else str(path)  # the package may be elsewhere on other machines
    worker = worker_settings(there, device, settings, given.allow or (), given.demo)
    as_json = given.log_format is LogFormat.json
    return serve_on_ray(Deployed(worker, settings, where.admin_host, where.admin_port, as_json), where, listening)


def _device(device: Device) -> str:
    from twoprong.cli.device import choose

    return str(choose(device))


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
