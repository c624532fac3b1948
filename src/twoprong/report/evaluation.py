"""report.html: the results of an evaluation as one self-contained page, drawn from results.json alone."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from twoprong.report.figures import Series, dots, lines, panel
from twoprong.report.markdown import (
    NORMS,
    SUBJECTS,
    THREATS,
    between,
    budget,
    by_threat,
    duration,
    headline,
    headline_alarms,
    percent,
    plural,
    subjects,
    verdict,
)
from twoprong.storage import write_atomic

ROWS = {"clean": "clean", "adversarial": "attacked", "difference": "difference ×10", "denoised": "denoised"}
TARGETS = {
    "bare": "the bare classifier",
    "denoiser": "the denoiser on every batch",
    "reject": "refusing",
    "magnet": "MagNet",
    "against": "the other bundle",
}
STATUSES = ("failed", "not converged", "passed", "not applicable")
PANELS = 8  # histograms shown at once; the rest can be opened
CURVES = 6  # lines in one figure, and colours there are


def templates() -> Environment:
    """Where pages come from: everything put into them is escaped, and a value that is missing is an error."""
    return Environment(
        loader=PackageLoader("twoprong.report"), autoescape=select_autoescape(["j2"]), undefined=StrictUndefined
    )


def write_page(results: dict[str, Any], path: Path) -> None:
    """Write the page; it needs no network, no script and no other file. Parts that were not run are left out or said so."""
    environment = templates()
    environment.filters |= {"percent": percent, "between": between, "duration": duration}
    environment.filters["budget"] = lambda eps: budget(eps, results["run"]["norm"])
    whole = [attack for attack in results["attacks"] if attack["slots"] is None]
    page = environment.get_template("report.html.j2").render(
        results=results,
        verdict=verdict(results),
        headline=headline(results),
        alarms=headline_alarms(results),
        groups=by_threat(whole),
        parts=by_threat([attack for attack in results["attacks"] if attack["slots"] is not None]),
        chosen=Counter(results["worst_case"].get("defense", {}).get("chosen", [])),
        threats=THREATS,
        names=SUBJECTS,
        rows=ROWS,
        subjects=subjects(results),
        targets=TARGETS,
        norm=NORMS.get(results["run"]["norm"], results["run"]["norm"]),
        curves=[figure for figure in _curves(results) if figure],
        detector=[figure for figure in _detector(results) if figure],
        panels=_panels(results),
        shown=PANELS,
        strips=_strips(results),
        checks=sorted(
            results["sanity"], key=lambda check: STATUSES.index(check["status"]) if check["status"] in STATUSES else 0
        ),
        settings=json.dumps(results["defense"].get("config"), indent=2, ensure_ascii=False),
    )
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


def _detector(results: dict[str, Any]) -> list[dict[str, Any] | None]:
    """The detector's figures in the page's order; None for one that has no data."""
    detector, norm = results["detector"], results["run"]["norm"]
    power = detector.get("power", {})
    asked = detector.get("false_alarm_rate")
    alarms = detector.get("false_alarms", [])
    highest = max([asked or 0.0, *(row["interval"][1] for row in alarms)])
    return [
        _roc(detector.get("roc", []), norm),
        _rates("false-alarms", "False alarms by batch size", "detector.false_alarms", alarms, "size", "images in the batch",
               f"Unseen clean batches that are flagged; dotted: the rate asked for ({percent(asked)}).",
               level=asked, top=min(1.0, 1.1 * highest) or 1.0),
        _rates("power-size", "Attacks found, by batch size", "detector.power.by_size", power.get("by_size", []), "size",
               "images in the batch", "Batches attacked with PGD on the bare classifier that are flagged."),
        _rates("power-eps", "Attacks found, by budget", "detector.power.by_eps", power.get("by_eps", []), "eps",
               "largest change ε", "The same attack with smaller and larger budgets.", show=lambda eps: budget(eps, norm)),
        _rates("power-share", "Attacks found, by share of the batch", "detector.power.by_share", power.get("by_share", []),
               "share", "attacked share of the batch", "Clean batches with a share of attacked images.", show=_share),
        _mixed(power.get("by_share", [])),
        _unusual("skewed", "Clean batches with few classes", detector.get("skewed", []), _classes),
        _unusual("shifted", "Clean batches that are corrupted", detector.get("shifted", []),
                 lambda row: f"{row['kind']} {row['strength']:g}"),
    ]  # fmt: skip


def _classes(row: dict[str, Any]) -> str:
    return plural(row["classes"], "class", "classes") + (f", {row['size']} images" if "size" in row else "")


def _share(share: float) -> str:
    return f"{100 * share:g} %"


def _figure(name: str, title: str, source: str, svg: str, caption: str, series: Sequence[Series]) -> dict[str, Any]:
    key = [
        {
            "sign": "━" if name == "roc" else one.sign,
            "colour": f"var(--s{one.colour})" if one.colour else "currentColor",
            "name": one.name,
        }
        for one in series
    ]
    return {"id": f"figure-{name}", "title": title, "source": source, "svg": Markup(svg), "caption": caption, "key": key}


def _told(title: str, series: Sequence[Series], at: Callable[[float], str]) -> str:
    """What a figure shows, in words: every value, or the ends of a long line."""
    parts = []
    for one in series:
        points = list(zip(one.x, one.y, strict=True))
        kept = points if len(points) <= 8 else [points[0], points[-1]]
        parts.append(f"{one.name}: " + ", ".join(f"{percent(y)} at {at(x)}" for x, y in kept))
    return f"{title}. " + "; ".join(parts)


def _curves(results: dict[str, Any]) -> list[dict[str, Any] | None]:
    """Accuracy against ε: attack by attack for the defence, and the lowest over the attacks subject by subject."""
    points, run = sorted(results["curve"], key=lambda point: point["eps"]), results["run"]
    grey = run["norm"] == "linf" and all("/" in budget(point["eps"], "linf") or point["eps"] == 0 for point in points)
    scale, unit = (
        (255, "largest change ε, in 255ths") if grey else (1, f"largest change ε ({NORMS.get(run['norm'], run['norm'])})")
    )

    def line(name: str, chosen: Sequence[dict[str, Any]], subject: str, colour: int) -> Series:
        told = [point["subjects"][subject] for point in chosen]
        x = [scale * point["eps"] for point in chosen]
        return Series(name, x, [one["accuracy"] for one in told], [one["interval"] for one in told], colour)

    def lowest(subject: str) -> list[dict[str, Any]]:
        best: dict[float, dict[str, Any]] = {}
        for point in points:
            if subject in point["subjects"]:
                kept = best.setdefault(point["eps"], point)
                if point["subjects"][subject]["accuracy"] < kept["subjects"][subject]["accuracy"]:
                    best[point["eps"]] = point
        return list(best.values())

    def draw(name: str, title: str, series: list[Series], caption: str) -> dict[str, Any] | None:
        if not any(one.colour for one in series):
            return None
        label = _told(f"{title}, in each case accuracy at ε", series, lambda x: f"{x:g}" + ("/255" if grey and x else ""))
        svg = lines(series, label, x=unit, y="accuracy, %", at=[x for one in series for x in one.x], mark=scale * run["eps"])
        return _figure(name, title, "curve", svg, caption, series)

    mine = {attack: [p for p in points if p["attack"] == attack and "defense" in p["subjects"]] for attack in _names(points)}
    kept = sorted((a for a in mine if mine[a]), key=lambda a: _mean(p["subjects"]["defense"]["accuracy"] for p in mine[a]))[
        :CURVES
    ]
    attacks = [line(attack, mine[attack], "defense", n) for n, attack in enumerate(kept, start=1)]
    bare = [line("undefended, worst of these", lowest("bare"), "bare", 0)] if lowest("bare") else []
    known = [name for name in subjects(results) if lowest(name)]
    rivals = [line(SUBJECTS.get(name, name), lowest(name), name, n) for n, name in enumerate(known[:CURVES], start=1)]
    dropped = len([a for a in mine if mine[a]]) - len(kept)
    blind = all(point["threat_model"] not in ("adaptive", "paper") for point in points)
    note = " No attacker in this figure knows the defence." if blind else ""
    note += "" if not dropped else f" The {len(kept)} strongest; {dropped} more in results.json."
    return [
        draw("curve-attacks", "The defence against each attack", attacks + bare,
             f"Accuracy against the budget, with 95 % intervals; dotted: the headline budget.{note}"),
        draw("curve-subjects", "The defence beside the others", rivals if len(rivals) > 1 else [],
             "At every budget the attack of this curve that leaves each the least; refused images count as wrong here."),
    ]  # fmt: skip


def _names(points: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(point["attack"] for point in points))


def _mean(values: Iterable[float]) -> float:
    each = list(values)
    return sum(each) / len(each)


def _roc(curves: Sequence[dict[str, Any]], norm: str) -> dict[str, Any] | None:
    if not curves:
        return None
    series = [
        Series(
            f"ε = {budget(roc['eps'], norm)} (area {roc['area']:.3f})",
            [100 * x for x in roc["false_alarms"]],
            roc["power"],
            None,
            n,
        )
        for n, roc in enumerate(curves[:CURVES], start=1)
    ]
    title = "Attacks found against false alarms (ROC)"
    label = f"{title}, PGD on the bare classifier. Area under the curve: " + "; ".join(one.name for one in series)
    svg = lines([*series, Series("guessing", [0, 100], [0, 1], None, 0)], label, x="clean batches flagged, %",
                y="attacked batches flagged, %", dense=True)  # fmt: skip
    return _figure("roc", title, "detector.roc", svg, "As the threshold moves; dashed: guessing.", series)


def _rates(
    name: str,
    title: str,
    source: str,
    rows: Sequence[dict[str, Any]],
    key: str,
    x: str,
    caption: str,
    show: Callable[[float], str] = str,
    level: float | None = None,
    top: float = 1.0,
) -> dict[str, Any] | None:
    """Flagged shares over named values of `key`."""
    if not rows:
        return None
    names = [show(row[key]) for row in rows]
    series = [Series("flagged", range(len(rows)), [row["rate"] for row in rows], [row["interval"] for row in rows], 1)]
    label = _told(title, series, lambda at: names[int(at)])
    svg = lines(series, label, x=x, y="batches flagged, %", ticks=list(enumerate(names)), level=level, top=top)
    return _figure(name, title, source, svg, caption, series)


def _mixed(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    rows = [row for row in rows if row.get("defended") is not None and row.get("undefended") is not None]
    if not rows:
        return None
    names = [_share(row["share"]) for row in rows]
    series = [
        Series(SUBJECTS[subject], range(len(rows)), [row[key] for row in rows], None, n)
        for n, (key, subject) in enumerate((("defended", "defense"), ("undefended", "bare")), start=1)
    ]
    title = "Accuracy in mixed batches"
    svg = lines(series, _told(title, series, lambda at: names[int(at)] + " attacked"), x="attacked share of the batch",
                y="accuracy, %", ticks=list(enumerate(names)))  # fmt: skip
    caption = "All images of the batch, attacked (PGD on the bare classifier) or not."
    return _figure("mixed", title, "detector.power.by_share", svg, caption, series)


def _unusual(
    part: str, title: str, rows: Sequence[dict[str, Any]], call: Callable[[dict[str, Any]], str]
) -> dict[str, Any] | None:
    """Clean batches the detector was not calibrated for: how many it flags, and what that does to accuracy."""
    if not rows:
        return None
    names = [call(row) for row in rows]
    series = [Series("flagged", range(len(rows)), [row["rate"] for row in rows], [row["interval"] for row in rows], 3)]
    for colour, key in ((2, "undefended"), (1, "defended")):
        there = [n for n, row in enumerate(rows) if row.get(key) is not None]
        series += [Series(f"right, {key}", there, [rows[n][key] for n in there], None, colour)] if there else []
    svg = dots(names, series, _told(title, series, lambda at: names[int(at)]), x="% flagged, or right")
    return _figure(part, title, f"detector.{part}", svg, "No image is attacked: every flag here is a false alarm.", series)


def _panels(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The statistic under every attack beside that of clean batches, on one axis; those who know most first."""
    threshold, clean = results["defense"].get("threshold"), results["detector"].get("statistics", {}).get("clean", [])
    found = []
    attacks = [one for group in reversed(by_threat(results["attacks"]).values()) for one in group]
    for attack in sorted(attacks, key=lambda one: one["share"] is not None):
        scores = [batch["subjects"].get("defense", {}) for batch in attack["batches"]]
        scores = [score for score in scores if score.get("statistic") is not None]
        if scores:
            found.append((attack, [score["statistic"] for score in scores], sum(bool(score["flagged"]) for score in scores)))
    if threshold is None or not found:
        return []
    everything = [*clean, threshold, *(value for _, values, _ in found for value in values)]
    room = 0.05 * (max(everything) - min(everything)) or abs(threshold) or 1.0
    span = (min(everything) - min(room, abs(threshold) or room), max(everything) + room)
    return [
        {
            "name": attack["name"],
            "flagged": f"{flagged} of {plural(len(values), 'batch', 'batches')} flagged",
            "svg": Markup(
                panel(clean, values, threshold, span, _statistics(attack["name"], values, flagged, clean, threshold))
            ),
        }
        for attack, values, flagged in found
    ]


