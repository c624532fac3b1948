"""The trade-off between clean accuracy and accuracy under attack, as a picture.

    python tools/tradeoff.py gate.json --out docs/tradeoff.svg [--run "hardened=results/X/results.json" ...]

gate.json is what tools/gate_curve.py wrote. Each --run adds points of an evaluation: its defence, the robust network alone
and the gate without the test, by clean accuracy and worst case.
"""

import argparse
import json
import sys
from itertools import accumulate
from pathlib import Path

from twoprong.errors import TwoprongError
from twoprong.report.figures import PALETTE, Series, lines
from twoprong.report.words import SUBJECTS
from twoprong.results import read_results

KEPT = ("defense", "robust", "gate")  # subjects whose points are drawn, where a run has them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gate", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--score", default="p, T=1")
    parser.add_argument("--accurate-holds", type=float, default=0.0, help="the accurate network's share under attack")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=results.json")
    arguments = parser.parse_args()
    series = curve(json.loads(arguments.gate.read_text(encoding="utf-8")), arguments.score, arguments.accurate_holds)
    for number, given in enumerate(arguments.run):
        name, _, path = given.partition("=")
        series += points(name, Path(path), 3 + 3 * number)
    label = "Accuracy under attack over clean accuracy"
    drawn = lines(series, label, x="clean accuracy, %", y="under attack, %", top=max(max(one.y) for one in series) + 0.05)
    arguments.out.write_text(drawn.replace("<svg", '<svg style="background:#fff"', 1), encoding="utf-8")
    for one in series:
        told = ", ".join(f"{x:.1f}/{100 * y:.1f}" for x, y in zip(one.x, one.y, strict=True))
        print(f"{one.sign} {one.name}: {told}")


def curve(gate: dict, score: str, holds: float) -> list[Series]:
    """The gate's operating points, and the straight line from the robust network alone to the accurate one."""
    alone, accurate, found = gate["robust alone"], gate["accurate clean"], gate["curves"][score]
    some = found[:: max(1, len(found) // 12)]
    highest = [alone["clean"], *accumulate((point["clean"] for point in some), max)]
    shown = [
        point for point, before in zip(some, highest, strict=False) if point is some[0] or point["clean"] > before
    ]  # the others give robustness away for nothing
    ends = [100 * alone["clean"], 100 * accurate]
    return [
        Series("straight line from the robust network to the accurate one", ends, [alone["robust"], holds], None, 0),
        *(
            Series(name, [100 * point["clean"] for point in some], [point["robust"] for point in some], None, 1 + number)
            for number, (name, some) in enumerate(
                (
                    (f"the gate if the accurate network is given away, {gate['images']} held-out images", shown),
                    ("the gate itself attacked, same images", gate.get("attacked", ())),
                )
            )
            if some
        ),
    ]


def points(name: str, path: Path, colour: int) -> list[Series]:
    """The subjects of an evaluation, each as one point with its interval."""
    results = read_results(path)
    return [
        Series(
            f"{name}: {SUBJECTS[subject]}",
            [100 * results.clean.subjects[subject].accuracy],
            [results.worst_case[subject].per_batch],
            [results.worst_case[subject].per_batch_quoted],
            (colour + number - 1) % len(PALETTE) + 1,
        )
        for number, subject in enumerate(one for one in KEPT if one in results.worst_case)
    ]


if __name__ == "__main__":
    try:
        main()
    except TwoprongError as error:
        sys.exit(f"error: {error}")
