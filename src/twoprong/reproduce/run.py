"""`reproduce`: a table of the paper measured here, cell by cell, beside the numbers printed there."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from twoprong.attacks.base import REVISION
from twoprong.attacks.target import as_target
from twoprong.data.tensors import ImageData
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.evaluation.pieces import Pieces
from twoprong.evaluation.provenance import made_with
from twoprong.evaluation.scores import summarise
from twoprong.evaluation.subjects import Subject, judge
from twoprong.measure import partition
from twoprong.report.reproduction import to_markdown, write_comparison
from twoprong.reproduce.artifacts import Artifacts, Measured, variant
from twoprong.reproduce.options import ReproduceOptions
from twoprong.reproduce.tables import Row, Spec, load_experiment, printed, spec_of
from twoprong.results import ReproductionResults
from twoprong.results.reproduction import Cell, QuotedRow, ReproductionRun, ScaleUsed
from twoprong.results.reproduction import Row as MeasuredRow
from twoprong.results.scores import BatchScore
from twoprong.seeds import generator
from twoprong.storage import fingerprint, write_atomic

FORMAT: Final = 1  # of results.json
SMOKE = "smoke: shows that it runs, not what it gives"


def reproduce(
    name: str, scale: str, data: ImageData, out: Path, options: ReproduceOptions | None = None
) -> ReproductionResults:
    """Measure every cell of the experiment `name` on `data`; returns what it writes to `out/results.json`.

    Beside it: `results.md`, `report.html`, `bundles/` with every defence that was measured, `work/` with finished pieces.
    Classifiers, fits and attacked batches are looked for in `options.work` under digests of all they depend on, so
    experiments that share it do not make them twice.
    """
    options = options or ReproduceOptions()
    seed, precision, trained, surrogates = options.seed, options.precision, options.trained, options.surrogates
    experiment = load_experiment(name).narrowed(options.only, options.columns)
    chosen = experiment.scale(scale)
    changes = {"set": (*chosen.set, *options.assignments), "preset": options.preset or chosen.preset}
    chosen = chosen.model_copy(update=changes)
    if options.images is not None:
        chosen = chosen.model_copy(update={"images": options.images})
    if any(assignment.partition("=")[0].strip() == "seed" for assignment in options.assignments):
        raise InputError("--set seed: the seed of a reproduction is that of all its parts; use --seed")
    if not options.resume and ((out / "work").exists() or (out / "results.json").exists()):
        raise InputError(f"{out}: holds an earlier run; go on with it by --resume, or choose another --out")
    work = options.work or out / "work"
    artifacts = Artifacts(work, data, chosen, seed, trained, surrogates, options.held_out, precision, options.progress)
    grid = [[spec_of(row, column, chosen, options.classifier) for column in experiment.columns] for row in experiment.rows]
    for spec in (spec for line in grid for spec in line):
        chosen.config(spec, seed)  # settings that are wrong are said before anything is made
    specs = [spec.model_dump() for line in grid for spec in line]
    given = [fingerprint(artifacts.given(one)) for one in sorted({spec["classifier"] for spec in specs})] if trained else []
    used = {spec["surrogate"] for spec in specs if spec["surrogate"]}
    if idle := surrogates.keys() - used:
        raise InputError(
            f"--surrogate-weights {', '.join(sorted(idle))}: expected a classifier that attacks are made on here, "
            f"of {', '.join(sorted(used)) or 'none'}"
        )
    theirs = {one: fingerprint(surrogate) for one, surrogate in surrogates.items()}
    settings = [chosen.model_dump(), REVISION, seed, precision]
    key = fingerprint(specs, given, theirs, settings, artifacts.data_key, data.test.images, data.test.labels)
    out.mkdir(parents=True, exist_ok=True)
    cells = Pieces(out / "work" / "cells", key, resume=True)
    started, rows = time.perf_counter(), list[MeasuredRow]()
    for row in experiment.rows:
        measured = []
        for number, column in enumerate(experiment.columns):
            spec, place = grid[len(rows)][number], f"{len(rows):03d}-{number:03d}"
            done = cells.piece(place, lambda s=spec: ({}, _measure(artifacts, s, out)))[1]  # type: ignore[misc]
            measured.append(Cell(column=column.name, **_paper(row, number), **done))
            options.progress("cells", len(rows) * len(grid[0]) + number + 1, len(specs), f"{row.name}: {column.name}")
        rows.append(MeasuredRow(name=row.name, cells=measured))
    results = ReproductionResults(
        format=FORMAT,
        kind="reproduction",
        name=name,
        scale="smoke" if scale == "smoke" else "full",
        warning=SMOKE if scale == "smoke" else None,
        title=experiment.title,
        source=experiment.source,
        note=" ".join(experiment.note.split()),
        columns=[column.name for column in experiment.columns],
        rows=rows,
        quoted=[
            QuotedRow(
                name=row.name,
                paper=[printed(row.paper, number) for number, _ in enumerate(experiment.columns)],
                spread=[printed(row.spread, number) for number, _ in enumerate(experiment.columns)],
            )
            for row in experiment.quoted
        ],
        run=ReproductionRun(
            seed=seed,
            precision=precision,
            data=data.name,
            test_images=len(data.test),
            classifier=options.classifier or chosen.classifier,
            scale=ScaleUsed.model_validate(chosen.model_dump(mode="json")),
            command=options.command,
            seconds=round(time.perf_counter() - started, 1),
        ),
        config=chosen.config(Spec(), seed).model_dump(mode="json"),
        made_with=made_with(data.test.images.device, [*cells.origins, *artifacts.origins]),
    )
    write_results(results, out)
    return results


def write_results(results: ReproductionResults, out: Path) -> None:
    """results.json, results.md and report.html."""
    text = json.dumps(results.as_dict(), indent=2) + "\n"
    write_atomic(out / "results.json", lambda file: file.write_text(text, encoding="utf-8"))
    write_atomic(out / "results.md", lambda file: file.write_text(to_markdown(results), encoding="utf-8"))
    write_comparison(results, out / "report.html")


def _measure(artifacts: Artifacts, spec: Spec, out: Path) -> dict[str, Any]:
    """One cell: what was measured, on what, with what."""
    measured, bundle = artifacts.measured(spec), None
    if isinstance(measured, Defense):
        bundle = Path("bundles") / variant(spec)
        if bundle not in artifacts.saved:
            artifacts.saved.add(bundle)
            (out / "bundles").mkdir(parents=True, exist_ok=True)
            measured.save(out / bundle, overwrite=True)
    start = time.perf_counter()
    found = MEASURES[spec.measure](artifacts, spec, measured)
    return {
        "unit": "%",
        "interval": None,
        "interval_batches": None,
        "images": None,
        "batches": None,
        "batch_size": None,
        "flagged": None,
        "attack": None,
        "surrogate_accuracy": None,
        "seconds": time.perf_counter() - start,
        **found,
        "classifier": spec.classifier,
        "bundle": str(bundle) if bundle else None,
        "spec": spec.model_dump(mode="json", exclude_defaults=True, exclude={"attack", "norm", "eps", "settings"}),
    }


def _clean(artifacts: Artifacts, spec: Spec, measured: Measured) -> dict[str, Any]:
    """Accuracy on all test images, in batches drawn at random; what does not fill a batch is left out."""
    test = artifacts.data.test
    size = min(spec.batch_size, len(test))
    draw = generator(artifacts.seed, "clean", size, device=test.images.device)
    judged = [
        _judge(measured, test[batch].images, test[batch].labels, 1, draw) for batch in partition(len(test), size, draw)
    ]
    return _accuracy(judged, size)


def _attacked(artifacts: Artifacts, spec: Spec, measured: Measured) -> dict[str, Any]:
    """Accuracy on attacked batches, or on clean ones into which a share of their attacked images was put."""
    start = time.perf_counter()
    judged, crafting = [], 0.0
    for number, made in enumerate(artifacts.attacked(spec, measured, artifacts.data.test[: artifacts.scale.images])):
        images, device = made.images, made.images.device
        if spec.share is not None:
            order = torch.randperm(len(images), generator=generator(artifacts.seed, "mixed", number)).to(device)
            chosen = order[: round(spec.share * len(images))]  # a larger share holds the smaller ones
            images = made.clean.images.index_copy(0, chosen, images[chosen])
        draw = generator(artifacts.seed, "score", number, device=device)
        judged.append(_judge(measured, images, made.clean.labels, artifacts.scale.draws, draw))
        crafting += made.seconds
    # Seconds of crafting come from where the batches were made, which may have been another cell or an earlier run.
    scoring = max(0.0, time.perf_counter() - start - crafting)
    return {
        **_accuracy(judged, min(spec.batch_size, artifacts.scale.images, len(artifacts.data.test))),
        "attack": {"name": spec.attack, **asdict(artifacts.scale.attack(spec))},
        "surrogate_accuracy": 100 * artifacts.surrogate_accuracy(spec) if spec.surrogate else None,
        "seconds": crafting + scoring,
    }


def _average(artifacts: Artifacts, spec: Spec, measured: Measured) -> dict[str, Any]:
    """The mean of clean and attacked accuracy, which the paper prints in one table; it has no interval of its own."""
    attacked = _attacked(artifacts, spec, measured)
    mean = (_clean(artifacts, spec, measured)["ours"] + attacked["ours"]) / 2
    return {**attacked, "ours": mean, "interval": None, "flagged": None}


def _inference(artifacts: Artifacts, spec: Spec, measured: Measured) -> dict[str, Any]:
    """Seconds for all test images through the deployed object."""
    test = artifacts.data.test
    draw = generator(artifacts.seed, "inference", device=test.images.device)
    _judge(
        measured, test.images[: spec.batch_size], test.labels[: spec.batch_size], 1, draw
    )  # the first call pays for set-up
    start = time.perf_counter()
    found = _clean(artifacts, spec, measured)
    if test.images.is_cuda:
        torch.cuda.synchronize(test.images.device)
    return {"ours": time.perf_counter() - start, "unit": "s", "images": found["images"], "batch_size": found["batch_size"]}


def _fit_seconds(artifacts: Artifacts, spec: Spec, measured: Measured) -> dict[str, Any]:
    return _cost(artifacts, measured, "fit_seconds", "s")


def _fit_memory(artifacts: Artifacts, spec: Spec, measured: Measured) -> dict[str, Any]:
    return _cost(artifacts, measured, "fit_memory_mb", "MB")


MEASURES: dict[str, Callable[[Artifacts, Spec, Measured], dict[str, Any]]] = {
    "clean": _clean,
    "attacked": _attacked,
    "average": _average,
    "fit seconds": _fit_seconds,
    "fit memory": _fit_memory,
    "inference seconds": _inference,
}


def _cost(artifacts: Artifacts, measured: Measured, fact: str, unit: str) -> dict[str, Any]:
    assert isinstance(measured, Defense)
    return {
        "ours": measured.about[fact],
        "unit": unit,
        "images": len(artifacts.data.train),
        "seconds": measured.about["fit_seconds"],
    }


def _judge(measured: Measured, images: Tensor, labels: Tensor, draws: int, draw: torch.Generator) -> BatchScore:
    """A batch before what is measured; a classifier alone has no noise to draw."""
    return judge(Subject(as_target(measured), draws if isinstance(measured, Defense) else 1), images, labels, draw)


def _accuracy(judged: list[BatchScore], size: int) -> dict[str, Any]:
    found = summarise(judged)
    return {
        "ours": 100 * found.accuracy,
        "interval": [100 * end for end in found.interval],
        "interval_batches": found.interval_batches and [100 * end for end in found.interval_batches],
        "images": sum(len(batch.correct) for batch in judged),
        "batches": len(judged),
        "batch_size": size,
        "flagged": found.flagged,
    }


def _paper(row: Row, number: int) -> dict[str, Any]:
    return {"paper": printed(row.paper, number), "spread": printed(row.spread, number)}
