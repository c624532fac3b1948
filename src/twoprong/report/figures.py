"""Figures for the reports: SVG that follows the page's colours, and images as data addresses."""

import base64
import hashlib
import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:  # matplotlib takes half a second to import: only who draws pays for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"  # drawn in this colour, then replaced by the page's own
PALETTE = ("#2a7de1", "#e0632d", "#1d9a6c", "#9159d6", "#cf3f8b", "#a07a08")  # replaced by --s1 … --s6 where a page has them
CLEAN, ADVERSARIAL = PALETTE[:2]
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}  # matplotlib's name → the sign in the page's legend
WIDTH = 4.7  # inches; about as wide as a phone at the font's own size, so that its text stays readable there
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "font.size": 11, "text.color": INK, "xtick.color": INK, "ytick.color": INK}

Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Series:
    """A line: shares (0 to 1) over x, with an interval for each where there is one. Colour 0 is the text's, dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[Sequence[float]] | None = None
    colour: int = 1

    @property
    def marker(self) -> str:
        return list(MARKERS)[(self.colour - 1) % len(MARKERS)]

    @property
    def sign(self) -> str:
        """The marker as a character, for the legend beside the figure."""
        return MARKERS[self.marker] if self.colour else "┅"

    @property
    def hex(self) -> str:
        return PALETTE[self.colour - 1] if self.colour else INK


def histogram(series: Mapping[str, Sequence[float]], threshold: float, title: str) -> str:
    """The statistic of clean (first) and adversarial (second) batches as one SVG, with the threshold drawn."""
    from matplotlib.figure import Figure

    with _style("twoprong"):
        figure = Figure(figsize=(6.4, 2.9), layout="constrained", facecolor="none")
        axes = figure.subplots(subplot_kw={"facecolor": "none"})
        values = [value for group in series.values() for value in group]
        bins = np.linspace(min([*values, threshold]), max([*values, threshold]), 40)
        for (name, group), colour in zip(series.items(), (CLEAN, ADVERSARIAL), strict=True):
            axes.hist(group, bins=bins.tolist(), color=colour, alpha=0.8, label=name)
        axes.axvline(threshold, color=INK, linestyle="--", linewidth=1.4, label="threshold")
        _plain(axes, "MMD-OPT statistic", "batches")
        axes.legend(frameon=False, loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.18))
        return _svg(figure, title)


def lines(
    series: Sequence[Series],
    label: str,
    *,
    x: str,
    y: str,
    ticks: Ticks | None = None,
    at: Sequence[float] = (),
    level: float | None = None,
    mark: float | None = None,
    top: float = 1.0,
    dense: bool = False,
) -> str:
    """Shares (drawn in %) over x: bands for intervals, or bars where x are named `ticks`; a `level` and a `mark` (x) dotted.

    Ticks stand at the places `at` where there is room. `dense` lines are drawn without markers. The legend belongs to the
    page, where long names can wrap.
    """
    with _style(label):
        figure, axes = _frame(3.0, left=0.68, bottom=0.58)
        for one in series:
            values = 100 * np.asarray(one.y)
            dashes = "--" if one.colour == 0 else "-"
            axes.plot(one.x, values, color=one.hex, linestyle=dashes, linewidth=1.8, markersize=5.5,
                      marker=one.marker if one.colour and not dense else "")  # fmt: skip
            if one.intervals:
                low, high = 100 * np.asarray(one.intervals).T
                if ticks or len(values) == 1:
                    axes.vlines(one.x, low, high, color=one.hex, linewidth=1.4, alpha=0.7)
                else:
                    axes.fill_between(one.x, low, high, color=one.hex, alpha=0.16, linewidth=0)
        if level is not None:
            axes.axhline(100 * level, color=INK, linestyle=":", linewidth=1.4)
        if mark is not None:
            axes.axvline(mark, color=INK, linestyle=":", linewidth=1.2, alpha=0.6)
        if ticks:
            every = math.ceil(
                0.024 * max(len(name) for _, name in ticks) * len(ticks)
            )  # where names would touch, leave some out
            names = [name if (len(ticks) - 1 - n) % every == 0 else "" for n, (_, name) in enumerate(ticks)]
            axes.set_xticks([place for place, _ in ticks], names)
            axes.set_xlim(ticks[0][0] - 0.35, ticks[-1][0] + 0.35)
        elif at:
            longest = max(len(f"{place:.3g}") for place in at)
            preferred = sorted(set(at), key=lambda place: (place != mark, place))
            places = _apart(preferred, room=0.028 * longest * (max(at) - min(at)))
            axes.set_xticks(places, [f"{place:.3g}" for place in places])
        axes.set_ylim(-2 * top, 102 * top)
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)
        _plain(axes, x, y)
        return _svg(figure, label)


def dots(rows: Sequence[str], series: Sequence[Series], label: str, *, x: str) -> str:
    """Shares (drawn in %) from left to right, one row for each name; the `x` of a series counts rows from the top."""
    with _style(label):
        figure, axes = _frame(0.85 + 0.3 * len(rows), left=0.3 + 0.078 * max(map(len, rows)), bottom=0.58)
        for one in series:
            if one.intervals:
                low, high = 100 * np.asarray(one.intervals).T
                axes.hlines(one.x, low, high, color=one.hex, linewidth=1.4, alpha=0.6)
            axes.plot(
                100 * np.asarray(one.y), one.x, color=one.hex, linestyle="", marker=one.marker, markersize=6.5, alpha=0.9
            )
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(-3, 103)
        axes.grid(color=INK, alpha=0.12, linewidth=0.8)
        _plain(axes, x, "")
        return _svg(figure, label)


def panel(clean: Sequence[float], attacked: Sequence[float], threshold: float, span: tuple[float, float], label: str) -> str:
    """One of several small histograms with a shared axis: clean batches upwards, attacked ones downwards.

    The axis is linear about zero as far as the threshold and logarithmic beyond, so that both sides of it can be seen.
    """
    with _style(label):
        figure, axes = _frame(1.55, left=0.12, bottom=0.36)
        width = max(abs(threshold), 1e-6)
        low, middle, high = np.arcsinh(np.asarray([span[0], threshold, span[1]]) / width)
        below = max(
            1, round(48 * (middle - low) / (high - low))
        )  # the threshold is an edge, so that no bin lies on both sides
        places = [*np.linspace(low, middle, below, endpoint=False), *np.linspace(middle, high, max(2, 49 - below))]
        bins = width * np.sinh(places)
        bins[below] = threshold
        for group, colour, side in ((clean, CLEAN, 1), (attacked, ADVERSARIAL, -1)):
            count, _ = np.histogram(np.clip(group, *span), bins)
            height = side * count / max(count.max(), 1)
            axes.stairs(height, bins, fill=True, color=colour, alpha=0.85, baseline=0)
        axes.axvline(threshold, color=INK, linestyle="--", linewidth=1.4)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xscale("asinh", linear_width=width)
        axes.set_xlim(*span)
        axes.set_ylim(-1.08, 1.08)
        _plain(axes, "", "")
        ticks = _round_places(span, width)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        return _svg(figure, label)


def picture(image: Tensor) -> str:
    """An image (C, H, W) as a PNG data address, one pixel a pixel; what lies outside [0, 1] is shown as its end."""
    from PIL import Image

    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    out = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def _style(salt: str) -> AbstractContextManager[None]:
    """Figures drawn inside have this style; `salt` decides their ids."""
    import matplotlib

    return matplotlib.rc_context({**STYLE, "svg.hashsalt": salt})


def _frame(height: float, left: float, bottom: float) -> "tuple[Figure, Axes]":
    """A figure as wide as a phone with margins in inches, so that the axes of several stand exactly under each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), facecolor="none")
    right, top = 0.14, 0.12
    box = (left / WIDTH, bottom / height, 1 - (left + right) / WIDTH, 1 - (bottom + top) / height)
    return figure, figure.add_axes(box, facecolor="none")


