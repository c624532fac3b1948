"""The arguments of `twoprong demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from twoprong.cli.arguments.shared import ResultsAsJson, Seed


@dataclass(frozen=True, kw_only=True)
class DemoArguments:
    """See the method work, in a minute or two on a CPU: fitted on digits, then on photographs as it comes."""

    directory: Annotated[Path, typer.Option("--out", help="Where bundle/, results.json and report.html go.")] = Path(
        "demo-out"
    )
    seed: Seed = 0
    as_json: ResultsAsJson = False
