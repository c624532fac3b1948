"""The figures of accuracy against the attacker's budget."""

from collections.abc import Sequence

from twoprong.report.captions import Captioned, captioned, in_words
from twoprong.report.figures import PALETTE, Series, lines
from twoprong.report.words import NORMS, SUBJECTS, budget, subjects
from twoprong.results import EvaluationResults
from twoprong.results.evaluation import CurvePoint

MOST = len(PALETTE)  # lines in one figure: as many as there are colours


def curve_figures(results: EvaluationResults) -> list[Captioned]:
    """Accuracy against ε: attack by attack for the defence, and the lowest over the attacks subject by subject."""
    axis = _Axis(results)
    points = axis.points
    mine = {point.attack: [other for other in points if other.attack == point.attack] for point in points}
    kept = sorted(mine, key=lambda attack: _mean_accuracy(mine[attack], "defense"))[:MOST]
    attacks = [axis.line(attack, mine[attack], "defense", number) for number, attack in enumerate(kept, start=1)]
    bare = axis.lowest("bare")
    known = [name for name in subjects(results) if axis.lowest(name)][:MOST]
    rivals = [axis.line(SUBJECTS.get(name, name), axis.lowest(name), name, number) for number, name in enumerate(known, 1)]
    blind = all(point.threat_model not in ("adaptive", "paper") for point in points)
    note = " No attacker in this figure knows the defence." if blind else ""
    if len(mine) > len(kept):
        note += f" The {len(kept)} strongest; {len(mine) - len(kept)} more in results.json."
    found = []
    if attacks:
        undefended = [axis.line("undefended, worst of these", bare, "bare", 0)] if bare else []
        caption = f"Accuracy against the budget, with 95 % intervals; dotted: the headline budget.{note}"
        found.append(axis.figure("curve-attacks", "The defence against each attack", [*attacks, *undefended], caption))
    if len(rivals) > 1:
        caption = "At every budget the attack of this curve that leaves each the least; refused images count as wrong here."
        found.append(axis.figure("curve-subjects", "The defence beside the others", rivals, caption))
    return found


class _Axis:
    """The budgets of a run, in grey levels where all of them are whole ones."""

    def __init__(self, results: EvaluationResults) -> None:
        run = results.run
        self.points = sorted(results.curve, key=lambda point: point.eps)
        self.grey = run.norm == "linf" and all("/" in budget(one.eps, "linf") or one.eps == 0 for one in self.points)
        self.scale = 255 if self.grey else 1
        self.unit = f"largest change ε{', in 255ths' if self.grey else f' ({NORMS.get(run.norm, run.norm)})'}"
        self.headline = self.scale * run.eps

    def line(self, name: str, points: Sequence[CurvePoint], subject: str, colour: int) -> Series:
        told = [point.subjects[subject] for point in points]
        x = [self.scale * point.eps for point in points]
        return Series(name, x, [one.accuracy for one in told], [one.quoted for one in told], colour)

    def lowest(self, subject: str) -> list[CurvePoint]:
        """At every budget the point that leaves the subject the least."""
        best: dict[float, CurvePoint] = {}
        for point in self.points:
            if subject in point.subjects:
                known = best.setdefault(point.eps, point)
                if point.subjects[subject].accuracy < known.subjects[subject].accuracy:
                    best[point.eps] = point
        return list(best.values())

    def figure(self, name: str, title: str, series: Sequence[Series], caption: str) -> Captioned:
        label = in_words(f"{title}, in each case accuracy at ε", series, self._said)
        at = [x for one in series for x in one.x]
        svg = lines(series, label, x=self.unit, y="accuracy, %", at=at, mark=self.headline)
        return captioned(name, title, "curve", svg, caption, series)

    def _said(self, x: float) -> str:
        return f"{x:g}" + ("/255" if self.grey and x else "")


def _mean_accuracy(points: Sequence[CurvePoint], subject: str) -> float:
    return sum(point.subjects[subject].accuracy for point in points) / len(points)