def _plain(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_edgecolor(INK)


def _round_places(span: tuple[float, float], width: float) -> list[float]:
    """Zero, powers of ten and, where there is room, twice and five times these; no two closer than a label is wide."""
    scales = [[factor * 10.0**power for power in range(-7, 7)] for factor in (1, 2, 5)]
    places = [0.0, *(sign * place for scale in scales for place in scale for sign in (1, -1) if place >= width / 3)]
    low, high = np.arcsinh(np.asarray(span) / width)
    edge = 0.06 * (high - low)  # a label that stands nearer to the end would be cut off
    drawn = [place for place in np.arcsinh(np.asarray(places) / width).tolist() if low + edge <= place <= high - edge]
    return [float(f"{width * np.sinh(place):.1g}") for place in _apart(drawn, room=0.1 * (high - low))]


def _apart(places: Sequence[float], room: float) -> list[float]:
    """The places, the first ones preferred, no two closer than `room`, in order."""
    kept: list[float] = []
    for place in places:
        if all(abs(place - other) > room for other in kept):
            kept.append(place)
    return sorted(kept)


def _svg(figure: "Figure", label: str) -> str:
    """The figure as an SVG element with its label, the page's colours, and ids that no other figure of the page has."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    FigureCanvasSVG(figure).print_svg(out, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    for number, colour in enumerate(PALETTE, start=1):
        svg = svg.replace(colour, f"var(--s{number}, {colour})")
    prefix = "f" + hashlib.sha256(label.encode()).hexdigest()[:8] + "-"
    svg = re.sub(r'(?<=\bid=")|(?<=url\(#)|(?<=href="#)', prefix, svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
