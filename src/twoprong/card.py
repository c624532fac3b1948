"""The model card that travels with a bundle: what it is, what it was made from, what it does not withstand."""

from typing import Any, cast

from twoprong.errors import printable

CARD = """# twoprong bundle

A two-pronged defence (DAD, Zhang et al., ICML 2025) around a classifier, fitted {fitted}.

- Classifier: {classifier}
- Images: {channels} channel(s), {height} x {width}, values in [0, 1]; normalisation is inside the classifier
- Classes: {classes}
- Data: {data}; images used: {splits}
- Test batches of {smallest} to {largest} images; smaller ones: `{policy}`
- {calibration}
- Trained on the minimum-margin attack, {norm} eps {eps:.4g}; {noise} noise, sigma {sigma:g}
- Written with twoprong {twoprong}, torch {torch}; seed {seed}
{measured}
## What it does not withstand
The defence in this bundle is the published one. It detects batches from attackers who do not know the defence, if they
change enough, and classifies them after denoising, which costs accuracy. A change too small to be detected reaches the
bare classifier. An attacker who knows the reference and the threshold can keep the statistic of a batch below the
threshold; the batch is then classified without the denoiser. An attacker who differentiates through noise and denoiser
gets far on that route, too.

    import twoprong as tp
    defense = tp.load("this directory")
    decision = defense(batch)
"""


def protected(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of the protected classifier."""
    parts = manifest["parts"]
    return cast(dict[str, Any], parts["networks"][parts["passing"]["networks"]["classifier"]])


def classifier_name(manifest: dict[str, Any]) -> str:
    entry = protected(manifest)
    if entry["spec"]:
        return str(entry["spec"]["name"]) + (" (not ours; its weights are here)" if entry["kind"] == "factory" else "")
    return f"{entry['type']} (not in the bundle)"


def model_card(manifest: dict[str, Any]) -> str:
    """The card as Markdown, from the manifest that goes beside it; measured results are those in `about`."""
    config, about, image = manifest["config"], manifest["about"], manifest["preprocessing"]
    detector = config["detector"]
    sizes = [row["batch_size"] for row in manifest["thresholds"]]
    text = CARD.format(
        fitted=about.get("fitted", "on an unknown date"),
        classifier=classifier_name(manifest),
        classes=", ".join(about.get("classes", [])) or "unnamed",
        data=about.get("data", "unnamed"),
        splits=", ".join(f"{name} {count:,}" for name, count in about.get("split_sizes", {}).items()) or "not recorded",
        smallest=sizes[0],
        largest=sizes[-1],
        policy=config["on_small_batch"],
        calibration=_calibration(detector),
        norm=config["attack"]["norm"],
        eps=config["attack"]["eps"],
        noise=config["denoiser"]["noise"],
        sigma=config["denoiser"]["sigma"],
        seed=config["seed"],
        measured=_measured(about),
        channels=image["channels"],
        height=image["height"],
        width=image["width"],
        twoprong=manifest["versions"]["twoprong"],
        torch=manifest["versions"]["torch"],
    )
    return "".join(f"{printable(line)}\n" for line in text.split("\n")[:-1])  # names may have come from anywhere


def _calibration(detector: dict[str, Any]) -> str:
    if detector["threshold"] is not None:
        return f"Threshold: the constant {detector['threshold']} for every batch size, not calibrated"
    return (
        f"Thresholds calibrated per batch size: with {detector['confidence']:.0%} confidence at most "
        f"{detector['false_alarm_rate']:.1%} of unseen clean batches are flagged"
    )


def _measured(about: dict[str, Any]) -> str:
    lines = [f"- {name}: {value}" for name, value in about.get("measured", {}).items()]
    return "\n".join(["", "## Measured", *lines, ""]) if lines else ""
