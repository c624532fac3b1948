"""`twoprong inspect`."""

from rich.markup import escape
from rich.table import Table

from twoprong.bundle import read_manifest
from twoprong.card import classifier_name
from twoprong.cli.arguments.inspect import InspectArguments
from twoprong.cli.output import out, print_json


def inspect(given: InspectArguments) -> None:
    """Show a bundle's manifest, which reading it verifies."""
    manifest = read_manifest(given.bundle)
    if given.as_json:
        print_json(manifest)
        return
    config, about, image = manifest["config"], manifest["about"], manifest["preprocessing"]
    detector = config["detector"]
    facts = {
        "classifier": classifier_name(manifest),
        "images": f"{image['channels']} x {image['height']} x {image['width']}, values in [0, 1]",
        "classes": ", ".join(about.get("classes", [])) or "unnamed",
        "data": str(about.get("data", "unnamed")),
        "fitted": about.get("fitted", "unknown"),
        "splits": ", ".join(f"{name} {count:,}" for name, count in about.get("split_sizes", {}).items()),
        "attack": f"mma, {config['attack']['norm']}, eps {config['attack']['eps']:.4g}",
        "false alarms": f"at most {detector['false_alarm_rate']:.1%}, with {detector['confidence']:.0%} confidence"
        if detector["threshold"] is None
        else "not calibrated: a constant threshold",
        "small batches": config["on_small_batch"],
        "versions": ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        "bytes": f"{sum(entry['bytes'] for entry in manifest['files'].values()):,}, all files verified",
        **about.get("measured", {}),
    }
    table = Table(show_header=False, title=escape(str(given.bundle)))
    for name, value in facts.items():
        table.add_row(escape(name), escape(str(value)))
    out.print(table)
    thresholds = Table(title="Thresholds by batch size (linear in 1/size between)")
    for column in ("batch size", "threshold", "best estimate"):
        thresholds.add_column(column, justify="right")
    for row in manifest["thresholds"]:
        thresholds.add_row(str(row["batch_size"]), f"{row['threshold']:.6f}", f"{row['central']:.6f}")
    out.print(thresholds)
