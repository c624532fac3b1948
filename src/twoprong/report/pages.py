"""Where pages come from: templates in which everything is escaped and a missing value is an error."""

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def templates() -> Environment:
    return Environment(
        loader=PackageLoader("twoprong.report"), autoescape=select_autoescape(["j2"]), undefined=StrictUndefined
    )
