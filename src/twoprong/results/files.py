"""results.json on disk: read whole or refused, and the JSON Schema that says what whole is."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from twoprong.errors import DataError
from twoprong.results.evaluation import EvaluationResults
from twoprong.results.reproduction import ReproductionResults

Results = EvaluationResults | ReproductionResults
KINDS: dict[str, type[Results]] = {"evaluation": EvaluationResults, "reproduction": ReproductionResults}


def read_results(path: Path) -> Results:
    """The results.json at `path`. Raises DataError, with the file's name and what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected the results of a run, got no readable JSON ({error})") from error
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind not in KINDS:
        raise DataError(f"{path}: expected results of kind {' or '.join(KINDS)}, got kind {kind!r}")
    try:
        return KINDS[kind].model_validate(content)
    except ValidationError as error:
        raise DataError(f"{path}: expected the format of docs/results-format.md, got {_told(error)}") from error


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of results, as it comes with the package."""
    file = resources.files("twoprong.results").joinpath(f"{kind}.schema.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _told(error: ValidationError, most: int = 3) -> str:
    """The first problems, each with its place."""
    found = [f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in error.errors(include_url=False)]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(found[:most]) + more