def _statistics(name: str, values: Sequence[float], flagged: int, clean: Sequence[float], threshold: float) -> str:
    middle = sorted(clean)[len(clean) // 2] if clean else None
    beside = "" if middle is None else f", median of clean batches {middle:.2g}"
    return (
        f"Statistic under {name}: median {sorted(values)[len(values) // 2]:.2g}{beside}, "
        f"threshold {threshold:.2g}; {flagged} of {len(values)} batches flagged"
    )


def _strips(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The pictures under their attack, image by image, each with what the classifier says and whether that is right."""
    classes, chosen = results["defense"].get("classes"), results["worst_case"].get("defense", {}).get("chosen", [])

    def word(value: Any) -> str:
        named = isinstance(value, int) and isinstance(classes, list) and 0 <= value < len(classes)
        return str(classes[value] if named else value)

    def cell(entry: dict[str, Any], row: str) -> dict[str, Any]:
        said = None if row == "difference" or entry["says"].get(row) is None else word(entry["says"][row])
        what = "difference (×10) made to the" if row == "difference" else ROWS[row]
        alt = f"{what} image of {word(entry['label'])}" + ("" if said is None else f", read as {said}")
        return {"src": entry["images"][row], "alt": alt, "said": said, "right": said == word(entry["label"])}

    return [
        {
            "attack": attack,
            "rows": rows,
            "images": [[cell(entry, row) for row in rows if row in entry["images"]] for entry in group],
        }
        for attack in sorted(
            _names(results["pictures"]), key=lambda name: -chosen.count(name)
        )  # what hurts most comes first
        for group in [[entry for entry in results["pictures"] if entry["attack"] == attack]]
        for rows in [[row for row in ROWS if all(row in entry["images"] for entry in group)]]
    ]
