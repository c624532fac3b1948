"""The command line: errors as one line, exit code 2 for a user's mistake.

A command is two files: `arguments/NAME.py` says what it takes, `NAME.py` does the work.
"""

import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.markup import escape

from twoprong.cli.arguments.attack import AttackArguments
from twoprong.cli.arguments.demo import DemoArguments
from twoprong.cli.arguments.evaluate import EvaluateArguments
from twoprong.cli.arguments.fit import FitArguments
from twoprong.cli.arguments.inspect import InspectArguments
from twoprong.cli.arguments.reproduce import ReproduceArguments
from twoprong.cli.arguments.serve import ServeArguments
from twoprong.cli.lazy import command
from twoprong.cli.output import err, out, set_up_logging
from twoprong.errors import TwoprongError

COMMANDS: dict[str, type[Any]] = {
    "demo": DemoArguments,
    "fit": FitArguments,
    "attack": AttackArguments,
    "evaluate": EvaluateArguments,
    "reproduce": ReproduceArguments,
    "inspect": InspectArguments,
    "serve": ServeArguments,
}

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


for name, kind in COMMANDS.items():
    app.command(name)(command(name, kind))


def main() -> None:
    """The entry point."""
    try:
        app()
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (TwoprongError, OSError) as error:
        if os.environ.get("TWOPRONG_DEBUG"):
            raise
        err.print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
