"""Figures for the reports: SVG that follows the page's text colour, and images as data addresses."""

import base64
import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

INK = "#010203"  # drawn in this colour, then replaced by the page's own
CLEAN, ADVERSARIAL = "#2a7de1", "#e0632d"


def histogram(series: Mapping[str, Sequence[float]], threshold: float, title: str) -> str:
    """The statistic of clean (first) and adversarial (second) batches as one SVG, with the threshold drawn."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "twoprong", "font.size": 11, "text.color": INK}):
        figure = Figure(figsize=(6.4, 2.9), layout="constrained", facecolor="none")
        axes = figure.subplots(subplot_kw={"facecolor": "none"})
        values = [value for group in series.values() for value in group]
        bins = np.linspace(min([*values, threshold]), max([*values, threshold]), 40)
        for (name, group), colour in zip(series.items(), (CLEAN, ADVERSARIAL), strict=True):
            axes.hist(group, bins=bins.tolist(), color=colour, alpha=0.8, label=name)
        axes.axvline(threshold, color=INK, linestyle="--", linewidth=1.4, label="threshold")
        axes.set_xlabel("MMD-OPT statistic", color=INK)
        axes.set_ylabel("batches", color=INK)
        axes.tick_params(colors=INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_edgecolor(INK)
        axes.legend(frameon=False, loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.18))
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None, "Title": title})
    svg = out.getvalue()
    label = f'<svg role="img" aria-label="{title}"'
    return svg[svg.index("<svg") :].replace(INK, "currentColor").replace("<svg", label, 1)


def picture(image: Tensor) -> str:
    """An image (C, H, W) in [0, 1] as a PNG data address, one pixel a pixel."""
    pixels = (image.detach().cpu() * 255).round().byte().permute(1, 2, 0).numpy()
    out = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
