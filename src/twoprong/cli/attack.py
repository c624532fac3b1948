"""`twoprong attack`."""

import time
from dataclasses import asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from twoprong.attacks import ATTACKS, Attack, Partial
from twoprong.attacks.base import Model
from twoprong.bundle import read_manifest
from twoprong.cli.arguments.attack import AttackArguments
from twoprong.cli.classifier import Normalisation, get_defense, get_trained
from twoprong.cli.device import choose_and_tune, resolve
from twoprong.cli.output import out, print_json, progress_bars, shown
from twoprong.cli.source import class_names, get_data, say_fewer
from twoprong.config import as_number, toml_value
from twoprong.data.tensors import ImageData
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.evaluation.attack import Attacked, attack_batches
from twoprong.measure import over_batches, wilson
from twoprong.storage import write_atomic


def attack(given: AttackArguments) -> None:
    """Load, attack, summarise; write images and pictures where asked."""
    if given.bundle is None and given.classifier is None:
        raise InputError("expected a BUNDLE, or --classifier for a bare classifier, got neither")
    chosen = make_attack(given.name, *_budget(given), given.assignments or [], given.slots)
    where = choose_and_tune(given.device)
    inner = resolve(given.precision, where)
    classes = class_names(given.classes)
    source = get_data(given.data, given.bundle, given.data_root, given.image_size, classes, given.split).to(where)
    model = _target(given, source, where)
    say_fewer(given.images, source)
    part = source.test[: given.images]
    size = min(given.batch_size, len(part))
    _check_sizes(model, len(part), size)
    for option, place in (("--out", given.file and given.file.parent), ("--pictures", given.pictures)):
        if place is not None and place.exists() and not place.is_dir():
            raise InputError(f"{option}: expected a directory at {place}, there is a file")
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with progress_bars() as progress:
        batches = attack_batches(chosen, model, part, size, given.seed, progress, inner)
    originals = part.images.cpu()
    summary = {
        **_summarise(given.name, chosen, batches, originals, time.perf_counter() - start),
        "seed": given.seed,
        "batch_size": size,
        "precision": inner,
        "settings": json_settings(chosen),
    }
    if given.file is not None:
        _write(given.file, batches, originals)
    if given.pictures is not None:
        _strips(given.pictures, originals, torch.cat([batch.result.images for batch in batches]).cpu(), batches)
    if given.as_json:
        print_json(summary)
        return
    target = f"{given.bundle or given.classifier}{' (bare)' if given.bare else ''}"
    table = Table(show_header=False, title=f"{given.name} on {shown(target)}")
    for key, value in summary.items():
        table.add_row(key.replace("_", " "), escape(_shown(key, value)))
    out.print(table)


def _shown(key: str, value: Any) -> str:
    """A number of the summary as a reader wants it."""
    if key.startswith("accuracy_interval"):
        return "unknown: fewer than 3 batches" if value is None else f"{value[0]:.1%} to {value[1]:.1%}"
    if key.startswith("accuracy"):
        return f"{value:.1%}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {setting}" for name, setting in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _budget(given: AttackArguments) -> tuple[str, str]:
    """The budget and its norm: as asked for, else those that the bundle was fitted for."""
    fitted = {"eps": "8/255", "norm": "linf"}
    if given.bundle is not None:
        fitted = read_manifest(given.bundle)["config"]["attack"]
    if given.eps is None and given.norm not in (None, fitted["norm"]):
        raise InputError(f"--norm {given.norm}: expected --eps beside it, a budget for this norm")
    return str(fitted["eps"]) if given.eps is None else given.eps, given.norm or fitted["norm"]


def make_attack(name: str, eps: str, norm: str, assignments: list[str], slots: str | None) -> Attack:
    """The attack with its settings. Raises InputError for a name or a setting that does not exist, with the nearest one."""
    if name not in ATTACKS:
        near = get_close_matches(name, ATTACKS, 1)
        raise InputError(
            f"--attack {name}: expected one of {', '.join(ATTACKS)}" + (f"; did you mean {near[0]}?" if near else "")
        )
    known = [field.name for field in fields(ATTACKS[name]) if field.name not in ("eps", "norm")]
    settings: dict[str, Any] = {"eps": number("--eps", eps), "norm": norm}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if key not in known or not equals:
            raise InputError(
                f"--set {assignment}: expected KEY=VALUE with a setting of {name}: {', '.join(known) or 'none'}"
            )
        value = toml_value(text)
        if isinstance(value, list):
            value = tuple(tuple(part) if isinstance(part, list) else part for part in value)
        settings[key] = number(f"--set {key}", value) if isinstance(value, str) and "/" in value else value
    chosen = ATTACKS[name](**settings)
    if slots is None:
        return chosen
    share = number("--slots", slots.removesuffix("%")) / (100 if slots.endswith("%") else 1)
    return Partial(attack=chosen, share=share)


