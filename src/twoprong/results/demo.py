"""The content of the demo's results.json, format 1. It names no kind: it is not published."""

from typing import Any, Literal

from pydantic import Field

from twoprong.results.part import Flag, Number, Part, Text, Whole


class DemoData(Part):
    """The images."""

    name: Text = Field(description="Name of the images.")
    test_images: Whole = Field(description="Test images, used for these numbers only.")
    rounds: Whole = Field(description="Random partitions of them into batches.")


class DemoScores(Part):
    """Batches of one kind, all clean or all attacked."""

    batches: Whole = Field(description="How many batches.")
    bare: Number = Field(description="Accuracy of the bare classifier.")
    defended: Number = Field(description="Accuracy behind the defence.")
    flagged: Number = Field(description="Share of batches called adversarial.")
    threshold: Number = Field(description="Threshold of the batch test.")
    statistics: list[Number] = Field(description="The statistic, batch by batch.")


class PhotographBatch(Part):
    """One batch of photographs."""

    attacked: Flag = Field(description="Whether it was attacked.")
    flagged: Flag = Field(description="Whether it was called adversarial.")
    statistic: Number = Field(description="The statistic of the batch test.")
    threshold: Number = Field(description="Its threshold.")
    bare: Number = Field(description="Accuracy of the bare classifier.")
    defended: Number = Field(description="Accuracy behind the defence.")


class KnowingAttack(Part):
    """A batch of photographs before an attacker who knows the whole defence."""

    bundle: Text = Field(description="Name of the bundle.")
    attack: dict[str, Any] = Field(description="`name`, `threat_model` and the settings of the attack.")
    images: Whole = Field(description="Images in the batch.")
    clean: Number = Field(description="Accuracy behind the defence before the attack.")
    attacked: Number = Field(description="Accuracy behind the defence after it.")
    flagged: Flag = Field(description="Whether the attacked batch was called adversarial.")


class DemoPhotographs(Part):
    """Photographs through the bundles that come with the package."""

    bundle: Text = Field(description="Name of the bundle.")
    data: Text = Field(description="Name of the images.")
    batch_size: Whole = Field(description="Images in a batch.")
    attack: dict[str, Any] = Field(description="`name`, `threat_model` and the settings of the attack.")
    batches: list[PhotographBatch] = Field(description="Batch by batch, clean ones first.")
    knowing: list[KnowingAttack] = Field(description="An attacker who knows everything, before each packaged bundle.")


class DemoResults(Part):
    """The demo: digits through a defence that was fitted for them, photographs through the packaged one."""

    format: Literal[1] = Field(description="Version of this format.")
    seed: Whole = Field(description="Decides every number but the seconds.")
    data: DemoData = Field(description="The digits.")
    attack: dict[str, Any] = Field(description="`name`, `threat_model` and the settings of the attack on the digits.")
    batches: dict[str, dict[str, DemoScores]] = Field(description="By batch size, and then `clean` and `attacked`.")
    photographs: DemoPhotographs | None = Field(description="Null where the package is without its bundle.")
    config: dict[str, Any] = Field(description="All settings of the fit, as this version has them.")
    seconds: dict[str, Number] = Field(description="Seconds of computing by part.")
