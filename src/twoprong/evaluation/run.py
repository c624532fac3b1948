"""`evaluate`: a defence before a protocol's attacks, and everything that says what the numbers are worth."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twoprong.attacks.base import Attack
from twoprong.data.tensors import Labelled, as_labelled, check_images
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.evaluation import sanity
from twoprong.evaluation.course import CHECKS_COST, FORMAT, STUDY_COST, Course, Plan
from twoprong.evaluation.made import made_with
from twoprong.evaluation.protocols import Item
from twoprong.evaluation.store import Piece, Store
from twoprong.evaluation.strips import strips
from twoprong.evaluation.study import study
from twoprong.evaluation.subjects import DRAWS, judge
from twoprong.evaluation.tally import tally, worst_case
from twoprong.evaluation.threads import sensible, threads
from twoprong.models.precision import Precision
from twoprong.progress import Progress, silent
from twoprong.recipe import Images
from twoprong.seeds import generator
from twoprong.storage import write_atomic

COUNTS = {"quick": 200}  # images attacked; of other protocols 1,000
CHECKED = {"quick": 50}  # images in the batch that sanity checks attack; of other protocols a whole batch


@dataclass(frozen=True)
class Evaluation:
    """`results` is the content of results.json (docs/evaluate.md)."""

    results: dict[str, Any]

    @property
    def reliable(self) -> bool:
        """Whether no sanity check failed."""
        return bool(self.results["reliable"])

    @property
    def worst_case(self) -> float:
        """The accuracy that the best attack on each batch leaves the defence."""
        return float(self.results["worst_case"]["defense"]["per_batch"])


def evaluate(
    defense: Defense,
    images: Images,
    labels: Tensor | None = None,
    protocol: str | Sequence[Item] = "quick",
    out: str | PathLike[str] | None = None,
    *,
    train: Images | None = None,
    against: Defense | None = None,
    surrogate: nn.Module | None = None,
    eps: float | None = None,
    norm: str | None = None,
    batch_size: int = 100,
    count: int | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: Progress = silent,
    precision: Precision = "fp32",
    command: str | None = None,
    source: str | None = None,
) -> Evaluation:
    """Attack a defence by a protocol (quick, paper, strong, or a list of items) and say what is left of its accuracy.

    `images` are clean and unseen by everything in the defence; `count` of them, drawn at random (200 for quick, else 1,000),
    are attacked in batches of `batch_size`. The budget is the one the defence was fitted for unless `eps` and `norm` say
    otherwise. `train` (clean training images) is for the MagNet baseline, `against` a second defence to compare with,
    `surrogate` a classifier whose adversarial images are transferred. With `out`, results.json, report.html and results.md
    go there (`source` names the images in them), and `resume=True` continues a killed run to the same numbers. Attacks
    compute in `precision`; scores do not.
    """
    fitted = defense.config.attack
    if eps is None and norm not in (None, fitted.norm):
        raise InputError(f"eps: expected a budget beside norm {norm!r}; the defence was fitted for {fitted.norm}")
    data = as_labelled(images, labels)
    wanted = COUNTS.get(protocol, 1000) if count is None and isinstance(protocol, str) else count
    plan = Plan(
        defense,
        data,
        protocol,
        fitted.eps if eps is None else eps,
        norm or fitted.norm,
        min(batch_size, len(data)),
        min(len(data), len(data) if wanted is None else wanted),
        seed,
        _pictures(train),
        against,
        surrogate,
        precision,
    )
    folder = None if out is None else Path(out)
    store = Store(None if folder is None else folder / "work", plan.key, resume)
    with threads(sensible(data.images, plan.batch_size)):
        results = _results(Course(plan, store, progress), command, source)
    if folder is not None:
        _write(results, folder)
    return Evaluation(results)


def _pictures(train: Images | None) -> Tensor | None:
    """Training images by whatever they come in; their labels, if any, are not needed."""
    if train is None:
        return None
    return check_images(train) if isinstance(train, Tensor) else as_labelled(train).images


def _results(course: Course, command: str | None, source: str | None) -> dict[str, Any]:
    """The content of results.json, part by part."""
    plan = course.plan
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    check = course.part(0)[: max(plan.defense.detector.batch_sizes[0], CHECKED.get(plan.name, plan.batch_size))]
    checks = _first_checks(course, check)
    clean, untouched = course.clean(), course.untouched()
    ran = [(item, entry) for item in course.items if (entry := course.attack(item, untouched)) is not None]
    attacks = [entry for item, entry in ran if item.curve is None or entry["in_worst_case"]]
    curve = _curve(ran, untouched)
    detector = _detector(course, ran)
    worst = {name: worst_case(attacks, name) for name in course.subjects}
    checks += _last_checks(course, check, untouched, ran, curve, detector)
    pictures = strips(plan.defense, course.part(0), _shown(course, ran), plan.seed)
    course.clock.finish()
    return {
        "format": FORMAT,
        "kind": "evaluation",
        "reliable": all(one["status"] != "failed" for one in checks),
        "run": {
            "protocol": plan.name,
            "data": source,
            "seed": plan.seed,
            "norm": plan.norm,
            "eps": plan.eps,
            "batch_size": plan.batch_size,
            "images": len(course.chosen()),
            "draws": DRAWS,
            "precision": plan.precision,
            "key": plan.key,
            "command": command,
            "started": started,
        },
        "made_with": made_with(plan.data.images.device),
        "defense": {
            "classifier": _name(plan.defense.classifier),
            "classes": plan.defense.about.get("classes"),
            "data": plan.defense.about.get("data"),
            "config": plan.defense.config.model_dump(mode="json"),
            "threshold": plan.defense.threshold(plan.batch_size),
        },
        "batches": [
            {"indices": batch.tolist(), "labels": course.part(number).labels.tolist()}
            for number, batch in enumerate(course.batches)
        ],
        "clean": clean,
        "attacks": attacks,
        "not_run": course.not_run,
        "worst_case": worst,
        "curve": curve,
        "detector": detector,
        "sanity": checks,
        "pictures": pictures,
        "seconds": {name: round(seconds, 2) for name, seconds in course.clock.parts.items()},
    }


def _curve(ran: list[tuple[Item, dict[str, Any]]], untouched: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy against the budget: one line per family of items, from no budget at all."""

    def small(subjects: dict[str, Any]) -> dict[str, Any]:
        return {name: {key: one[key] for key in ("accuracy", "interval")} for name, one in subjects.items()}

    nothing = small({name: tally([batch[name] for batch in untouched]) for name in untouched[0]})
    lines = {item.curve: item for item, _ in ran if item.curve is not None}
    points = [
        {"eps": 0.0, "attack": name, "threat_model": item.threat, "subjects": nothing, "batches": []}
        for name, item in lines.items()
    ]
    points += [
        {
            "eps": entry["eps"],
            "attack": item.curve,
            "threat_model": item.threat,
            "subjects": small(entry["subjects"]),
            "batches": entry["batches"],
        }
        for item, entry in ran
        if item.curve is not None
    ]
    return sorted(points, key=lambda point: (str(point["attack"]), point["eps"]))


