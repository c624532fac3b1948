"""The content of an evaluation's results.json, format 1."""

from typing import Any, Literal

from pydantic import Field

from twoprong.results.detector import DetectorStudy, NotStudied
from twoprong.results.part import Flag, Number, Part, Provenance, Text, Whole
from twoprong.results.scores import Accuracy, BatchScore, Divergence, Score, SlotScore, WorstCase

Status = Literal["passed", "failed", "not converged", "not applicable"]


class Run(Part):
    """What was asked for."""

    protocol: Text = Field(description="quick, paper, strong, or custom for a list of items.")
    data: Text | None = Field(description="Name of the images, or null.")
    seed: Whole = Field(description="Decides every number but the seconds.")
    norm: Text = Field(description="Norm of the attacker's budget, linf or l2.")
    eps: Number = Field(description="The headline budget.")
    batch_size: Whole = Field(description="Images in a batch.")
    images: Whole = Field(description="Images attacked.")
    draws: Whole = Field(description="Draws of the noise that every attacked batch is scored on.")
    precision: Text = Field(description="What attacks compute in; scores are float32.")
    key: Text = Field(description="Digest of everything that decides the numbers.")
    command: Text | None = Field(description="The command line; null for a call from Python.")
    started: Text = Field(description="When, in UTC.")


class DefenseFacts(Part):
    """The defence that was attacked."""

    classifier: Text = Field(description="Name of its classifier, or of the class of a user's own.")
    classes: list[Text] | None = Field(description="Names of the classes, or null.")
    data: Text | None = Field(description="What it was fitted on, or null.")
    config: dict[str, Any] = Field(description="All settings of the fit, as this version has them.")
    threshold: Number = Field(description="Threshold of the batch test at the headline batch size.")


class Batch(Part):
    """A batch that was attacked; batches are formed once."""

    indices: list[Whole] = Field(description="Places among the images given.")
    labels: list[Whole] = Field(description="True classes.")


class Clean(Part):
    """All images given, without an attack: one random partition, one draw of the noise."""

    images: Whole = Field(description="Images in whole batches.")
    batches: Whole = Field(description="How many batches.")
    subjects: dict[str, Score] = Field(description="By subject.")


class AttackedBatch(Part):
    """One batch under one attack."""

    number: Whole = Field(description="Place in `batches`.")
    seconds: Number = Field(description="Seconds of computing.")
    queries: Number = Field(description="Images computed, all together.")
    distance: Number = Field(description="Largest change of an image, in the norm of the attack.")
    lowest: Number = Field(description="Lowest pixel.")
    highest: Number = Field(description="Highest pixel.")
    slots: list[Whole] | None = Field(description="Places in the batch that the attacker held; null for all.")
    subjects: dict[str, BatchScore] = Field(description="By subject.")


class AttackEntry(Part):
    """One attack over all batches."""

    name: Text = Field(description="Unique in the file.")
    threat_model: Text = Field(description="What the attacker knows and holds.")
    attack: Text = Field(description="Name in the registry of attacks; of a partial attack, the one inside.")
    target: Text = Field(description="The subject it was made for; every subject is scored on what it found.")
    settings: dict[str, Any] = Field(description="Settings of the attack.")
    eps: Number = Field(description="Its budget.")
    share: Number | None = Field(description="Share of the slots that the attacker held; null for all.")
    in_worst_case: Flag = Field(description="Whether it counts in the worst case: all slots, within the headline budget.")
    subjects: dict[str, Score] = Field(description="By subject.")
    slots: dict[str, SlotScore] | None = Field(description="By subject; null where all slots were attacked.")
    divergence: Divergence | None = Field(
        default=None,
        description="Lower bound of the distance of attacked from clean images; null for some slots only, missing in older "
        "files.",
    )
    seconds: Number = Field(description="Seconds of computing.")
    queries: Number = Field(description="Images computed per image.")
    batches: list[AttackedBatch] = Field(description="Batch by batch.")

    @property
    def statistic(self) -> float | None:
        """The mean statistic of the defence's test; None without one."""
        scores = (batch.subjects.get("defense") for batch in self.batches)
        values = [score.statistic for score in scores if score is not None and score.statistic is not None]
        return sum(values) / len(values) if values else None


class NotRun(Part):
    """A part of the protocol that could not run."""

    name: Text = Field(description="Which.")
    why: Text = Field(description="Why not.")


class CurvePoint(Part):
    """Accuracy at one budget, on one line of the accuracy-budget figure."""

    eps: Number = Field(description="The budget; 0 for no attack.")
    attack: Text = Field(description="Name of the line.")
    threat_model: Text = Field(description="What the attacker knows.")
    subjects: dict[str, Accuracy] = Field(description="By subject.")
    batches: list[AttackedBatch] = Field(description="Batch by batch; empty at 0.")


class Finding(Part):
    """What a sanity check found."""

    name: Text = Field(description="Name of the check.")
    question: Text = Field(description="What it asks.")
    status: Status = Field(description="`failed` makes the run unreliable; `not converged` makes accuracies upper bounds.")
    detail: Text = Field(description="The answer in words.")
    values: dict[str, Any] = Field(description="The numbers behind it.")


class Picture(Part):
    """One image under one attack. Rows are clean, adversarial, difference (times ten) and denoised."""

    attack: Text = Field(description="Name of the attack.")
    label: Whole = Field(description="True class.")
    images: dict[str, Text] = Field(description="By row, a PNG as a data address.")
    says: dict[str, Whole] = Field(description="By row, the class that the bare classifier gives; none for the difference.")


class EvaluationResults(Part):
    """An evaluation: a defence under a protocol's attacks. Shares and rates are between 0 and 1, intervals 95 %."""

    format: Literal[1] = Field(description="Version of this format.")
    kind: Literal["evaluation"] = Field(description="What the file holds.")
    reliable: Flag = Field(description="False when a sanity check failed.")
    run: Run = Field(description="What was asked for.")
    made_with: Provenance = Field(description="Versions, commit, hardware.")
    defense: DefenseFacts = Field(description="The defence.")
    batches: list[Batch] = Field(description="The batches that were attacked.")
    clean: Clean = Field(description="Without an attack.")
    attacks: list[AttackEntry] = Field(
        description="Every attack, in the protocol's order; points beyond the headline budget stand in `curve` only."
    )
    not_run: list[NotRun] = Field(description="What could not run.")
    worst_case: dict[str, WorstCase] = Field(description="By subject; empty where no attack that counts could run.")
    curve: list[CurvePoint] = Field(description="Accuracy against the budget.")
    detector: DetectorStudy | NotStudied = Field(
        description="The detector by itself; an empty object where it was not studied."
    )
    sanity: list[Finding] = Field(description="The sanity checks, in order.")
    pictures: list[Picture] = Field(description="What images look like under the strongest attack of each threat model.")
    seconds: dict[str, Number] = Field(description="Seconds of computing by part, resumed parts included.")

    @property
    def study(self) -> DetectorStudy | None:
        """The detector study, None where it was not made."""
        return self.detector if isinstance(self.detector, DetectorStudy) else None

    @property
    def asked(self) -> float | None:
        """The rate of false alarms that the thresholds were calibrated for; None for a constant one, or where unknown."""
        constant = self.defense.config.get("detector", {}).get("threshold") is not None
        return None if constant or self.study is None else self.study.false_alarm_rate
