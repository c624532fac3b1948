"""`evaluate`: a defence before a protocol's attacks, and everything that says what the numbers are worth."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.attacks.norms import NORMS
from twoprong.config import NormName
from twoprong.data.images import check_images
from twoprong.data.tensors import Labelled, as_labelled
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.evaluation.detector.study import study
from twoprong.evaluation.options import EvaluateOptions
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
from twoprong.progress import showing
from twoprong.recipe import Images, Labels
from twoprong.report.pictures import strips
from twoprong.results.detector import DetectorStudy, NotStudied
from twoprong.results.evaluation import AttackEntry, Batch, CurvePoint, DefenseFacts, EvaluationResults, Run
from twoprong.results.scores import Accuracy, BatchScore, Score
from twoprong.storage import write_atomic

COUNTS = {"quick": 200}  # images attacked; of other protocols 1,000


@dataclass(frozen=True)
class Evaluation:
    """`results` is the content of results.json (docs/results-format.md)."""

    results: EvaluationResults

    @property
    def reliable(self) -> bool:
        """Whether no sanity check failed."""
        return self.results.reliable

    @property
    def worst_case(self) -> float | None:
        """The accuracy that the best attack on each batch leaves the defence; None where no attack that counts could run."""
        worst = self.results.worst_case.get("defense")
        return None if worst is None else float(worst.per_batch)


def evaluate(
    defense: Defense,
    images: Images,
    labels: Labels | None = None,
    protocol: str | Sequence[Item] = "quick",
    out: str | PathLike[str] | None = None,
    *,
    options: EvaluateOptions | None = None,
    **keywords: Any,
) -> Evaluation:
    """Attack a defence by a protocol (quick, paper, strong, or a list of items) and say what is left of its accuracy.

    `images` are clean and unseen by everything in the defence; some are drawn at random and attacked in batches. With `out`,
    results.json, report.html and results.md go there. Every other choice is a field of `EvaluateOptions`, given as a keyword
    (`batch_size=50, resume=True`) or all together as `options`; keywords win.
    """
    options = replace(options or EvaluateOptions(), **keywords)
    folder = None if out is None else Path(out)
    with _session(defense, images, labels, protocol, folder, options) as session:
        results = _results(session, options.command, options.source)
    if folder is not None:
        _write(results, folder)
    return Evaluation(results)


def evaluate_part(
    defense: Defense,
    images: Images,
    labels: Labels | None = None,
    protocol: str | Sequence[Item] = "quick",
    out: str | PathLike[str] = "evaluation",
    part: tuple[int, int] = (1, 1),
    *,
    options: EvaluateOptions | None = None,
    **keywords: Any,
) -> int:
    """Only part k of n of the attacks on batches; returns how many these are. (k, n) is `part`, k from 1 on.

    For several processes on one GPU, or several machines that share `out`. When all are done, `evaluate` with the same
    arguments and `resume=True` finds the attacks and does the rest; the numbers are the same as of one run.
    """
    number, parts = part
    if not 1 <= number <= parts:
        raise InputError(f"part: expected k/n with k from 1 to n, got {number}/{parts}")
    options = replace(options or EvaluateOptions(), **keywords)
    check_folder(Path(out), options.resume)
    together = replace(options, resume=True)  # the others write into the same folder
    with _session(defense, images, labels, protocol, Path(out), together) as session:
        done = session.some(number, parts)
        session.clock.finish()
    return done


@contextmanager
def _session(
    defense: Defense,
    images: Images,
    labels: Labels | None,
    protocol: str | Sequence[Item],
    folder: Path | None,
    options: EvaluateOptions,
) -> Iterator[Session]:
    data = as_labelled(images, labels, shape=tuple(defense.reference_images().shape[1:]))
    plan = _plan(defense, data, protocol, options)
    if folder is not None:
        check_folder(folder, options.resume)
    store = Pieces(None if folder is None else folder / "work", plan.key, options.resume)
    with (
        showing(options.progress) as listen,
        threads(sensible(data.images, plan.batch_size)),
        evaluating(defense),
        evaluating(options.against),
    ):
        yield Session(plan, store, listen)


def _plan(defense: Defense, data: Labelled, protocol: str | Sequence[Item], options: EvaluateOptions) -> Plan:
    """The options with what they leave open filled in: the budget that the defence was fitted for, the protocol's count."""
    fitted = defense.config.attack
    if options.eps is None and options.norm in NORMS and options.norm != fitted.norm:
        raise InputError(f"eps: expected a budget beside norm {options.norm!r}; the defence was fitted for {fitted.norm}")
    wanted = options.count
    if wanted is None:
        wanted = COUNTS.get(protocol, 1000) if isinstance(protocol, str) else len(data)
    return Plan(
        defense,
        data,
        protocol,
        eps=fitted.eps if options.eps is None else options.eps,
        norm=cast(NormName, options.norm or fitted.norm),
        batch_size=options.batch_size,
        count=min(len(data), wanted),
        seed=options.seed,
        train=_pictures(options.train),
        against=options.against,
        surrogate=options.surrogate,
        precision=options.precision,
    )


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


