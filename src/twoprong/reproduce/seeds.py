"""A table measured with several seeds: mean ± standard deviation, as the paper prints its own numbers."""

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from twoprong.data.tensors import ImageData
from twoprong.errors import InputError
from twoprong.reproduce.options import ReproduceOptions
from twoprong.reproduce.run import reproduce, write_results
from twoprong.results import ReproductionResults
from twoprong.results.reproduction import Cell, Row


def over_seeds(
    name: str, scale: str, data: ImageData, out: Path, options: ReproduceOptions | None = None, seeds: int = 1
) -> ReproductionResults:
    """`reproduce` with `options.seed`, the next one, and so on; each run's files go to `out/seed-N`, the means to `out`.

    A seed decides the splits, all training, the attacks and the noise.
    """
    options = options or ReproduceOptions()
    if seeds == 1:
        return reproduce(name, scale, data, out, options)
    if options.trained is not None and options.held_out is None:
        raise InputError(
            "--seeds with --weights: expected --held-out, images that the classifier has not learned: every seed draws "
            "another reference from the training images. Without --weights each seed trains its own classifier"
        )
    if not options.resume and out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: holds an earlier run; go on with it by --resume, or choose another --out")
    options = replace(options, work=options.work or out / "work")
    runs = [
        reproduce(name, scale, data, out / f"seed-{seed}", replace(options, seed=seed))
        for seed in range(options.seed, options.seed + seeds)
    ]
    first = runs[0]
    rows = [
        Row(
            name=row.name,
            cells=[_averaged([run.rows[i].cells[j] for run in runs], first.run.seed) for j in range(len(row.cells))],
        )
        for i, row in enumerate(first.rows)
    ]
    about = first.run.model_copy(update={"seeds": seeds, "seconds": sum(run.run.seconds for run in runs)})
    results = first.model_copy(update={"rows": rows, "run": about})
    write_results(results, out)
    return results


def _averaged(cells: list[Cell], seed: int) -> Cell:
    """One cell over all runs. Its interval is None: the same images in every run say nothing of others."""
    ours, flags = [cell.ours for cell in cells], [cell.flagged for cell in cells if cell.flagged is not None]
    changes: dict[str, Any] = {
        "ours": mean(ours),
        "deviation": stdev(ours),
        "runs": ours,
        "interval": None,
        "interval_batches": None,
        "flagged": mean(flags) if flags else None,
        "seconds": sum(cell.seconds for cell in cells),
        "bundle": cells[0].bundle and f"seed-{seed}/{cells[0].bundle}",
    }
    return cells[0].model_copy(update=changes)
