"""A figure as the page shows it: drawing, title, legend, caption, where its data stand, and what it shows in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from twoprong.report.figures import Series
from twoprong.report.words import percent


@dataclass(frozen=True)
class LegendEntry:
    sign: str
    colour: str
    name: str


@dataclass(frozen=True)
class Captioned:
    """`source` is a path into results.json."""

    id: str
    title: str
    source: str
    svg: Markup
    caption: str
    key: Sequence[LegendEntry]


def captioned(name: str, title: str, source: str, svg: str, caption: str, series: Sequence[Series]) -> Captioned:
    key = [
        LegendEntry(
            sign="━" if name == "roc" else one.sign,
            colour=f"var(--s{one.colour})" if one.colour else "currentColor",
            name=one.name,
        )
        for one in series
    ]
    return Captioned(f"figure-{name}", title, source, Markup(svg), caption, key)


def in_words(title: str, series: Sequence[Series], at: Callable[[float], str]) -> str:
    """What a figure shows: every value, or the ends of a long line."""
    parts = []
    for one in series:
        points = list(zip(one.x, one.y, strict=True))
        kept = points if len(points) <= 8 else [points[0], points[-1]]
        parts.append(f"{one.name}: " + ", ".join(f"{percent(y)} at {at(x)}" for x, y in kept))
    return f"{title}. " + "; ".join(parts)