def _results(session: Session, command: str | None, source: str | None) -> EvaluationResults:
    """The content of results.json, part by part."""
    plan = session.plan
    run, facts = _run(session, command, source), _facts(plan)  # what does not fit its type is said before the work
    checks = first_checks(session)
    clean, untouched = session.clean(), session.untouched()
    ran = session.attacks(untouched)
    attacks = [entry for item, entry in ran if item.curve is None or entry.in_worst_case]
    curve = _curve(ran, untouched)
    detector = _detector(session, ran)
    worst = {name: found for name in session.subjects if (found := worst_case(attacks, name)) is not None}
    checks += last_checks(session, untouched, ran, curve, detector)
    pictures = strips(plan.defense, session.part(0), _shown(session, ran), plan.seed)
    session.clock.finish()
    return EvaluationResults(
        format=FORMAT,
        kind="evaluation",
        reliable=all(check.status != "failed" for check in checks),
        run=run,
        made_with=made_with(plan.data.images.device, session.store.origins),
        defense=facts,
        batches=[
            Batch(indices=batch.tolist(), labels=session.part(number).labels.tolist())
            for number, batch in enumerate(session.batches)
        ],
        clean=clean,
        attacks=attacks,
        not_run=session.not_run,
        worst_case=worst,
        curve=curve,
        detector=NotStudied() if detector is None else detector,
        sanity=checks,
        pictures=pictures,
        seconds={name: round(seconds, 2) for name, seconds in session.clock.parts.items()},
    )


def _run(session: Session, command: str | None, source: str | None) -> Run:
    plan = session.plan
    return Run(
        protocol=plan.name,
        data=source,
        seed=plan.seed,
        norm=plan.norm,
        eps=plan.eps,
        batch_size=plan.batch_size,
        images=len(session.chosen()),
        draws=DRAWS,
        precision=plan.precision,
        key=plan.key,
        command=command,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _facts(plan: Plan) -> DefenseFacts:
    defense, about = plan.defense, plan.defense.about  # in `about` anybody may have put anything
    return DefenseFacts(
        classifier=_name(defense.classifier),
        classes=None if about.get("classes") is None else [str(name) for name in about["classes"]],
        data=None if about.get("data") is None else str(about["data"]),
        config=defense.config.model_dump(mode="json"),
        threshold=defense.threshold(plan.batch_size),
    )


def _curve(ran: Sequence[tuple[Item, AttackEntry]], untouched: Sequence[dict[str, BatchScore]]) -> list[CurvePoint]:
    """Accuracy against the budget: one line per family of items, from no budget at all."""

    def small(subjects: dict[str, Score]) -> dict[str, Accuracy]:
        kept = Accuracy.model_fields
        return {name: Accuracy(**{key: getattr(score, key) for key in kept}) for name, score in subjects.items()}

    nothing = small({name: summarise([batch[name] for batch in untouched]) for name in untouched[0]})
    drawn = [(item, item.curve, entry) for item, entry in ran if item.curve is not None]
    starts = {line: item.threat for item, line, _ in drawn}
    points = [
        CurvePoint(eps=0.0, attack=line, threat_model=threat, subjects=nothing, batches=[])
        for line, threat in starts.items()
    ]
    points += [
        CurvePoint(
            eps=entry.eps, attack=line, threat_model=item.threat, subjects=small(entry.subjects), batches=entry.batches
        )
        for item, line, entry in drawn
    ]
    return sorted(points, key=lambda point: (point.attack, point.eps))


def _detector(session: Session, ran: Sequence[tuple[Item, AttackEntry]]) -> DetectorStudy | None:
    """The detector study, on all clean images and on those that PGD on the bare classifier has attacked, if it could."""
    plan = session.plan
    kept = [item for item, _ in ran if item.keep]
    if plan.eps not in [item.attack.eps for item in kept]:
        return None

    def make() -> Piece:
        attacked = {
            item.attack.eps: torch.cat([session.images(item, number) for number in range(len(session.batches))])
            for item in kept
        }
        found = study(plan.defense, plan.data, session.chosen(), attacked, plan.batch_size, plan.eps, plan.seed)
        return {}, {"detector": found.as_dict()}

    return DetectorStudy.model_validate(session.piece("detector", "detector study", STUDY_COST, make)[1]["detector"])


def _shown(session: Session, ran: Sequence[tuple[Item, AttackEntry]]) -> dict[str, Tensor]:
    """The attacks whose pictures are shown: one for each threat model, the strongest on the defence."""
    best: dict[str, tuple[Item, float]] = {}
    for item, entry in ran:
        left = entry.subjects["defense"].accuracy
        if entry.in_worst_case and (item.threat not in best or left < best[item.threat][1]):
            best[item.threat] = (item, left)
    return {item.name: session.images(item, 0) for item, _ in best.values()}


def _name(classifier: nn.Module) -> str:
    spec = getattr(classifier, "spec", None)
    return str(spec.name) if spec is not None else type(classifier).__name__


def _write(results: EvaluationResults, folder: Path) -> None:
    from twoprong.report.evaluation import write_page  # with jinja2, which only a page needs
    from twoprong.report.markdown import to_markdown

    text = json.dumps(results.as_dict(), indent=1, allow_nan=False) + "\n"
    write_atomic(folder / "results.json", lambda file: file.write_text(text, encoding="utf-8"))
    write_atomic(folder / "results.md", lambda file: file.write_text(to_markdown(results), encoding="utf-8"))
    write_page(results, folder / "report.html")
