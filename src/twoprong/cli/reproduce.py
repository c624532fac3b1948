"""`twoprong reproduce`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from torch import nn

from twoprong.cli.arguments.reproduce import ReproduceArguments
from twoprong.cli.classifier import get_trained
from twoprong.cli.device import choose_and_tune, resolve
from twoprong.cli.output import check_utf8, command_line, out, print_json, progress_bars, shown
from twoprong.data.sources import load_data
from twoprong.data.tensors import ImageData
from twoprong.errors import InputError
from twoprong.report.reproduction import row_texts
from twoprong.reproduce.options import ReproduceOptions
from twoprong.reproduce.seeds import over_seeds as run
from twoprong.reproduce.tables import load_experiment


def reproduce(given: ReproduceArguments) -> None:
    """Load what the table needs, measure it, show it beside the paper's numbers."""
    check_utf8("--out", given.directory)
    check_utf8("--work", given.work)
    where = choose_and_tune(given.device)
    source = _source(given).to(where)
    unseen = None
    if given.held_out is not None:
        unseen = load_data(str(given.held_out), None, given.image_size).everything().to(where)
    folder = given.directory or Path(f"reproduce-{given.name}-{given.scale}")
    with progress_bars() as progress:
        options = ReproduceOptions(
            work=given.work,
            resume=given.resume,
            only=given.only or (),
            columns=given.columns or (),
            assignments=given.assignments or (),
            images=given.images,
            classifier=given.classifier,
            trained=partial(get_trained, weights=given.weights, data=source) if given.weights is not None else None,
            surrogates=_surrogates(given.surrogate_weights or (), source),
            held_out=unseen,
            preset=given.preset,
            seed=given.seed,
            precision=resolve(given.precision, where),
            command=command_line(),
            progress=progress,
        )
        results = run(given.name, given.scale.value, source, folder, options, given.seeds)
    if given.as_json:
        print_json(results.as_dict())
        return
    warning = f"\n{results.warning}" if results.warning else ""
    table = Table(title=f"{results.title}\n{results.source}{warning}")
    for column in ("row", "column", "paper", "ours (95 %)"):
        table.add_column(column, justify="left" if column in ("row", "column") else "right")
    for text in row_texts(results):
        table.add_row(*map(escape, text))
    out.print(table)
    if results.run.classifier:
        out.print(f"Every protected classifier was a {results.run.classifier}, whatever a row is called.", highlight=False)
    out.print(f"{escape(results.note)}\nWritten to {shown(folder)}.", highlight=False)


def _surrogates(assignments: Sequence[str], data: ImageData) -> dict[str, nn.Module]:
    """The classifiers given as NAME=FILE."""
    made = {}
    for assignment in assignments:
        name, equals, file = assignment.partition("=")
        if not (name and equals and file):
            raise InputError(f"--surrogate-weights {assignment}: expected NAME=FILE.safetensors")
        made[name] = get_trained(name, Path(file), data)
    return made


def _source(given: ReproduceArguments) -> ImageData:
    """The images that the experiment needs at this scale. Raises InputError for what is missing, or of no use here."""
    name, scale, data = given.name, given.scale, given.data
    wanted = load_experiment(name).scale(scale).data
    if wanted != "folder":
        if data is not None:
            raise InputError(f"--data: expected none, {name} at {scale} scale runs on {wanted}, got {data}; leave it out")
        return load_data(wanted, given.data_root, given.image_size)
    if data is None or given.weights is None:
        raise InputError(
            f"{name} at full scale: expected --data FOLDER (one sub-directory per class) and --weights FILE.safetensors "
            f"(of a classifier that takes images in [0, 1]), got {'no --data' if data is None else 'no --weights'}; "
            "--scale smoke needs neither"
        )
    return load_data(str(data), given.data_root, given.image_size)
