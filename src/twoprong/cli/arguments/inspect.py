"""The arguments of `twoprong inspect`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Verify every file of a bundle and show what is in it."""

    bundle: Annotated[Path, typer.Argument(help="A bundle's directory, or the name of one that comes with the package.")]
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False
