"""Frozen, validated settings. Defaults are ours, for CIFAR-10; `presets.py` has the paper's and others by name."""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)

from twoprong.choices import nearest
from twoprong.errors import ConfigError, InputError


def as_number(value: Any) -> Any:
    """Read "8/255" the way people write it; everything else is left to the field's own check."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value}")
    if isinstance(value, str):
        try:
            above, slash, below = value.partition("/")
            return float(above) / float(below) if slash else float(above)
        except (ValueError, ArithmeticError):
            raise ValueError(f"expected a number or a fraction such as 8/255, got {value!r}") from None
    return value


Number = Annotated[float, BeforeValidator(as_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Numbers = Annotated[tuple[Number, ...], Field(min_length=1)]
Share = Annotated[Number, Field(gt=0, lt=1)]
Part = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
NormName = Literal["linf", "l2"]
Mode = Literal["paper", "hardened"]
SmallBatchPolicy = Literal["denoise", "classify", "error"]
Rescue = Literal["suspects", "batch", "refuse"]
Estimator = Literal["u", "v"]  # of MMD²: unbiased, biased
# N(0, σ²), and the noisy image is clamped to [0, 1]; the noise itself is clamped to [0, 1] too, as in the authors' code; or
# nothing is clamped, as the paper writes it.
NoiseLaw = Literal["symmetric", "clamped", "unclamped"]
# Against the whole reference with the full cross mean; or against as many reference images as the batch has: unbiased and
# paired as in the paper, biased as in the authors' code.
Statistic = Literal["full", "paired", "biased"]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


S = TypeVar("S", bound=Settings)


class SplitConfig(Settings):
    """How many images each part gets; the denoiser takes the rest. No other part takes more than a fifth."""

    kernel: Count = 1000
    reference: Count = 500
    calibration: Count = 2000


class AttackConfig(Settings):
    """The attack (MMA) that makes the training examples."""

    norm: NormName = "linf"
    eps: Positive = 8 / 255
    step: Positive = 2 / 255
    steps: Count = 10
    targets: Count = 3
    batch_size: Count = 500


class KernelConfig(Settings):
    """Learning the kernel: the paper's Algorithm 1. Its rate of 2e-4 hardly moves three scalars; ours acts on logarithms.

    One kernel is learned for each width of a projection (0: the features as they are, the paper's kernel). The kernel whose
    test detects the most on held-out images is taken; ties go to the first. `ascent="paper"` is Algorithm 1 as written: one
    minibatch an epoch, the bandwidths themselves, all images, the last iterate.
    """

    ascent: Literal["ours", "paper"] = "ours"
    projections: Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(min_length=1)] = (0, 8)
    epochs: Annotated[int, Field(ge=0, strict=True)] = 200
    lr: Positive = 0.02
    batch_size: Annotated[int, Field(ge=2, strict=True)] = 100
    beta0: Share = 0.1
    pixel_bandwidth: Positive | None = None  # where it starts; None: at the median distance
    regularisation: Positive = 1e-8


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if list(values) != sorted(set(values)):
        raise ValueError("expected rising numbers, each once")
    return values


def _layers(value: Any, check: Callable[[Any], Any]) -> Any:
    """One message for what pydantic would call a mistake in each of the kinds it might be."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(f"expected a layer's name or a list of names, got {value!r}") from None


# A layer's name, or several; None: the input of the last Linear layer.
Layers = Annotated[str | Annotated[tuple[str, ...], Field(min_length=1)] | None, WrapValidator(_layers)]


class DetectorConfig(Settings):
    """The test: its features, the false alarm rate, the batch sizes, and the confidence in that rate.

    `false_blame_rate` is the share of clean images in flagged batches that may be called suspects.
    """

    features: Layers = None
    extractor: str | None = None  # the classifier, trained beside, whose features the test sees; None: the protected one
    statistic: Statistic = "full"
    # A part of its own; or, as in the authors' code, the kernel's images.
    reference: Literal["unseen", "kernel"] = "unseen"
    false_alarm_rate: Share = 0.05
    confidence: Annotated[Number, Field(ge=0.5, lt=1)] = 0.9
    false_blame_rate: Share = 0.1
    min_batch_size: Count = 1
    max_batch_size: Annotated[int, Field(ge=2, strict=True)] = 200
    threshold: Number | None = None  # a constant, as in the paper; None: calibrated
    permutations: Count = 200

    @model_validator(mode="after")
    def _agree(self) -> "DetectorConfig":
        if self.statistic != "full" and self.threshold is None:
            raise ValueError(f"expected a constant threshold beside statistic {self.statistic!r}: only 'full' is calibrated")
        if self.extractor is not None and self.features is not None:
            raise ValueError("expected features or an extractor, got both: an extractor gives its own last features")
        if self.min_batch_size > self.max_batch_size:
            raise ValueError(
                f"expected min_batch_size <= max_batch_size, got {self.min_batch_size} and {self.max_batch_size}"
            )
        return self


class DenoiserConfig(Settings):
    """The denoiser and its training: Algorithm 2, by default with another kernel in its loss and with images clamped."""

    width: Annotated[Number, Field(gt=0, le=8)] = 1.0
    epochs: Count = 60
    batch_size: Annotated[int, Field(ge=2, strict=True)] = 500
    lr: Positive = 1e-3
    milestones: Annotated[tuple[Share, ...], AfterValidator(_ascending)] = (
        0.75,
    )  # shares of the epochs: lr falls to a tenth
    alpha: NotNegative = 1e-2
    sigma: Annotated[Number, Field(ge=0, le=1)] = 0.25
    noise: NoiseLaw = "symmetric"
    estimator: Estimator = "u"  # of MMD in the loss: the paper's, unbiased, or the authors' code's, biased
    # The kernel in the loss: one at the median distances, not learned, or the detector's, as in the paper. On photographs
    # that one has learned to look past the pixels and guides to worse ones.
    guide: Literal["median", "detector"] = "median"
    clamp: Flag = True  # denoised images to [0, 1]
    clean_share: Annotated[Number, Field(ge=0, le=1)] = 0.0  # of the training images that are clean before the noise


class ClassifierConfig(Settings):
    """How a named classifier is trained where no weights are given: SGD with Nesterov momentum.

    With `eps` it learns from images attacked within that budget, in three steps, of the attack's norm. A tiny one, such as
    1.5/255, costs little accuracy, and behind the gate of the hardened mode it helps: both networks have to be fooled.
    """

    epochs: Count = 30
    batch_size: Count = 128
    lr: Positive = 0.1
    weight_decay: NotNegative = 5e-4
    augment: bool = True  # random crops (padding an eighth) and mirror images
    # Of the rate. In steps: to a fifth after 30, 60 and 80 % of the epochs.
    schedule: Literal["one-cycle", "step"] = "one-cycle"
    eps: NotNegative = 0.0


class RobustTraining(Settings):
    """How a network is trained against an attacker inside the loop; defaults for a ResNet-18 on CIFAR-10 at 8/255.

    SGD with Nesterov momentum; the rate rises during the first `warmup` of the training and falls to zero as a cosine. Up to
    `early_until` of the training the attacker takes `early_steps`, later those of the attack; a step is 2.5·ε / steps.
    Weights are perturbed (AWP) from `awp_from` on. `ema` is the decay of the weights' running average, which is kept.
    """

    model: str = "same"  # as the protected classifier, where that is one of ours
    method: Literal["natural", "at", "trades", "mart", "hat"] = "hat"
    beta: Positive | None = None  # None: the method's own
    gamma: NotNegative = 0.5  # weight of the helper examples (HAT)
    awp: NotNegative = 5e-3  # 0: weights are not perturbed
    awp_from: Part = 0.1
    epochs: Count = 120
    batch_size: Count = 256
    lr: Positive = 0.2
    weight_decay: NotNegative = 5e-4
    warmup: Share = 0.1
    ema: Share = 0.999
    augment: Literal["none", "crop", "strong"] = "strong"
    early_steps: Count = 5
    early_until: Part = 0.5


class FitConfig(Settings):
    """Everything that determines a fitted defence, besides the classifier and the images.

    `mode` is the paper's, or hardened: a robust network answers where it is sure, the classifier elsewhere. `balance` is of
    the hardened mode: 1 is all robustness (the robust network alone), 0 all accuracy. In between, it is the share of the
    clean accuracy between these two that is given up.
    """

    mode: Mode = "paper"
    balance: Part = 0.6
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    on_small_batch: SmallBatchPolicy = "error"
    # What of a flagged batch takes the flagged route: all of it, as in the paper; its suspects; or nothing, and it gets no
    # labels. The paper's is the default until attackers who know of suspects have been measured at full strength.
    rescue: Rescue = "batch"
    splits: SplitConfig = SplitConfig()
    attack: AttackConfig = AttackConfig()
    kernel: KernelConfig = KernelConfig()
    detector: DetectorConfig = DetectorConfig()
    denoiser: DenoiserConfig = DenoiserConfig()
    classifier: ClassifierConfig = ClassifierConfig()
    robust: RobustTraining = RobustTraining()


def load_config(path: Path | None = None, assignments: Iterable[str] = (), base: FitConfig | None = None) -> FitConfig:
    """Settings from a TOML file and `a.b=c` assignments (which win), over `base`. Reports every problem at once."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: not a readable TOML file ({error})") from error
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = name.strip().split(".")
        table: Any = values if equals and all(keys) else None
        for key in keys[:-1]:
            table = table.setdefault(key, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            problems.append(f"--set {assignment}: expected SECTION.KEY=VALUE, such as denoiser.epochs=30")
            continue
        table[keys[-1]] = toml_value(text.strip())
    merged = _merge(base.model_dump() if base else {}, values)
    return parse_config(merged, source=str(path) if path else "settings", problems=problems)


def parse_config(values: Mapping[str, Any], source: str = "settings", problems: Iterable[str] = ()) -> FitConfig:
    """Validate a nested mapping; a ConfigError lists all that is wrong with it, with the nearest known key."""
    return parse_settings(FitConfig, values, source, problems)


def parse_settings(model: type[S], values: Mapping[str, Any], source: str, problems: Iterable[str] = ()) -> S:
    """As `parse_config`, for settings of any kind."""
    found = list(problems)
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        found += [_explain(detail, model) for detail in error.errors()]
    if found:
        raise ConfigError(f"{source}: {len(found)} problem{'s' * (len(found) > 1)}\n  " + "\n  ".join(found))
    return config


WORDS = {  # where pydantic's own are not what a user would say
    "bool_type": "expected true or false",
    "tuple_type": "expected a list",
    "int_type": "expected a whole number",
    "finite_number": "expected a finite number",
}


def check_fields(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a model's fields have them; an InputError lists all that is wrong with them, in one line."""
    try:
        return dict(model.model_validate(values))
    except ValidationError as error:
        raise InputError("; ".join(_explain(detail, model) for detail in error.errors())) from error


def _explain(detail: Any, model: type[BaseModel]) -> str:
    path = [str(part) for part in detail["loc"]]
    name = ".".join(path)
    if detail["type"] == "extra_forbidden":
        known = _keys_at(model, path[:-1])
        near = difflib.get_close_matches(path[-1], known, 1)
        return f"{name}: unknown key; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "literal_error":
        words = detail["ctx"]["expected"].replace(" or ", ", ").replace(chr(39), "")
        return f"{name}: expected one of {words}, got {detail['input']!r}{nearest(detail['input'], words.split(', '))}"
    message = WORDS.get(detail["type"], message).replace("Input should be", "expected")
    return f"{name}: {message[0].lower()}{message[1:]}" + ("" if "got" in message else f", got {detail['input']!r}")


def _keys_at(model: Any, path: list[str]) -> list[str]:
    for part in path:  # sections are nested models, or tables of models by name
        model = model.model_fields[part].annotation if hasattr(model, "model_fields") else get_args(model)[1]
    return list(model.model_fields)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def toml_value(text: str) -> Any:
    """A value as TOML writes it; anything else stays a string, for the field's own check to judge."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
