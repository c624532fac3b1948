"""A table of the paper as data: what its rows and columns measure, the numbers printed there, what to run at each scale.

A cell is measured by its `Spec`, of which the row gives one part and the column the other; where both do, the row's holds.
The files are in `paper/`: one per table, and `scales.toml` with what they share.
"""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from twoprong.attacks import ATTACKS, Attack
from twoprong.config import Count, FitConfig, Number, Positive, Settings, load_config
from twoprong.errors import InputError
from twoprong.names import TABLES
from twoprong.presets import preset

Measure = Literal["clean", "attacked", "average", "fit seconds", "fit memory", "inference seconds"]
Share = Annotated[Number, Field(ge=0, le=1)]


class Spec(Settings):
    """What one cell measures: a variant of the defence, and a measurement of it."""

    classifier: str = "wrn-28-10"  # what is protected
    robust: str | None = None  # how it is trained adversarially, one of robust.METHODS; None: naturally
    preset: str | None = None  # settings of the fit by name; None: the scale's
    set: tuple[str, ...] = ()  # settings of the fit, as on the command line: "denoiser.alpha=0.05"
    extractor: str | None = None  # the classifier whose features kernels see; None: the protected one
    threshold: Number | None = None  # a constant instead of the calibrated thresholds, put in after the fit
    bare: bool = False  # the classifier alone is measured and attacked
    fresh: bool = False  # fitted in one go, by itself, so that its seconds are those of a whole fit

    measure: Measure = "clean"
    batch_size: Annotated[int, Field(ge=2, strict=True)] = 100
    attack: str = "paper"
    norm: str = "linf"
    eps: Positive = 8 / 255
    settings: dict[str, Any] = Field(default_factory=dict)  # of the attack
    surrogate: str | None = None  # the classifier that the attack is made on; None: what is measured
    share: Share | None = None  # of adversarial images in every batch; None: all


class Column(Spec):
    name: str


class Row(Spec):
    """A row that is run. `paper` are the numbers printed there, by column, nan for none; `spread` what stands after ±."""

    name: str
    paper: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()


class Quoted(Settings):
    """A row of the paper's that is not run, for comparison; its numbers are as in `Row`."""

    name: str
    paper: tuple[float, ...]
    spread: tuple[float, ...] = ()


class Scale(Settings):
    """How large to run. `limits` cap the attacks' settings and `stretch` multiplies their budgets, for other images."""

    data: str  # a named source, or "folder" for one that the user gives
    images: Count  # attacked, the first of the test images; clean accuracy is over all
    draws: Count  # of the noise, on which an attacked batch is scored
    classifier: str | None = None  # instead of every classifier that is protected
    surrogate: str | None = None  # instead of every surrogate and every extractor
    preset: str | None = None  # of every fit whose row has none
    set: tuple[str, ...] = ()  # settings of every fit
    limits: dict[str, Count] = Field(default_factory=dict)
    stretch: dict[str, Positive] = Field(default_factory=dict)

    def attack(self, spec: Spec) -> Attack:
        """The cell's attack at this scale. Raises InputError for settings that the attack does not have."""
        kind = ATTACKS[spec.attack]
        defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}
        if unknown := spec.settings.keys() - defaults.keys():
            raise InputError(f"{spec.attack} has no setting {', '.join(sorted(unknown))}; it has {', '.join(defaults)}")
        settings: dict[str, Any] = defaults | spec.settings
        settings |= {name: min(settings[name], limit) for name, limit in self.limits.items() if name in settings}
        settings |= {"norm": spec.norm, "eps": spec.eps * self.stretch.get(spec.norm, 1.0)}
        return kind(**settings)

    def config(self, spec: Spec, seed: int) -> FitConfig:
        """The settings of the cell's fit, with the paper's rescue; a constant threshold is not among them."""
        base = preset(spec.preset or self.preset)
        return load_config(assignments=("rescue=batch", *self.set, *spec.set, f"seed={seed}"), base=base)


