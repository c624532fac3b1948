"""`twoprong fit`."""

import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table

from twoprong.bundle import check_target
from twoprong.cli.arguments.fit import FitArguments
from twoprong.cli.classifier import Normalisation, Training, get_classifier, trained_here
from twoprong.cli.device import choose_and_tune, resolve
from twoprong.cli.finished import is_finished
from twoprong.cli.output import check_utf8, command_line, err, out, print_json, progress_bars, shown
from twoprong.cli.source import class_names
from twoprong.config import load_config
from twoprong.data.sources import has_own_test, load_data, part_folder
from twoprong.data.tensors import Labelled
from twoprong.errors import InputError
from twoprong.models.train import accuracy
from twoprong.presets import PRESETS, preset
from twoprong.recipe import CHECKPOINTS
from twoprong.recipe import fit as fit_defense
from twoprong.robust.run import load_weights


def fit(given: FitArguments) -> None:
    """Load, train, fit, measure, write."""
    check_utf8("--out", given.bundle)
    check_utf8("--work", given.work)
    check_target(given.bundle, given.overwrite or given.resume)
    settings = load_config(given.config, _assignments(given), base=preset(given.preset) or PRESETS.get(given.data))
    if given.robust_weights is not None and settings.mode != "hardened":
        raise InputError("--robust-weights: expected --mode hardened beside it; the paper's method has no robust network")
    where = choose_and_tune(given.device)
    inner = resolve(given.precision, where)
    names = class_names(given.classes)
    images = load_data(given.data, given.data_root, given.image_size, given.strict, names).to(where)
    folder = given.work or given.bundle.with_name(f"{given.bundle.name}.work")
    if given.resume and is_finished(given, settings, images, _learned_elsewhere(given, images.classes, where), inner):
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        _say_finished(given.bundle, given.as_json)
        return
    check_target(given.bundle, given.overwrite)
    if not given.resume:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bars() as progress:
        training = Training(settings, folder, given.resume, progress, inner)
        normalisation = Normalisation(given.mean, given.std)
        model = get_classifier(given.classifier, given.weights, images, training, given.weights_inside, normalisation)
        unseen = _held_out(given, images.classes, where)
        test = images.test if _is_unlearned(given) else None
        kind = "clean test images" if test is not None else f"images of {shown(given.data)} that it may have learned"
        bare = accuracy(model, images.test)
        err.print(f"{shown(given.classifier)}: {bare:.2%} of {len(images.test):,} {kind}", highlight=False)
        defense = fit_defense(
            model,
            images.train,
            config=settings,
            held_out=unseen,
            test=test,
            classes=images.classes,
            force=given.force,
            work=folder,
            resume=given.resume,
            progress=progress,
            precision=inner,
            robust=None if given.robust_weights is None else load_weights(given.robust_weights),
        )
    defense.about |= {"data": images.name, "measured": defense.about.get("measured", {}) | {"command": command_line()}}
    defense.save(given.bundle, given.overwrite)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    _report(given.bundle, folder, bare, defense.about, given.as_json)


def _assignments(given: FitArguments) -> list[str]:
    """What --set, --mode and --balance say; the last two win."""
    named = {"mode": given.mode and f'"{given.mode.value}"', "balance": given.balance}
    return [*(given.assignments or ()), *(f"{name}={value}" for name, value in named.items() if value is not None)]


def _say_finished(bundle: Path, as_json: bool) -> None:
    if as_json:
        print_json({"bundle": str(bundle), "finished": True})
    else:
        said = "finished already: a bundle of these settings, images and classifier; --overwrite fits it again"
        out.print(f"[bold]{shown(bundle)}[/bold]: {said}", highlight=False)


def _held_out(given: FitArguments, classes: tuple[str, ...], where: torch.device) -> Labelled | Literal["none"] | None:
    """The images of --held-out. Raises InputError where a classifier that was trained elsewhere comes without the choice."""
    choice = given.held_out
    if choice is None:
        if trained_here(given.classifier, given.weights):
            return None
        raise InputError(
            f"--held-out: expected a choice, because {given.classifier} was trained elsewhere. Which images has it not "
            "learned? DIRECTORY: these, sorted like --data; val: those in the sub-directory val/ of --data; none: it has "
            "learned no image of --data"
        )
    if choice == "none":
        return "none"
    place = str(part_folder(given.data, "val")) if choice == "val" else choice
    return load_data(place, None, given.image_size, given.strict, classes).everything().to(where)


def _learned_elsewhere(given: FitArguments, classes: tuple[str, ...], where: torch.device) -> Labelled | None:
    """The images of --held-out, if there are any."""
    chosen = _held_out(given, classes, where)
    return chosen if isinstance(chosen, Labelled) else None


def _is_unlearned(given: FitArguments) -> bool:
    """Whether the classifier has learned none of the test part, as far as anybody has said."""
    own = has_own_test(given.data)
    if given.held_out == "val":
        return own  # without test/, val/ stands in for it, and is taken already
    return own or given.held_out == "none" or trained_here(given.classifier, given.weights)


def _report(bundle: Path, folder: Path, bare: float, about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"bundle": str(bundle), "clean_bare": bare, **about.get("measured_values", {})})
        return
    table = Table(show_header=False, title=f"{shown(bundle)}: what was bought")
    for name, value in about["measured"].items():
        table.add_row(shown(name), shown(value))
    out.print(table)
    kept = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    out.print(
        f"Look inside: twoprong inspect {shown(bundle)}\n"
        f"Crafted examples ({kept / 1e6:.1f} MB) stay in {shown(folder)} for the next run; delete them freely.",
        highlight=False,
    )
