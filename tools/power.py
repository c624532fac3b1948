"""The paper's kernel and ours on unseen images: python tools/power.py BUNDLE CIFAR_ROOT NAME [IMAGES]

Three tests around the bundle's classifier, with one reference and one set of calibration images: the paper's kernel learned
as in the paper (rate 2e-4), the same three scalars learned at our rate, and the bundle's own. Each is calibrated for the
same rate of false alarms and then sees CIFAR-10 test images (all, or the first IMAGES), clean and after PGD-20 on the bare
classifier, in batches.

It writes NAME.json, NAME.md and NAME.svg; `python tools/power.py NAME` makes the last two from the first.
"""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import twoprong as tp
from twoprong.attacks import PGD
from twoprong.attacks.craft import craft
from twoprong.config import FitConfig
from twoprong.data import ImageData, load_data
from twoprong.data.splits import split
from twoprong.detect.detector import Detector
from twoprong.detect.fit import fit_kernel
from twoprong.errors import TwoprongError
from twoprong.evaluation.detector.study import SHARES, SIZES, Pool, Study
from twoprong.evaluation.provenance import made_with
from twoprong.recipe import sample
from twoprong.seeds import generator

BUDGETS = (1, 2, 4, 8)  # /255
USUAL, SMALL = 8, 2
SIZE = 100
KERNELS = {
    "paper's kernel, paper's rate": {"projections": (0,), "lr": 2e-4},
    "paper's kernel, our rate": {"projections": (0,)},
    "ours": {},
}


def curves(defense: tp.Defense, data: ImageData, seed: int = 0) -> dict[str, Any]:
    """For each kernel: false alarms by batch size; power by share of adversarial images, by budget, by batch size."""
    config, test = defense.config, data.test
    attacked = {}
    for eps in BUDGETS:
        pgd = PGD(eps=eps / 255, step=eps / 255 / 4, steps=20)
        parts = zip(test.images.split(500), test.labels.split(500), strict=True)
        draw = generator(seed, "power", eps, device=test.images.device)
        attacked[eps] = torch.cat([pgd(defense.classifier, images, labels, draw).images for images, labels in parts])
    found = {}
    for name, settings in KERNELS.items():
        other = defense if not settings else with_kernel(defense, data, config, settings)
        found[name] = _curves(other, test.images, attacked, seed) | {"projection": _width(other)}
        print(name, json.dumps(found[name]["goals"]), flush=True)
    return {
        "kernels": found,
        "test_images": len(test),
        "classifier": defense.classifier.spec.name,
        "made_with": made_with(test.images.device).as_dict(),
    }


def with_kernel(defense: tp.Defense, data: ImageData, config: FitConfig, settings: dict[str, Any]) -> tp.Defense:
    """The defence with a kernel learned by other settings on the images that its own was learned on."""
    parts = split(data.train, config.splits, config.seed)
    hard = craft(defense.classifier, parts.kernel, config.attack)
    clean, adversarial = (sample(defense.extractor, images) for images in (parts.kernel.images, hard))
    kernel = fit_kernel(clean, adversarial, config.kernel.model_copy(update=settings), config.seed)
    detector = Detector(kernel, defense.detector.reference, config.detector.permutations)
    detector.calibrate(sample(defense.extractor, parts.calibration.images), config.detector, config.seed)
    return tp.Defense(**vars(replace(defense.parts, detector=detector, config=config, about={})))


def _width(defense: tp.Defense) -> int:
    projection = defense.detector.kernel.projection
    return 0 if projection is None else projection.shape[1]


def _curves(defense: tp.Defense, clean: torch.Tensor, attacked: dict[int, torch.Tensor], seed: int) -> dict[str, Any]:
    work, count = Study(defense, seed), len(clean)
    pools = {eps: Pool(defense, torch.cat([clean, images])) for eps, images in attacked.items()}

    def power(eps: int, size: int, share: float) -> dict[str, Any]:
        return work.rate(pools[eps], work.mixtures(count, size, share), size, count).as_dict()

    usual, sizes = pools[USUAL], [size for size in SIZES if size in defense.detector.batch_sizes]
    return {
        "goals": {
            "8/255, 30 %": power(8, SIZE, 0.3)["rate"],
            "8/255, 10 %": power(8, SIZE, 0.1)["rate"],
            "2/255, 100 %": power(2, SIZE, 1.0)["rate"],
            "8/255, 100 %, batches of 10": power(8, 10, 1.0)["rate"],
        },
        "false_alarms": [{"size": n} | work.rate(usual, work.partitions(count, n), n, count).as_dict() for n in sizes],
        "by_share": {str(eps): [{"share": share} | power(eps, SIZE, share) for share in SHARES] for eps in (USUAL, SMALL)},
        "by_eps": [{"eps": eps} | power(eps, SIZE, 1.0) for eps in attacked],
        "by_size": {str(eps): [{"size": n} | power(eps, n, 1.0) for n in sizes] for eps in (USUAL, SMALL)},
    }


