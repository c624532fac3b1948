"""The content of a reproduction's results.json, format 1."""

from typing import Any, Literal

from pydantic import Field

from twoprong.results.part import Interval, Number, Part, Provenance, Text, Whole


class Cell(Part):
    """A number of the paper and ours."""

    column: Text = Field(description="Name of the column.")
    paper: Number | None = Field(description="What the paper prints; null where it prints nothing.")
    spread: Number | None = Field(description="What stands there after ±, or null.")
    ours: Number = Field(description="What was measured here; over several seeds, the mean.")
    deviation: Number | None = Field(
        default=None, description="Standard deviation of ours over the runs; null for one run, missing in older files."
    )
    runs: list[Number] | None = Field(
        default=None, description="Ours run by run, seed after seed; null for one run, missing in older files."
    )
    unit: Literal["%", "s", "MB"] = Field(description="Unit of both.")
    interval: Interval | None = Field(description="Interval (95 %) of ours, over images; null where there is none.")
    interval_batches: Interval | None = Field(
        default=None, description="The same over batches; null below three of them, missing in older files."
    )
    images: Whole | None = Field(description="Images measured on, or null.")
    batches: Whole | None = Field(description="How many batches, or null.")
    batch_size: Whole | None = Field(description="Images in a batch, or null.")
    flagged: Number | None = Field(description="Share of batches that the test flagged; null where nothing was tested.")
    attack: dict[str, Any] | None = Field(
        description="`name`, `norm`, `eps` and the other settings of the attack as it was run; null for clean images."
    )
    surrogate_accuracy: Number | None = Field(
        default=None,
        description="Clean accuracy (%) of the classifier attacked in its place, or null; missing in older files.",
    )
    seconds: Number = Field(description="Seconds of computing.")
    classifier: Text = Field(description="The protected classifier.")
    bundle: Text | None = Field(
        description="Where the measured defence was saved, beside results.json; null for a classifier alone."
    )
    spec: dict[str, Any] = Field(
        description="What sets this cell apart from the default one; the attack's settings stand in `attack`."
    )

    @property
    def quoted(self) -> Interval | None:
        """The interval to quote: over batches where it is known, because the images of a batch share its route."""
        return self.interval_batches or self.interval


class Row(Part):
    """A row that was run."""

    name: Text = Field(description="As in the paper.")
    cells: list[Cell] = Field(description="Column by column.")


class QuotedRow(Part):
    """A row of the paper that was not run."""

    name: Text = Field(description="As in the paper.")
    paper: list[Number | None] = Field(description="What the paper prints, column by column; null where it prints nothing.")
    spread: list[Number | None] | None = Field(
        default=None, description="What stands there after ±, column by column, or null; missing in older files."
    )


class ScaleUsed(Part):
    """How large the run was."""

    data: Text = Field(description="A named source, or `folder`.")
    images: Whole = Field(description="Images attacked.")
    draws: Whole = Field(description="Draws of the noise that an attacked batch is scored on.")
    classifier: Text | None = Field(description="Protected instead of every classifier of the paper, or null.")
    surrogate: Text | None = Field(description="Stands for every classifier that attacks are made on, or null.")
    preset: Text | None = Field(
        default=None, description="Settings of every fit whose row has none of its own, by name; missing in older files."
    )
    set: list[Text] = Field(description="Settings of every fit.")
    limits: dict[str, Whole] = Field(description="Largest values of the attacks' settings.")
    stretch: dict[str, Number] = Field(description="Factors of the budgets, by norm.")


class ReproductionRun(Part):
    """What was asked for."""

    seed: Whole = Field(description="Decides every number but the seconds.")
    seeds: Whole = Field(default=1, description="How many seeds were run, from `seed` on; missing in older files.")
    precision: Text = Field(description="What training and attacks compute in; scores are float32.")
    data: Text = Field(description="Name of the images.")
    test_images: Whole = Field(description="Test images; clean accuracy is over all of them.")
    classifier: Text | None = Field(description="Protected instead of the paper's classifiers, or null.")
    scale: ScaleUsed = Field(description="Its size.")
    command: Text | None = Field(description="The command line; null for a call from Python.")
    seconds: Number = Field(description="Seconds of this run, what was resumed not counted.")


class ReproductionResults(Part):
    """A reproduction: a table of the paper, cell by cell, beside what was measured here."""

    format: Literal[1] = Field(description="Version of this format.")
    kind: Literal["reproduction"] = Field(description="What the file holds.")
    name: Text = Field(description="Name of the experiment, as on the command line.")
    scale: Literal["smoke", "full"] = Field(description="smoke shows that it runs; full is the paper's.")
    warning: Text | None = Field(description="What a smoke run is not, or null.")
    title: Text = Field(description="Title of the table.")
    source: Text = Field(description="Where it stands in the paper.")
    note: Text = Field(description="What a reader must know to compare.")
    columns: list[Text] = Field(description="Names of the columns.")
    rows: list[Row] = Field(description="Rows that were run.")
    quoted: list[QuotedRow] = Field(description="Rows that were not.")
    run: ReproductionRun = Field(description="What was asked for.")
    config: dict[str, Any] = Field(description="Settings of a fit without those of its row, as this version has them.")
    made_with: Provenance = Field(description="Versions, commit, hardware.")
