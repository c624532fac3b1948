"""The detector by itself: false alarms, power, and clean batches that are not quite as usual."""

from pydantic import Field

from twoprong.results.part import Flag, Interval, Number, Part, Text, Whole


class Rate(Part):
    """How many batches of a kind are flagged."""

    rate: Number = Field(description="Share of batches flagged.")
    interval: Interval = Field(description="Its interval, over the independent batches.")
    batches: Whole = Field(description="Batches drawn.")
    independent: Whole = Field(description="How many of them can be disjoint: the others repeat images.")


class SizeRate(Rate):
    """The rate at a batch size."""

    size: Whole = Field(description="Images in a batch.")


class BudgetRate(Rate):
    """The rate at an attacker's budget."""

    eps: Number = Field(description="The budget; 0 for clean batches.")


class JudgedRate(Rate):
    """A rate with the accuracies on the first of its batches."""

    defended: Number = Field(description="Accuracy behind the defence.")
    defended_interval: Interval = Field(description="Its interval, over images.")
    undefended: Number = Field(description="Accuracy of the bare classifier.")
    undefended_interval: Interval = Field(description="Its interval, over images.")


class ShareRate(JudgedRate):
    """The rate at a share of attacked images in every batch."""

    share: Number = Field(description="Share of the batch that is attacked.")
    recall: Number | None = Field(
        default=None, description="Share of the attacked images that are blamed, over flagged batches; null where none is."
    )
    false_blame: Number | None = Field(
        default=None,
        description="Share of the clean images that are blamed, over flagged batches; null where there are none.",
    )
    by_rescue: dict[Text, Number] = Field(
        default={},
        description="Accuracy over all images if whole flagged batches are rescued (`batch`), or `suspects` only.",
    )


class SkewedRate(JudgedRate):
    """The rate on clean batches with few classes."""

    classes: Whole = Field(description="Classes in a batch.")
    size: Whole = Field(description="Images in a batch: fewer than usual where these classes have fewer.")


class ShiftedRate(JudgedRate):
    """The rate on clean images after what cameras and networks do to them."""

    kind: Text = Field(description="What is done: blur, jpeg, brightness or noise.")
    strength: Number = Field(description="How much of it.")


class Roc(Part):
    """Attacks found against false alarms, as the threshold moves."""

    eps: Number = Field(description="The attacker's budget.")
    false_alarms: list[Number] = Field(description="Share of clean batches flagged, threshold by threshold.")
    power: list[Number] = Field(description="Share of attacked batches flagged, threshold by threshold.")
    area: Number = Field(description="Area under the curve: how often an attacked batch scores above a clean one.")


class Power(Part):
    """Batches flagged under PGD on the bare classifier."""

    by_size: list[SizeRate] = Field(description="All images attacked with the headline budget, by batch size.")
    by_eps: list[BudgetRate] = Field(description="All images attacked, by budget.")
    by_share: list[ShareRate] = Field(description="A share of every batch attacked with the headline budget.")


class BlamedBatch(Part):
    """A flagged batch as it is shown: who was attacked, and who is blamed."""

    picture: Text = Field(description="All images in a grid, as a data address.")
    columns: Whole = Field(description="Images in a row of the grid.")
    width: Whole = Field(description="Of an image in the grid, in pixels.")
    height: Whole = Field(description="Of an image in the grid, in pixels.")
    attacked: list[Flag] = Field(description="Whether each image was attacked.")
    suspects: list[Flag] = Field(description="Whether each image is blamed.")


class Statistics(Part):
    """Statistics of batches of the headline size."""

    clean: list[Number] = Field(description="Of clean batches.")
    bare: list[Number] = Field(description="Of batches attacked with PGD on the bare classifier.")


class DetectorStudy(Part):
    """The detector on unseen clean images and on those that PGD on the bare classifier attacked."""

    false_alarm_rate: Number = Field(description="The rate asked for.")
    rounds: Whole = Field(description="Random partitions of the images that batches come from, at most.")
    sizes: tuple[Whole, Whole] = Field(description="Smallest and largest batch size that the detector tests.")
    false_alarms: list[SizeRate] = Field(description="Clean batches flagged, by batch size.")
    power: Power = Field(description="Attacked batches flagged.")
    roc: list[Roc] = Field(description="One curve per budget.")
    statistics: Statistics = Field(description="The statistics themselves.")
    skewed: list[SkewedRate] = Field(description="Clean batches of few classes: unusual, not adversarial.")
    shifted: list[ShiftedRate] = Field(description="Clean batches of corrupted images.")
    blamed: BlamedBatch | None = Field(default=None, description="A mixed batch that was flagged; null where none was.")


class NotStudied(Part):
    """An empty object: the attack that the study needs was not run."""
