"""`twoprong inspect`."""

from rich.table import Table

from twoprong.bundle import read_detector, read_manifest
from twoprong.card import RESCUES, classifier_name, mode, training
from twoprong.cli.arguments.inspect import InspectArguments
from twoprong.cli.output import out, print_json, shown


def inspect(given: InspectArguments) -> None:
    """Show a bundle's manifest, which reading it verifies, and the detector's thresholds, which are those in force."""
    manifest = read_manifest(given.bundle)
    judge = read_detector(given.bundle, manifest)
    if given.as_json:
        print_json(manifest)
        return
    config, about, image = manifest["config"], manifest["about"], manifest["preprocessing"]
    detector = config["detector"]
    facts = {
        "mode": mode(manifest),
        "classifier": classifier_name(manifest),
        "images": f"{image['channels']} x {image['height']} x {image['width']}, values in [0, 1]",
        "classes": ", ".join(about.get("classes", [])) or "unnamed",
        "data": str(about.get("data", "unnamed")),
        "fitted": about.get("fitted", "unknown"),
        "splits": ", ".join(f"{name} {count:,}" for name, count in about.get("split_sizes", {}).items()),
        "training": training(manifest),
        "false alarms": f"at most {detector['false_alarm_rate']:.1%}, with {detector['confidence']:.0%} confidence"
        if detector["threshold"] is None
        else "not calibrated: a constant threshold",
        "small batches": config["on_small_batch"],
        "flagged batches": RESCUES[config["rescue"]].format(**detector),
        "suspects": "cannot be told from the rest of their batch"
        if judge.blame is None
        else f"images with a score from {judge.blame.limit.item():.4g}, and more until the rest would pass",
        "versions": ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        "bytes": f"{sum(entry['bytes'] for entry in manifest['files'].values()):,}, all files verified",
        **about.get("measured", {}),
    }
    table = Table(show_header=False, title=shown(given.bundle))
    for name, value in facts.items():
        table.add_row(shown(name), shown(value))
    out.print(table)
    rows = Table(title="Thresholds by batch size (linear in 1/size between)")
    for column in ("batch size", "threshold", "best estimate"):
        rows.add_column(column, justify="right")
    for size, upper, central in zip(*(column.tolist() for column in judge.thresholds), strict=True):
        rows.add_row(str(size), f"{upper:.6f}", f"{central:.6f}")
    out.print(rows)
