"""The constants of blame, tried on held-out training images: python tools/blame_rules.py OUT [BUNDLE CIFAR_ROOT]

`detect/mixtures.py` listens only to kinds of mixtures with FEWEST flagged batches or more; `detect/blame.py` blames all
images where more than MOST of a batch are blamed. Here both are tried with several values. No test image is used. With a
bundle, blame is calibrated on three quarters of its calibration part and measured on the last quarter. Without, a defence of
the digits is fitted on two thirds of their training part and measured on the rest. PGD (10 steps) on the bare classifier
attacks. OUT.json and OUT.md are written; attacked images are kept in OUT-work.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

from blame import ROUNDS, Kind, craft, made, mixed, origin, publish

import twoprong as tp
from twoprong.attacks.craft import craft as craft_examples
from twoprong.config import AttackConfig
from twoprong.data import Labelled, load_data
from twoprong.data.splits import split
from twoprong.detect import blame, mixtures
from twoprong.detect.blame import Examples, weaker
from twoprong.detect.kernel import Sample
from twoprong.errors import TwoprongError
from twoprong.measure import partition
from twoprong.presets import PRESETS
from twoprong.recipe import sample, train_named
from twoprong.seeds import generator

FEWEST = (1, 5, 10, 20, 1_000_000)  # flagged batches; the last: only all kinds together
MOST = (0.5, 2 / 3, 0.8, 1.0)
SHARES = (0.05, 0.1, 0.2, 0.5, 0.6, 0.7, 0.8, 1.0)
SIZES = (25, 100)


class Setup(NamedTuple):
    """A defence, what its blame is learned and calibrated on, and images that nobody has seen; budgets of attackers."""

    defense: tp.Defense
    examples: Examples
    clean: Sample
    held_out: Labelled
    budgets: tuple[float, ...]


def photographs(bundle: str, root: str, work: Path) -> Setup:
    defense = tp.load(bundle)
    parts = split(load_data("cifar10", Path(root)).train, defense.config.splits, defense.config.seed)
    cut = 3 * len(parts.calibration) // 4
    few = defense.config.attack.model_copy(update={"batch_size": 100})
    return _setup(defense, parts.kernel, few, parts.calibration[:cut], parts.calibration[cut:], (8 / 255, 2 / 255), work)


def digits(work: Path) -> Setup:
    config, data = PRESETS["digits"], load_data("digits").train
    cut = 2 * len(data) // 3
    learned = data[:cut]
    defense = tp.fit(train_named("cnn", learned, 10, config), learned, config=config, measure=False)
    parts, eps = split(learned, config.splits, config.seed), config.attack.eps
    return _setup(defense, parts.kernel, config.attack, parts.calibration, data[cut:], (eps, eps / 2), work)


def _setup(
    defense: tp.Defense,
    kernel: Labelled,
    attack: AttackConfig,
    clean: Labelled,
    held_out: Labelled,
    budgets: tuple[float, ...],
    work: Path,
) -> Setup:
    attacked, extract = craft_examples(defense.classifier, kernel, attack, work), defense.extractor
    examples = Examples(sample(extract, kernel.images), sample(extract, weaker(kernel.images, attacked)))
    return Setup(defense, examples, sample(extract, clean.images), held_out, budgets)


def main(out: str, *given: str) -> None:
    work = Path(f"{out}-work")
    defense, examples, clean, held_out, budgets = photographs(*given, work) if given else digits(work)
    detector, config, seed = defense.detector, defense.config.detector, defense.config.seed
    detector.calibrate(clean, config, seed, examples=examples)
    draw = generator(0, "blame rules")
    calm = Kind(defense, held_out.images, held_out.labels, draw)
    found = craft(defense, held_out, work, budgets)
    bad = {budget: Kind(defense, found[budget], held_out.labels, draw) for budget in budgets}
    rows: list[dict[str, Any]] = []
    for fewest, most in [*((count, blame.MOST) for count in FEWEST), *((mixtures.FEWEST, share) for share in MOST)]:
        ours = blame.MOST, mixtures.FEWEST
        blame.MOST, mixtures.FEWEST = most, fewest
        detector.learn_blame(clean, config, seed, examples)
        for budget, kind in bad.items():
            for size in SIZES:
                for share in SHARES:
                    index = generator(0, "blame rules", size, share)
                    batches = [batch for _ in range(ROUNDS) for batch in partition(len(held_out), size, index)]
                    row = mixed(defense, calm, kind, batches, max(1, round(share * size)))
                    rows.append({"fewest": fewest, "most": most, "eps": budget, "size": size, "share": share, **row})
        blame.MOST, mixtures.FEWEST = ours
    command = f"python tools/blame_rules.py {out}" + (f" {given[0]} CIFAR_ROOT" if given else "")
    result = {"images": len(held_out), "budgets": budgets, "rows": rows, "made": made(command)}
    publish(result, markdown(result), out)


def markdown(found: dict[str, Any]) -> str:
    """The tables: false blame by FEWEST, accuracy by MOST."""
    rows = found["rows"]
    lines = [
        "# The constants of blame",
        "",
        f"{found['images']} held-out training images; PGD (10 steps) on the bare classifier; {ROUNDS} partitions.",
        "",
        "Share of clean images in flagged batches that are blamed (recall); `-`: no batch was flagged.",
        "",
        f"| FEWEST | batch size | budget | {' | '.join(f'{share:.0%} attacked' for share in SHARES[:4])} |",
        "|---|---:|---:|" + "---:|" * 4,
    ]
    for fewest in FEWEST:
        for size in SIZES:
            for budget in found["budgets"]:
                asked = {"fewest": fewest, "most": blame.MOST, "eps": budget, "size": size}
                row = [one for one in rows if asked.items() <= one.items()][:4]
                cells = ["-" if one["recall"] is None else f"{one['false_blame']:.1%} ({one['recall']:.0%})" for one in row]
                lines.append(f"| {fewest:,} | {size} | {budget * 255:g}/255 | {' | '.join(cells)} |")
    lines += [
        "",
        "Accuracy over all images, with suspects denoised:",
        "",
        f"| MOST | batch size | budget | {' | '.join(f'{share:.0%} attacked' for share in SHARES[3:])} |",
        "|---|---:|---:|" + "---:|" * len(SHARES[3:]),
    ]
    for most in MOST:
        for size in SIZES:
            for budget in found["budgets"]:
                asked = {"fewest": mixtures.FEWEST, "most": most, "eps": budget, "size": size}
                row = [one for one in rows if asked.items() <= one.items()][-len(SHARES) :][3:]
                cells = [f"{one['accuracy_suspects']:.1%}" for one in row]
                lines.append(f"| {most:.2f} | {size} | {budget * 255:g}/255 | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *origin(found["made"])])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except TwoprongError as error:
        sys.exit(f"error: {error}")