def show(name: Path) -> None:
    """The page and the figure from the numbers."""
    result = json.loads(name.with_suffix(".json").read_text(encoding="utf-8"))
    name.with_suffix(".md").write_text(markdown(result, name.name), encoding="utf-8")
    name.with_suffix(".svg").write_text(figure(result), encoding="utf-8")


def markdown(result: dict[str, Any], name: str) -> str:
    kernels, made = result["kernels"], result["made_with"]
    lines = [
        "# How much the test finds: the paper's kernel and ours",
        "",
        f"    {result['command']}",
        "",
        f"{result['test_images']:,} unseen CIFAR-10 images, {result['classifier']}, PGD-20 on the bare classifier. Each test"
        " is calibrated for 5 % false alarms on other images. Up to 400 batches per number, disjoint within a pass over the "
        f"images; 95 % intervals are for as many batches as are disjoint. {made['device']}, torch {made['torch']}.",
        "",
        f"![power]({name}.svg)",
    ]
    tables = {name: _tables(one) for name, one in kernels.items()}
    for title in tables["ours"]:
        lines += ["", f"## {title}", "", "| | " + " | ".join(kernels) + " |", "|---|" + "---:|" * len(kernels)]
        for place in tables["ours"][title]:
            cells = [_cell(found[title].get(place)) for found in tables.values()]
            lines.append(f"| {place} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(entry: dict[str, Any] | None) -> str:
    """A rate and its interval; nothing for a kernel that has none there: the learned score of single images is ours only."""
    return "" if entry is None else f"{entry['rate']:.1%} ({_ends(entry['interval'])})"


def _tables(one: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """A kernel's rates by title and row."""

    def rows(entries: list[dict[str, Any]], named: Callable[[dict[str, Any]], str]) -> dict[str, dict[str, Any]]:
        return {named(entry): entry for entry in entries}

    def sized(entry: dict[str, Any]) -> str:
        return "single images" if entry["size"] == 1 else f"batches of {entry['size']}"

    def shared(entry: dict[str, Any]) -> str:
        return f"{entry['share']:.0%} of a batch of {SIZE}"

    return {
        "False alarms": rows(one["false_alarms"], sized),
        "Found at 8/255, by the share of adversarial images": rows(one["by_share"]["8"], shared),
        "Found at 2/255, by the share of adversarial images": rows(one["by_share"]["2"], shared),
        f"Found in batches of {SIZE}, all adversarial, by budget": rows(one["by_eps"], lambda entry: f"{entry['eps']}/255"),
        "Found at 8/255, all adversarial, by batch size": rows(one["by_size"]["8"], sized),
        "Found at 2/255, all adversarial, by batch size": rows(one["by_size"]["2"], sized),
    }


def _ends(interval: list[float]) -> str:
    return f"{100 * interval[0]:.0f}–{100 * interval[1]:.0f}"


def figure(result: dict[str, Any]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    panels = {
        "8/255, batches of 100": (lambda one: one["by_share"]["8"], "share", "share of adversarial images"),
        "2/255, batches of 100": (lambda one: one["by_share"]["2"], "share", "share of adversarial images"),
        "2/255, all adversarial": (lambda one: one["by_size"]["2"], "size", "batch size"),
    }
    with matplotlib.rc_context({"svg.hashsalt": "power", "svg.fonttype": "none", "font.size": 9}):
        drawn = Figure(figsize=(9.6, 3.4), layout="constrained")
        for axes, (title, (pick, key, x)) in zip(drawn.subplots(1, 3, sharey=True), panels.items(), strict=True):
            for (name, one), style in zip(result["kernels"].items(), ("o--", "s-.", "D-"), strict=True):
                points = pick(one)
                axes.plot([p[key] for p in points], [100 * p["rate"] for p in points], style, label=name, markersize=4)
            axes.set(xscale="log", xlabel=x, title=title)
            ticks = [p[key] for p in points]
            axes.set_xticks(ticks, [f"{tick:.0%}" if key == "share" else str(tick) for tick in ticks], rotation=45)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            axes.axhline(5, color="grey", linewidth=1, linestyle=":")
        drawn.axes[0].set_ylabel("batches found, %")
        drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
        buffer = io.StringIO()
        drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def measure(bundle: str, root: Path, name: Path, images: int | None = None) -> None:
    device, data = torch.device("cuda" if torch.cuda.is_available() else "cpu"), load_data("cifar10", root)
    data = replace(data, test=data.test[:images])
    result = curves(tp.load(bundle).to(device), data.to(device))
    command = ["python tools/power.py", Path(bundle).name, "CIFAR_ROOT", name, *([] if images is None else [images])]
    result["command"] = " ".join(map(str, command))
    name.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) not in (1, 3, 4) or not all(word.isdigit() for word in given[3:]):
        sys.exit(__doc__)
    try:
        if given[1:]:
            measure(given[0], Path(given[1]), Path(given[2]), *map(int, given[3:]))
        show(Path(given[2] if given[1:] else given[0]))
    except (TwoprongError, OSError) as error:
        sys.exit(f"error: {error}")
