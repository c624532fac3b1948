"""A command from the class of its arguments; the module that does the work, and torch with it, is loaded on the call."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import Any

import typer

from twoprong.cli.output import err
from twoprong.interrupts import CODE, begin, loading


def command(name: str, arguments: type[Any]) -> Callable[..., None]:
    """A function for typer with one parameter per field: hands one object to the function `name` of `twoprong.cli.NAME`."""

    def call(**given: Any) -> None:
        try:
            with loading():
                work = getattr(import_module(f"twoprong.cli.{name}"), name)
            begin()
            work(arguments(**given))
        except KeyboardInterrupt:  # typer would end without a word
            again = shlex.join(["twoprong", *sys.argv[1:], *(["--resume"] if "--resume" not in sys.argv else [])])
            said = f"continue with: {again}" if hasattr(arguments, "resume") else "nothing was kept"
            err.print(f"interrupted; {said}", highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(CODE) from None

    call.__name__, call.__doc__ = name, arguments.__doc__
    call.__annotations__ = {field.name: field.type for field in fields(arguments)}
    call.__signature__ = signature(arguments)  # type: ignore[attr-defined]  # what typer reads
    return call
