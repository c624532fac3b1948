"""How a subject (the defence, or what it is compared with) did on batches of images."""

from pydantic import Field

from twoprong.results.part import Flag, Interval, Number, Part, Text, Whole


class BatchScore(Part):
    """One subject on one batch, over all draws of the noise."""

    correct: list[Whole] = Field(description="Per image, in how many draws it was classified correctly.")
    rejected: list[Whole] | None = Field(
        description="Per image, in how many draws it was refused; null for a subject that refuses nothing."
    )
    by_draw: list[Number] = Field(description="Accuracy in each draw.")
    flagged: Flag | None = Field(description="Whether the batch was called adversarial; null without a batch test.")
    statistic: Number | None = Field(
        description="The statistic of the batch test; null without one, or where it is not finite."
    )


class Accuracy(Part):
    """An accuracy over images and draws."""

    accuracy: Number = Field(description="Mean accuracy over images and draws; a refused image counts as wrong.")
    interval: Interval = Field(description="Its interval, over images.")
    interval_batches: Interval | None = Field(
        default=None, description="Its interval, over batches; null below three of them, missing in older files."
    )

    @property
    def quoted(self) -> Interval:
        """The interval to quote: over batches where it is known, because the images of a batch share its route."""
        return self.interval_batches or self.interval


class Score(Accuracy):
    """One subject over batches."""

    batches: Whole | None = Field(default=None, description="How many batches; missing in older files.")
    worst_draw: Number = Field(description="Accuracy in the worst draw of each batch.")
    flagged: Number | None = Field(description="Share of batches called adversarial; null without a batch test.")
    flagged_interval: Interval | None = Field(description="Its interval, over batches.")
    rejected: Number = Field(description="Share of images refused.")
    rejected_interval: Interval = Field(description="Its interval, over images.")
    fooled: Number = Field(description="Share of images that were accepted and wrong.")
    fooled_interval: Interval = Field(description="Its interval, over images.")
    accuracy_accepted: Number | None = Field(
        description="Accuracy among the images that were accepted; null where none was."
    )
    accuracy_accepted_interval: Interval = Field(description="Its interval, over accepted images.")


class Divergence(Part):
    """How far attacked images are from clean ones, at least: the paper's Theorem 1 read backwards (docs/detector.md).

    d1 is the L1 distance of their distributions, twice the total variation; 2 at most.
    """

    at_least: Number = Field(
        description="2·(accuracy lost), by the undefended classifier, on the batches that were attacked; never below 0."
    )
    sure: Number = Field(description="The same by the unfavourable ends of both accuracies' intervals: at least 90 % sure.")


class SlotScore(Part):
    """One subject under an attack on some slots of every batch."""

    attacked: Number | None = Field(description="Accuracy on the attacked slots.")
    attacked_interval: Interval = Field(description="Its interval, over images.")
    others: Number | None = Field(description="Accuracy on the other slots; null where there are none.")
    others_interval: Interval = Field(description="Its interval, over images.")
    others_clean: Number | None = Field(
        description="Accuracy on the other slots without the attack; null where there are none."
    )
    others_clean_interval: Interval = Field(description="Its interval, over images.")


class WorstCase(Part):
    """One subject under the worst of the attacks that count. A refused image counts as not fooled."""

    per_batch: Number = Field(
        description="Share not fooled when the attacker picks the attack of every batch. **The headline.**"
    )
    per_batch_interval: Interval = Field(description="Its interval, over images.")
    per_batch_interval_batches: Interval | None = Field(
        default=None, description="Its interval, over batches; null below three of them, missing in older files."
    )
    per_sample: Number = Field(description="The same with an attack picked for every image: a pessimistic bound.")
    per_sample_interval: Interval = Field(description="Its interval, over images.")
    per_sample_interval_batches: Interval | None = Field(
        default=None, description="Its interval, over batches; null below three of them, missing in older files."
    )
    rejected: Number = Field(description="Share of images refused under the attacks chosen per batch.")
    rejected_interval: Interval = Field(description="Its interval, over images.")
    accuracy_accepted: Number | None = Field(description="Accuracy among the images accepted then; null where none was.")
    accuracy_accepted_interval: Interval = Field(description="Its interval, over accepted images.")
    chosen: list[Text] = Field(description="Name of the attack chosen, batch by batch.")

    @property
    def batches(self) -> int:
        return len(self.chosen)

    @property
    def per_batch_quoted(self) -> Interval:
        """The interval to quote, as that of an accuracy."""
        return self.per_batch_interval_batches or self.per_batch_interval

    @property
    def per_sample_quoted(self) -> Interval:
        return self.per_sample_interval_batches or self.per_sample_interval
