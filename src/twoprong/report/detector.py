"""The figures of the detector by itself: false alarms, power, and clean batches that are not quite as usual."""

from collections.abc import Sequence
from typing import TypeVar

from twoprong.report.captions import Captioned, captioned, in_words
from twoprong.report.figures import PALETTE, Series, dots, lines
from twoprong.report.words import SUBJECTS, budget, percent, plural
from twoprong.results import EvaluationResults
from twoprong.results.detector import JudgedRate, Rate, Roc, ShareRate

R = TypeVar("R", bound=Rate)
Named = Sequence[tuple[str, R]]  # what stands on the axis, and its rate
MOST = len(PALETTE)  # lines in one figure: as many as there are colours


def detector_figures(results: EvaluationResults) -> list[Captioned]:
    """The figures that have data, in the page's order."""
    study, norm = results.study, results.run.norm
    if study is None:
        return []
    asked, alarms, power = study.false_alarm_rate, study.false_alarms, study.power
    highest = max([asked, *(row.interval[1] for row in alarms)])
    by_share = [(f"{100 * row.share:g} %", row) for row in power.by_share]
    skewed = [(f"{plural(row.classes, 'class', 'classes')}, {row.size} images", row) for row in study.skewed]
    shifted = [(f"{row.kind} {row.strength:g}", row) for row in study.shifted]
    figures = [
        _roc(study.roc, norm),
        _rates("false-alarms", "False alarms by batch size", "detector.false_alarms",
               [(str(row.size), row) for row in alarms], "images in the batch",
               f"Unseen clean batches that are flagged; dotted: the rate asked for ({percent(asked)}).",
               level=asked, top=min(1.0, 1.1 * highest) or 1.0),
        _rates("power-size", "Attacks found, by batch size", "detector.power.by_size",
               [(str(row.size), row) for row in power.by_size], "images in the batch",
               "Batches attacked with PGD on the bare classifier that are flagged."),
        _rates("power-eps", "Attacks found, by budget", "detector.power.by_eps",
               [(budget(row.eps, norm), row) for row in power.by_eps], "largest change ε",
               "The same attack with smaller and larger budgets."),
        _rates("power-share", "Attacks found, by share of the batch", "detector.power.by_share", by_share,
               "attacked share of the batch", "Clean batches with a share of attacked images."),
        _mixed(by_share),
        _unusual("skewed", "Clean batches with few classes", skewed),
        _unusual("shifted", "Clean batches that are corrupted", shifted),
    ]  # fmt: skip
    return [figure for figure in figures if figure is not None]


def _roc(curves: Sequence[Roc], norm: str) -> Captioned | None:
    if not curves:
        return None
    series = [
        Series(f"ε = {budget(roc.eps, norm)} (area {roc.area:.3f})", [100 * x for x in roc.false_alarms], roc.power, None, n)
        for n, roc in enumerate(curves[:MOST], start=1)
    ]
    title = "Attacks found against false alarms (ROC)"
    label = f"{title}, PGD on the bare classifier. Area under the curve: " + "; ".join(one.name for one in series)
    svg = lines([*series, Series("guessing", [0, 100], [0, 1], None, 0)], label, x="clean batches flagged, %",
                y="attacked batches flagged, %", dense=True)  # fmt: skip
    return captioned("roc", title, "detector.roc", svg, "As the threshold moves; dashed: guessing.", series)


def _rates(
    name: str,
    title: str,
    source: str,
    rows: Named[Rate],
    x: str,
    caption: str,
    level: float | None = None,
    top: float = 1.0,
) -> Captioned | None:
    """Flagged shares, one for each name on the axis."""
    if not rows:
        return None
    series, names = [_flagged(rows, 1)], [name for name, _ in rows]
    svg = lines(series, _told(title, series, names), x=x, y="batches flagged, %", ticks=list(enumerate(names)),
                level=level, top=top)  # fmt: skip
    return captioned(name, title, source, svg, caption, series)


def _mixed(rows: Named[ShareRate]) -> Captioned | None:
    if not rows:
        return None
    places, names = range(len(rows)), [name for name, _ in rows]
    series = [
        Series(SUBJECTS["defense"], places, [row.defended for _, row in rows], None, 1),
        Series(SUBJECTS["bare"], places, [row.undefended for _, row in rows], None, 2),
    ]
    title = "Accuracy in mixed batches"
    label = _told(title, series, [f"{name} attacked" for name in names])
    svg = lines(series, label, x="attacked share of the batch", y="accuracy, %", ticks=list(enumerate(names)))
    caption = "All images of the batch, attacked (PGD on the bare classifier) or not."
    return captioned("mixed", title, "detector.power.by_share", svg, caption, series)


def _unusual(part: str, title: str, rows: Named[JudgedRate]) -> Captioned | None:
    """Clean batches the detector was not calibrated for: how many it flags, and what that does to accuracy."""
    if not rows:
        return None
    places, names = range(len(rows)), [name for name, _ in rows]
    series = [
        _flagged(rows, 3),
        Series("right, undefended", places, [row.undefended for _, row in rows], None, 2),
        Series("right, defended", places, [row.defended for _, row in rows], None, 1),
    ]
    svg = dots(names, series, _told(title, series, names), x="% flagged, or right")
    return captioned(part, title, f"detector.{part}", svg, "No image is attacked: every flag here is a false alarm.", series)


def _flagged(rows: Named[Rate], colour: int) -> Series:
    return Series("flagged", range(len(rows)), [row.rate for _, row in rows], [row.interval for _, row in rows], colour)


def _told(title: str, series: Sequence[Series], names: Sequence[str]) -> str:
    return in_words(title, series, lambda place: names[int(place)])
