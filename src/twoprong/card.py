"""The model card that travels with a bundle: what it is, what it was made from, what it does not withstand."""

from typing import Any, cast

from twoprong.errors import printable

CARD = """# twoprong bundle

A two-pronged defence ({mode}) around a classifier, fitted {fitted}.

- Classifier: {classifier}
- Images: {channels} channel(s), {height} x {width}, values in [0, 1]; normalisation is inside the classifier
- Classes: {classes}
- Data: {data}; images used: {splits}
- Test batches of {smallest} to {largest} images; smaller ones: `{policy}`
- {calibration}
- Flagged batches: {rescue}
- {training}
- Written with twoprong {twoprong}, torch {torch}; seed {seed}
{measured}
{limits}
    import twoprong as tp
    defense = tp.load("this directory")
    decision = defense(batch)
"""

MODES = {"paper": "DAD, Zhang et al., ICML 2025", "hardened": "DAD's test, Zhang et al., ICML 2025, before robust routes"}
LIMITS = {
    "paper": """## What it does not withstand
The defence in this bundle is the published one. It detects batches from attackers who do not know the defence, if they
change enough, and classifies them after denoising, which costs accuracy. A change too small to be detected reaches the
bare classifier. An attacker who knows the reference and the threshold can keep the statistic of a batch below the
threshold; the batch is then classified without the denoiser. An attacker who differentiates through noise and denoiser
gets far on that route, too.
""",
    "hardened": """## What it does not withstand
A batch that passes the test is answered image by image: by the robust network where that is sure, elsewhere by the
classifier. A flagged batch is answered by the robust network alone. An attacker who knows everything wins the images on
which he can make the robust network wrong and sure of it, or unsure and the classifier wrong; the test hardly hinders him.
Nothing is proved: the numbers are what the attacks that were run leave at the budget that is named. A larger budget leaves
less, and another norm may.
""",
}


RESCUES = {
    "suspects": "the suspects take the flagged route, at most {false_blame_rate:.0%} of the clean images among them",
    "batch": "all images take the flagged route, as in the paper",
    "refuse": "no image is classified",
}  # by config.rescue


def protected(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of the protected classifier."""
    parts = manifest["parts"]
    return cast(dict[str, Any], parts["networks"][parts["passing"]["networks"]["classifier"]])


def mode(manifest: dict[str, Any]) -> str:
    """The mode that the parts make up, whatever the settings say."""
    return "hardened" if manifest["parts"]["passing"]["kind"] == "gate" else "paper"


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
        mode=MODES[mode(manifest)],
        training=training(manifest),
        limits=LIMITS[mode(manifest)],
        rescue=RESCUES[config["rescue"]].format(**detector),
        seed=config["seed"],
        measured=_measured(about),
        channels=image["channels"],
        height=image["height"],
        width=image["width"],
        twoprong=manifest["versions"]["twoprong"],
        torch=manifest["versions"]["torch"],
    )
    return "".join(f"{printable(line)}\n" for line in text.split("\n")[:-1])  # names may have come from anywhere


def training(manifest: dict[str, Any]) -> str:
    """What the flagged route has learned, in a line."""
    config = manifest["config"]
    budget = f"{config['attack']['norm']} eps {config['attack']['eps']:.4g}"
    if mode(manifest) == "paper":
        denoiser = config["denoiser"]
        return f"Trained on the minimum-margin attack, {budget}; {denoiser['noise']} noise, sigma {denoiser['sigma']:g}"
    passing = manifest["parts"]["passing"]
    spec, tau = manifest["parts"]["networks"][passing["networks"]["robust"]]["spec"], passing["settings"]["tau"]
    name = "not in the bundle" if spec is None else spec["name"]
    return (
        f"Robust network: {name}, against {budget}; it answers where it leads by {tau:.3g} (balance {config['balance']:g})"
    )


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
