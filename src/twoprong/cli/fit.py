"""`twoprong fit`."""

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from twoprong.bundle import check_target
from twoprong.cli.classifier import get_classifier
from twoprong.cli.device import Device, Precision, choose, resolve
from twoprong.cli.output import err, out, print_json, progress_bars
from twoprong.config import PRESETS, load_config
from twoprong.data.sources import load_data
from twoprong.measure import Scores, score
from twoprong.models.train import accuracy
from twoprong.recipe import CHECKPOINTS
from twoprong.recipe import fit as fit_defense
from twoprong.seeds import generator


def fit(
    data: Annotated[str, typer.Option(help="digits, cifar10, or a directory with one sub-directory per class.")],
    bundle: Annotated[Path, typer.Option("--out", help="The bundle to write.")],
    classifier: Annotated[str, typer.Option(help="cnn, resnet18, resnet50, wrn-28-10, swin-t, or MODULE:FACTORY.")],
    weights: Annotated[Path | None, typer.Option(help="Trained weights, a .safetensors file; else it is trained.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where cifar10's files are.")] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="A directory like --data of images that the classifier was not trained on.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=4, help="Resize a directory's images to this square.")] = None,
    strict: Annotated[
        bool, typer.Option(help="Refuse a directory with an unreadable image, instead of skipping it.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings, a TOML file.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, such as denoiser.epochs=30; may be repeated.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Where crafted examples and checkpoints go.", show_default="OUT.work")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue a run that was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a bundle that is already there.")] = False,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    precision: Annotated[
        Precision, typer.Option(help="Of networks in training and crafting; auto is bf16 on a GPU.")
    ] = Precision.auto,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for machines.")] = False,
) -> None:
    """Put the defence around a classifier and write it as a bundle.

    Without weights a named classifier is trained first, on images that reference and calibration are not taken from. For a
    classifier that was trained elsewhere on --data, give --held-out images, or clean batches may look unlike the reference.
    """
    check_target(bundle, overwrite)
    settings = load_config(config, assignments or (), base=PRESETS.get(data))
    where = choose(device)
    inner = resolve(precision, where)
    images = load_data(data, data_root, image_size, strict).to(where)
    unseen = None
    if held_out is not None:
        unseen = load_data(str(held_out), None, image_size, strict).everything().to(where)
    folder = work or bundle.with_name(f"{bundle.name}.work")
    if not resume:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bars() as progress:
        model = get_classifier(classifier, weights, images, settings, folder, resume, progress, inner)
        bare = accuracy(model, images.test)
        err.print(f"{classifier}: {bare:.2%} of {len(images.test):,} clean test images", highlight=False)
        defense = fit_defense(
            model,
            images.train,
            config=settings,
            held_out=unseen,
            work=folder,
            resume=resume,
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
    defense.save(bundle, overwrite)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    _report(bundle, folder, bare, clean, as_json)


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