class Experiment(Settings):
    """One table or figure of the paper."""

    title: str
    source: str  # where in the paper
    note: str  # what a reader must know to compare
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    quoted: tuple[Quoted, ...] = ()
    full: Scale
    smoke: Scale

    @model_validator(mode="after")
    def _aligned(self) -> "Experiment":
        given: list[Row | Quoted] = [*self.rows, *self.quoted]
        for row in given:
            for numbers in filter(None, (row.paper, row.spread)):
                if len(numbers) != len(self.columns):
                    raise ValueError(f"{row.name}: expected {len(self.columns)} numbers, one per column, got {len(numbers)}")
        return self

    def scale(self, name: str) -> Scale:
        return self.smoke if name == "smoke" else self.full

    def narrowed(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> "Experiment":
        """Only the rows and columns of these names, or whose names hold one of them; none given: all.

        Rows that are not run are quoted, columns left out.
        """
        asked = _holding([row.name for row in self.rows], rows, "--only")
        places = _holding([column.name for column in self.columns], columns, "--column")

        def kept(row: Row | Quoted) -> dict[str, tuple[float, ...]]:
            numbers = {"paper": row.paper, "spread": row.spread}
            return {name: tuple(given[place] for place in places) if given else () for name, given in numbers.items()}

        nothing = (math.nan,) * len(self.columns)
        left = [
            Quoted(name=row.name, paper=row.paper or nothing, spread=row.spread)
            for place, row in enumerate(self.rows)
            if place not in asked
        ]
        run = tuple(row.model_copy(update=kept(row)) for row in (self.rows[place] for place in asked))
        quoted = tuple(row.model_copy(update=kept(row)) for row in (*left, *self.quoted))
        columns_left = tuple(self.columns[place] for place in places)
        return self.model_copy(update={"columns": columns_left, "rows": run, "quoted": quoted})


def _holding(names: Sequence[str], texts: Sequence[str], option: str) -> list[int]:
    """The places of the names that are one of the texts or, where none is, hold it; all where there are no texts."""
    found = set[int]() if texts else set(range(len(names)))
    for text in texts:
        exact = {place for place, name in enumerate(names) if name.lower() == text.lower()}
        holding = exact or {place for place, name in enumerate(names) if text.lower() in name.lower()}
        if not holding:
            raise InputError(f"{option} {text!r}: expected a name or a part of one, of {'; '.join(names)}")
        found |= holding
    return sorted(found)


def spec_of(row: Row, column: Column, scale: Scale, classifier: str | None = None) -> Spec:
    """What a cell measures at a scale; `classifier` wins over row and scale."""
    given: dict[str, Any] = {}
    for part in (column, row):
        given |= part.model_dump(exclude_unset=True, exclude={"name", "paper", "spread"})
    if instead := classifier or scale.classifier:
        given["classifier"] = instead
    given |= {part: scale.surrogate for part in ("surrogate", "extractor") if scale.surrogate and given.get(part)}
    return Spec.model_validate(given)


def printed(numbers: tuple[float, ...], column: int) -> float | None:
    """The paper's number for a column, or None where it has none."""
    return None if not numbers or math.isnan(numbers[column]) else numbers[column]


def load_experiment(name: str) -> Experiment:
    """The experiment called `name`. Raises InputError, with the nearest name, for an unknown one."""
    if name not in TABLES:
        near = get_close_matches(name, TABLES, 1)
        raise InputError(
            f"NAME: expected one of {', '.join(TABLES)}, got {name!r}{f'; did you mean {near[0]}?' if near else ''}"
        )
    own, shared = _read(name), _read("scales")
    for scale in ("full", "smoke"):
        own[scale] = {**shared[scale], **own.get(scale, {})}
    return Experiment.model_validate(own)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("twoprong.reproduce").joinpath("paper", f"{name}.toml").read_text(encoding="utf-8"))
