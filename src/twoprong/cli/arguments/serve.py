"""The arguments of `twoprong serve`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from twoprong.cli.arguments.shared import Allow, Device, OnDevice


class LogFormat(StrEnum):
    text = "text"
    json = "json"


class Engine(StrEnum):
    local = "local"
    ray = "ray"


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """Answer single images over HTTP: they are queued until they make a batch that can be tested. docs/serving.md."""

    bundle: Annotated[str, typer.Argument(help="The bundle to serve: its directory, or its name.")] = "cifar10-small"
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port for clients; 0 takes a free one.")] = 8000
    admin_host: Annotated[str, typer.Option(help="The address of the admin port; it is for you alone.")] = "127.0.0.1"
    admin_port: Annotated[int, typer.Option(min=0, max=65535, help="The port for metrics and health.")] = 8001
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A TOML file: batches, limits, API keys.")
    ] = None
    engine: Annotated[
        Engine, typer.Option(help="local: a worker process here. ray: replicas on Ray Serve, on one machine or many.")
    ] = Engine.local
    device: OnDevice = Device.auto
    allow: Allow = None
    log_format: Annotated[LogFormat, typer.Option(help="How the log on stderr is written.")] = LogFormat.text
    demo: Annotated[
        bool, typer.Option("--demo", help="Samples on the page, and what an attack does to them. Not for production.")
    ] = False