def _detector(course: Course, ran: list[tuple[Item, dict[str, Any]]]) -> dict[str, Any]:
    """The detector study, on all clean images and on those that PGD on the bare classifier has attacked, if it could."""
    plan = course.plan
    kept = [item for item, _ in ran if item.keep]
    if plan.eps not in [item.attack.eps for item in kept]:
        return {}

    def make() -> Piece:
        attacked = {
            item.attack.eps: torch.cat([course.images(item, number) for number in range(len(course.batches))])
            for item in kept
        }
        found = study(plan.defense, plan.data, course.chosen(), attacked, plan.batch_size, plan.eps, plan.seed)
        return {}, {"detector": found}

    return dict(course.piece("detector", "detector study", STUDY_COST, make)[1]["detector"])


def _first_checks(course: Course, check: Labelled) -> list[dict[str, Any]]:
    """What can be checked before anything is attacked."""
    plan = course.plan

    def make() -> Piece:
        return {}, {
            "checks": [
                sanity.unseen(plan.defense, plan.data),
                sanity.gradients(plan.defense, check, plan.eps, plan.norm, plan.seed),
                sanity.swapped(plan.defense, check, plan.seed),
                sanity.large_budget(plan.defense, check, plan.seed),
            ]
        }

    return list(course.piece("sanity/first", "sanity checks", CHECKS_COST / 5, make)[1]["checks"])


