"""The command line: one file per command, errors as one line, exit code 2 for a user's mistake."""

import os
import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.markup import escape

from twoprong.cli.attack import attack
from twoprong.cli.demo import demo
from twoprong.cli.evaluate import evaluate
from twoprong.cli.fit import fit
from twoprong.cli.inspect import inspect
from twoprong.cli.output import err, out, set_up_logging
from twoprong.cli.reproduce import reproduce
from twoprong.errors import TwoprongError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"twoprong {metadata.version('twoprong')}", highlight=False)
        raise typer.Exit


@app.callback(epilog="TWOPRONG_DEBUG=1 in the environment shows the traceback behind an error.")
def twoprong(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """A two-pronged adversarial defence around any image classifier."""
    set_up_logging()


for command in (demo, fit, attack, evaluate, reproduce, inspect):
    app.command()(command)


def main() -> None:
    """The entry point."""
    try:
        app()
    except TwoprongError as error:
        if os.environ.get("TWOPRONG_DEBUG"):
            raise
        err.print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if os.environ.get("TWOPRONG_DEBUG"):
            raise
        err.print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("interrupted; fit, evaluate and reproduce go on with --resume")
        sys.exit(130)
