"""`twoprong fit`."""

import shutil
from pathlib import Path

from rich.markup import escape

from twoprong.bundle import check_target
from twoprong.cli.arguments.fit import FitArguments
from twoprong.cli.classifier import Training, get_classifier
from twoprong.cli.device import choose, resolve
from twoprong.cli.finished import is_finished
from twoprong.cli.output import err, out, print_json, progress_bars
from twoprong.config import PRESETS, load_config
from twoprong.data.sources import load_data
from twoprong.measure import Scores, score
from twoprong.models.train import accuracy
from twoprong.recipe import CHECKPOINTS
from twoprong.recipe import fit as fit_defense
from twoprong.seeds import generator


def fit(given: FitArguments) -> None:
    """Load, train, fit, measure on the test images, write."""
    check_target(given.bundle, given.overwrite or given.resume)
    settings = load_config(given.config, given.assignments or (), base=PRESETS.get(given.data))
    where = choose(given.device)
    inner = resolve(given.precision, where)
    images = load_data(given.data, given.data_root, given.image_size, given.strict).to(where)
    unseen = None
    if given.held_out is not None:
        unseen = load_data(str(given.held_out), None, given.image_size, given.strict).everything().to(where)
    folder = given.work or given.bundle.with_name(f"{given.bundle.name}.work")
    if is_finished(given, settings, images, unseen, inner):
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        _say_finished(given.bundle, given.as_json)
        return
    check_target(given.bundle, given.overwrite)
    if not given.resume:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bars() as progress:
        training = Training(settings, folder, given.resume, progress, inner)
        model = get_classifier(given.classifier, given.weights, images, training)
        bare = accuracy(model, images.test)
        err.print(f"{given.classifier}: {bare:.2%} of {len(images.test):,} clean test images", highlight=False)
        defense = fit_defense(
            model,
            images.train,
            config=settings,
            held_out=unseen,
            work=folder,
            resume=given.resume,
            progress=progress,
            precision=inner,
        )
    defense.about |= {"classes": list(images.classes), "data": images.name}
    sizes = defense.detector.batch_sizes
    size = max(sizes[0], min(100, sizes[-1], len(images.test)))
    clean = None
    if len(images.test) >= size:
        clean = score(defense, images.test, size, 1, generator(settings.seed, "fit summary", device=where))
        defense.about["measured"] = {
            f"clean accuracy of the bare classifier on {len(images.test):,} test images": f"{bare:.2%}",
            f"clean accuracy defended, {clean.batches} test batches of {size}": f"{clean.defended:.2%}",
            "false alarms among these batches": f"{clean.flagged:.1%}",
        }
    defense.save(given.bundle, given.overwrite)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    _report(given.bundle, folder, bare, clean, given.as_json)


def _say_finished(bundle: Path, as_json: bool) -> None:
    if as_json:
        print_json({"bundle": str(bundle), "finished": True})
    else:
        said = "finished already: a bundle of these settings, images and classifier; --overwrite fits it again"
        out.print(f"[bold]{escape(str(bundle))}[/bold]: {said}", highlight=False)


def _report(bundle: Path, folder: Path, bare: float, clean: Scores | None, as_json: bool) -> None:
    if as_json:
        measured = {"clean_defended": clean.defended, "false_alarm_rate": clean.flagged} if clean else {}
        print_json({"bundle": str(bundle), "clean_bare": bare, **measured})
        return
    defended = (
        f", {clean.defended:.2%} defended, {clean.flagged:.1%} false alarms" if clean else " (too few to test a batch)"
    )
    kept = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    out.print(
        f"[bold]{escape(str(bundle))}[/bold]: clean accuracy {bare:.2%} bare{defended}\n"
        f"Look inside: twoprong inspect {escape(str(bundle))}\n"
        f"Crafted examples ({kept / 1e6:.1f} MB) stay in {escape(str(folder))} for the next run; delete them freely.",
        highlight=False,
    )
