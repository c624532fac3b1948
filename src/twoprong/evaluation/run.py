"""`evaluate`: a defence before a protocol's attacks, and everything that says what the numbers are worth."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twoprong.attacks.norms import NORMS
from twoprong.data.tensors import as_labelled, check_images
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.evaluation.detector.study import study
from twoprong.evaluation.pieces import Piece, Pieces
from twoprong.evaluation.plan import FORMAT, Plan
from twoprong.evaluation.protocols import Item
from twoprong.evaluation.provenance import made_with
from twoprong.evaluation.sanity.run import first_checks, last_checks
from twoprong.evaluation.scores import summarise, worst_case
from twoprong.evaluation.session import STUDY_COST, Session
from twoprong.evaluation.subjects import DRAWS
from twoprong.evaluation.threads import sensible, threads
from twoprong.models.modes import evaluating
from twoprong.models.precision import Precision
from twoprong.progress import Progress, silent
from twoprong.recipe import Images
from twoprong.report.pictures import strips
from twoprong.storage import write_atomic

COUNTS = {"quick": 200}  # images attacked; of other protocols 1,000


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
    if eps is None and norm in NORMS and norm != fitted.norm:
        raise InputError(f"eps: expected a budget beside norm {norm!r}; the defence was fitted for {fitted.norm}")
    data = as_labelled(images, labels)
    wanted = COUNTS.get(protocol, 1000) if count is None and isinstance(protocol, str) else count
    plan = Plan(
        defense,
        data,
        protocol,
        fitted.eps if eps is None else eps,
        norm or fitted.norm,
        batch_size,
        min(len(data), len(data) if wanted is None else wanted),
        seed,
        _pictures(train),
        against,
        surrogate,
        precision,
    )
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(folder, resume)
    store = Pieces(None if folder is None else folder / "work", plan.key, resume)
    with threads(sensible(data.images, plan.batch_size)), evaluating(defense), evaluating(against):
        results = _results(Session(plan, store, progress), command, source)
    if folder is not None:
        _write(results, folder)
    return Evaluation(results)


def check_folder(folder: Path, resume: bool) -> None:
    """Results go to a folder of their own. Raises InputError where there is something else."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a directory for the results, this is a file")
    if (folder / "manifest.json").exists():
        raise InputError(f"{folder}: holds a bundle; choose another --out")
    if (folder / "results.json").exists() and not resume:
        raise InputError(f"{folder}: holds an earlier run; go on with it by --resume, or choose another --out")


def _pictures(train: Images | None) -> Tensor | None:
    """Training images by whatever they come in; their labels, if any, are not needed."""
    if train is None:
        return None
    return check_images(train) if isinstance(train, Tensor) else as_labelled(train).images


def _results(session: Session, command: str | None, source: str | None) -> dict[str, Any]:
    """The content of results.json, part by part."""
    plan = session.plan
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    checks = first_checks(session)
    clean, untouched = session.clean(), session.untouched()
    ran = [(item, entry) for item in session.items if (entry := session.attack(item, untouched)) is not None]
    attacks = [entry for item, entry in ran if item.curve is None or entry["in_worst_case"]]
    curve = _curve(ran, untouched)
    detector = _detector(session, ran)
    worst = {name: worst_case(attacks, name) for name in session.subjects}
    checks += last_checks(session, untouched, ran, curve, detector)
    pictures = strips(plan.defense, session.part(0), _shown(session, ran), plan.seed)
    session.clock.finish()
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
            "images": len(session.chosen()),
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
            {"indices": batch.tolist(), "labels": session.part(number).labels.tolist()}
            for number, batch in enumerate(session.batches)
        ],
        "clean": clean,
        "attacks": attacks,
        "not_run": session.not_run,
        "worst_case": worst,
        "curve": curve,
        "detector": detector,
        "sanity": checks,
        "pictures": pictures,
        "seconds": {name: round(seconds, 2) for name, seconds in session.clock.parts.items()},
    }


def _curve(ran: list[tuple[Item, dict[str, Any]]], untouched: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy against the budget: one line per family of items, from no budget at all."""

    def small(subjects: dict[str, Any]) -> dict[str, Any]:
        return {name: {key: one[key] for key in ("accuracy", "interval")} for name, one in subjects.items()}

    nothing = small({name: summarise([batch[name] for batch in untouched]) for name in untouched[0]})
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


def _detector(session: Session, ran: list[tuple[Item, dict[str, Any]]]) -> dict[str, Any]:
    """The detector study, on all clean images and on those that PGD on the bare classifier has attacked, if it could."""
    plan = session.plan
    kept = [item for item, _ in ran if item.keep]
    if plan.eps not in [item.attack.eps for item in kept]:
        return {}

    def make() -> Piece:
        attacked = {
            item.attack.eps: torch.cat([session.images(item, number) for number in range(len(session.batches))])
            for item in kept
        }
        found = study(plan.defense, plan.data, session.chosen(), attacked, plan.batch_size, plan.eps, plan.seed)
        return {}, {"detector": found}

    return dict(session.piece("detector", "detector study", STUDY_COST, make)[1]["detector"])


def _shown(session: Session, ran: list[tuple[Item, dict[str, Any]]]) -> dict[str, Tensor]:
    """The attacks whose pictures are shown: one for each threat model, the strongest on the defence."""
    best: dict[str, tuple[Item, dict[str, Any]]] = {}
    for item, entry in ran:
        if entry["in_worst_case"]:
            known = best.get(item.threat)
            if known is None or entry["subjects"]["defense"]["accuracy"] < known[1]["subjects"]["defense"]["accuracy"]:
                best[item.threat] = (item, entry)
    return {item.name: session.images(item, 0) for item, _ in best.values()}


def _name(classifier: nn.Module) -> str:
    spec = getattr(classifier, "spec", None)
    return str(spec.name) if spec is not None else type(classifier).__name__


def _write(results: dict[str, Any], folder: Path) -> None:
    from twoprong.report.evaluation import write_page  # matplotlib takes a second to import
    from twoprong.report.markdown import to_markdown

    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    write_atomic(folder / "results.json", lambda file: file.write_text(text, encoding="utf-8"))
    write_atomic(folder / "results.md", lambda file: file.write_text(to_markdown(results), encoding="utf-8"))
    write_page(results, folder / "report.html")