def number(option: str, text: str) -> float:
    try:
        return float(as_number(text))
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error


def _target(given: AttackArguments, source: ImageData, where: torch.device) -> Model:
    classifier = None
    if given.classifier is not None:  # a bundle knows the weights that it was fitted around
        inside = given.weights_inside or (given.bundle is not None and ":" in given.classifier)
        normalisation = Normalisation(given.mean, given.std)
        classifier = get_trained(given.classifier, given.weights, source, inside, normalisation).to(where)
    if given.bundle is None:
        assert classifier is not None
        return classifier
    defense = get_defense(given.bundle, classifier, source, given.allow or ())
    return defense.classifier if given.bare else defense


def _check_sizes(model: Model, count: int, size: int) -> None:
    """Say before the work that a batch cannot be tested, not after it."""
    if isinstance(model, Defense):
        allowed = model.detector.batch_sizes
        for batch in {size, count % size or size}:
            if batch not in allowed:
                raise InputError(
                    f"--images {count} in batches of {size}: one of {batch} cannot be tested, only {allowed[0]} to "
                    f"{allowed[-1]}; choose other --images or --batch-size"
                )


def json_settings(chosen: Attack) -> dict[str, Any]:
    """An attack's settings as they go into a file; a partial attack's are its inner one's and the share."""
    inner = chosen.attack if isinstance(chosen, Partial) else chosen
    return asdict(inner) | ({"share": chosen.share} if isinstance(chosen, Partial) else {})


def _summarise(name: str, chosen: Attack, batches: list[Attacked], originals: Tensor, seconds: float) -> dict[str, Any]:
    count = len(originals)
    per_image = torch.cat([batch.correct.double().mean(0) for batch in batches]).cpu()
    changed = (torch.cat([batch.result.images for batch in batches]).cpu() != originals).flatten(1).any(1)
    slots = torch.cat([batch.slots for batch in batches]).cpu()
    partial = {}
    if not slots.all():
        partial = {
            "slots_attacked": int(slots.sum()),
            "accuracy_on_slots": per_image[slots].mean().item(),
            "accuracy_on_others": per_image[~slots].mean().item(),
        }
    hits, sizes = [batch.correct.double().mean(0).sum().item() for batch in batches], [len(one.labels) for one in batches]
    correct = sum(hits)
    return {
        "attack": name,
        "eps": chosen.eps,
        "norm": chosen.norm,
        "images": count,
        "batches": len(batches),
        "accuracy": correct / count,
        "accuracy_interval": wilson(round(correct), count),
        "accuracy_interval_batches": over_batches(hits, sizes),  # the images of a batch share its route
        "accuracy_worst_draw": sum(batch.worst_draw * len(batch.labels) for batch in batches) / count,
        "images_changed": int(changed.sum()),
        **partial,
        "batches_flagged": sum(batch.flagged for batch in batches),
        "queries_per_image": sum(batch.result.queries for batch in batches) / count,
        "seconds": round(seconds, 1),
    }


def _write(file: Path, batches: list[Attacked], originals: Tensor) -> None:
    """The .npz: images, originals, labels, correct (draws x images), and per image its batch, slot, flag and statistic."""
    numbers = [torch.full((len(batch.labels),), number) for number, batch in enumerate(batches)]
    columns = {
        "images": torch.cat([batch.result.images for batch in batches]),
        "originals": originals,
        "labels": torch.cat([batch.labels for batch in batches]),
        "correct": torch.cat([batch.correct for batch in batches], 1),
        "batch": torch.cat(numbers),
        "slots": torch.cat([batch.slots for batch in batches]),
        "flagged": torch.tensor([batch.flagged for batch in batches for _ in batch.labels]),
        "statistic": torch.tensor([batch.statistic for batch in batches for _ in batch.labels]),
    }

    arrays: dict[str, Any] = {name: column.cpu().numpy() for name, column in columns.items()}

    def save(path: Path) -> None:
        with path.open("wb") as handle:
            np.savez_compressed(handle, **arrays)

    write_atomic(file, save)


def _strips(folder: Path, originals: Tensor, attacked: Tensor, batches: list[Attacked], count: int = 10) -> None:
    """For the first images of every batch: a PNG with rows original, attacked, difference x10 around grey."""
    start = 0
    for number, batch in enumerate(batches):
        rows = slice(start, start + min(count, len(batch.labels)))
        clean, bad = originals[rows], attacked[rows]
        grid = torch.stack([clean, bad, (0.5 + 10 * (bad - clean)).clamp(0, 1)])  # (3, n, C, H, W)
        pixels = grid.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # (3H, nW, C)
        array = (pixels * 255).round().byte().numpy()
        picture = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
        zoom = max(1, 64 // originals.shape[-1])
        picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST).save(
            folder / f"{number:04d}.png"
        )
        start += len(batch.labels)