def _last_checks(
    course: Course,
    check: Labelled,
    untouched: list[dict[str, Any]],
    ran: list[tuple[Item, dict[str, Any]]],
    curve: list[dict[str, Any]],
    detector: dict[str, Any],
) -> list[dict[str, Any]]:
    """What only the results can tell."""
    plan, entries = course.plan, [entry for _, entry in ran]
    counted = [(item, entry) for item, entry in ran if entry["in_worst_case"]]
    mine = [(item, entry) for item, entry in counted if item.target not in ("magnet", "against")]

    def left(entry: dict[str, Any]) -> float:
        return float(entry["subjects"]["defense"]["accuracy"])

    found = []
    by_threat = {
        threat: worst_case([entry for _, entry in mine if entry["threat_model"] == threat], "defense")["per_batch"]
        for threat in dict.fromkeys(entry["threat_model"] for _, entry in mine)
    }
    found.append(sanity.ordered(by_threat, len(course.chosen())))
    targets = {item.curve: item.target for item, _ in ran if item.curve is not None}
    if curve:
        found.append(sanity.monotone(curve, targets, len(course.chosen())))
    noise = next((entry for _, entry in counted if entry["threat_model"] == "noise"), None)
    if noise is not None:
        clean = {name: tally([batch[name] for batch in untouched])["accuracy"] for name in ("defense", "bare")}
        found.append(sanity.harmless_noise(clean, {name: noise["subjects"][name]["accuracy"] for name in clean}))
    found.append(sanity.in_ball(entries))
    if detector:
        found.append(sanity.false_alarms(detector, plan.defense.config.detector.threshold is None))

    def make() -> Piece:
        kept = [item for item, _ in ran if item.keep]
        checks = [sanity.consistent(plan.defense, (course.images(item, 0) for item in kept), plan.seed)] if kept else []
        bare = min((entry["subjects"]["bare"]["accuracy"] for item, entry in counted if item.target == "bare"), default=1.0)
        checks.append(sanity.broken(plan.defense, check, plan.eps, plan.norm, plan.seed, bare))
        return {}, {"checks": checks}

    found += course.piece("sanity/last", "sanity checks", CHECKS_COST / 5, make)[1]["checks"]
    strongest = min((pair for pair in counted if pair[0].target == "defense"), key=lambda pair: left(pair[1]), default=None)
    if strongest is not None:
        found.append(sanity.converged(strongest[0], lambda attack: _score(course, strongest[0], attack, check)))
    return found


def _score(course: Course, item: Item, attack: Attack, check: Labelled) -> list[float]:
    """What an attack leaves the defence of the checked images: for each the share of draws in which it is right."""
    plan = course.plan
    changed = replace(item, attack=attack)
    name = "-".join(f"{key}{value}" for key, value in changed.settings().items() if key in ("steps", "draws", "restarts"))

    def make() -> Piece:
        device = check.images.device
        draw = generator(plan.seed, "sanity", "convergence", device=device)
        result = attack(course.targets[item.target], check.images, check.labels, draw)
        draw = generator(plan.seed, "sanity", "convergence score", device=device)
        found = judge(course.subjects["defense"], result.images, check.labels, draw)
        return {}, {"right": [count / len(found["by_draw"]) for count in found["correct"]]}

    return list(course.piece(f"sanity/{item.key}-{name}", "sanity checks", CHECKS_COST / 10, make)[1]["right"])


def _shown(course: Course, ran: list[tuple[Item, dict[str, Any]]]) -> dict[str, Tensor]:
    """The attacks whose pictures are shown: one for each threat model, the strongest on the defence."""
    best: dict[str, tuple[Item, dict[str, Any]]] = {}
    for item, entry in ran:
        if entry["in_worst_case"]:
            known = best.get(item.threat)
            if known is None or entry["subjects"]["defense"]["accuracy"] < known[1]["subjects"]["defense"]["accuracy"]:
                best[item.threat] = (item, entry)
    return {item.name: course.images(item, 0) for item, _ in best.values()}


def _name(classifier: nn.Module) -> str:
    spec = getattr(classifier, "spec", None)
    return str(spec.name) if spec is not None else type(classifier).__name__


def _write(results: dict[str, Any], folder: Path) -> None:
    from twoprong.evaluation.markdown import to_markdown
    from twoprong.evaluation.page import write_page  # matplotlib takes a second to import

    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    write_atomic(folder / "results.json", lambda file: file.write_text(text, encoding="utf-8"))
    write_atomic(folder / "results.md", lambda file: file.write_text(to_markdown(results), encoding="utf-8"))
    write_page(results, folder / "report.html")
