"""The demo: the whole method on the handwritten digits that come with the package, then photographs through its bundle."""

import json
import time
from dataclasses import asdict
from pathlib import Path

from twoprong.attacks import PGD
from twoprong.bundle import check_target
from twoprong.data.digits import load_digits
from twoprong.data.tensors import Labelled
from twoprong.demo.photographs import packaged
from twoprong.evaluation.threads import threads
from twoprong.measure import Scores, score
from twoprong.presets import PRESETS
from twoprong.progress import Progress, silent
from twoprong.recipe import fit, train_named
from twoprong.report import suspects
from twoprong.report.demo import Shown, write_report
from twoprong.results.demo import DemoData, DemoResults, DemoScores
from twoprong.seeds import generator
from twoprong.storage import write_atomic

SIZES = (100, 25)
SHOWN = 10  # digits in the report
MIXED = 50  # attacked digits in the batch whose suspects are shown
ROUNDS = 25  # random partitions of the 400 test images into batches


def demo(out: Path, seed: int = 0, progress: Progress = silent) -> DemoResults:
    """Train, fit, attack, compare; leave `bundle/`, `results.json` and `report.html` in `out`, return the results.

    All numbers but those under "seconds" are a function of the seed. The test images are used for these numbers only. It
    runs in one thread: on small images a second one mostly waits, and sums would depend on how many there are.
    """
    with threads(1):
        return _demo(out, seed, progress)


def _demo(out: Path, seed: int, progress: Progress) -> DemoResults:
    out.mkdir(parents=True, exist_ok=True)
    check_target(out / "bundle", overwrite=True)
    start = time.perf_counter()
    config = PRESETS["digits"].model_copy(update={"seed": seed})
    digits = load_digits()
    classifier = train_named("cnn", digits.train, len(digits.classes), config, progress=progress)
    trained = time.perf_counter()
    defense = fit(classifier, digits.train, config=config, progress=progress, measure=False)
    fitted = time.perf_counter()

    attack = PGD(eps=config.attack.eps, step=config.attack.eps / 8, steps=40)
    attacked = Labelled(
        attack(classifier, digits.test.images, digits.test.labels, generator(seed, "demo attack")).images,
        digits.test.labels,
    )
    runs: dict[int, dict[str, Scores]] = {}
    for step, size in enumerate(SIZES):
        draw = generator(seed, "demo batches", size)
        runs[size] = {
            "clean": score(defense, digits.test, size, ROUNDS, draw),
            "attacked": score(defense, attacked, size, ROUNDS, draw),
        }
        progress("compare", step + 1, len(SIZES))
    compared = time.perf_counter()
    photographs = packaged(seed, progress)

    results = DemoResults(
        format=1,
        seed=seed,
        data=DemoData(name=digits.name, test_images=len(digits.test), rounds=ROUNDS),
        attack={"name": "pgd", "threat_model": "bare", **asdict(attack)},
        batches={
            str(size): {kind: DemoScores(**asdict(scores)) for kind, scores in run.items()} for size, run in runs.items()
        },
        photographs=None if photographs is None else photographs.results,
        config=config.model_dump(mode="json"),
        seconds={
            "train_classifier": round(trained - start, 1),
            "fit": round(fitted - trained, 1),
            "compare": round(compared - fitted, 1),
            "photographs": round(time.perf_counter() - compared, 1),
        },
    )
    largest = runs[SIZES[0]]
    defense.about |= {
        "classes": list(digits.classes),
        "data": digits.name,
        "measured": {
            f"clean accuracy, bare / defended (batches of {SIZES[0]})": _pair(largest["clean"]),
            f"accuracy under PGD on the bare classifier, bare / defended (eps {attack.eps:g})": _pair(largest["attacked"]),
            "command": f"twoprong demo --seed {seed}",
        },
    }
    defense.save(out / "bundle", overwrite=True)
    text = json.dumps(results.as_dict(), indent=2) + "\n"
    write_atomic(out / "results.json", lambda file: file.write_text(text, encoding="utf-8"))
    rows = {
        "clean": digits.test.images[:SHOWN],
        "adversarial": attacked.images[:SHOWN],
        "denoised": defense.restored(attacked.images[:SHOWN], generator=generator(seed, "demo pictures")).detach(),
    }
    some, rest = attacked.images[:MIXED], digits.test.images[MIXED : SIZES[0]]
    blamed = suspects.shown(defense, some, rest, generator(seed, "demo suspects"))
    shown = Shown(rows, digits.test.labels[:SHOWN], digits.classes, defense, blamed)
    write_report(out / "report.html", results, runs, shown, None if photographs is None else photographs.shown)
    return results


def _pair(scores: Scores) -> str:
    return f"{scores.bare:.1%} / {scores.defended:.1%}"
