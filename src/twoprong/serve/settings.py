"""The settings of the service, and of the queue that forms its batches."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from twoprong.config import Count, Flag, NotNegative, Positive, Settings, parse_settings
from twoprong.errors import ConfigError

ANONYMOUS = "anonymous"  # the key of everybody where no keys are set


class BatchSettings(Settings):
    """How batches are formed. Times are in seconds.

    `deadline` is the longest that an image waits for others. A batch of fewer than `least` images waits to its end;
    the service keeps `least` and `max_batch` inside what the bundle is calibrated for. `max_per_key` is how many
    images of one key a batch of several keys may have. `max_items` and `max_bytes` bound everything that is accepted
    and not yet answered, `max_items_per_key` and `max_bytes_per_key` what one API key has of it: half, where nothing
    else is said. A batch that takes longer than `timeout` fails. Answers leave no earlier than `pace` after their
    batch was closed, and a worker's next batch is closed no earlier: above the time of the slower route, time does not tell
    the route.
    """

    max_batch: Count = 100
    least: Count = 2
    deadline: Positive = 0.25
    max_per_key: Count = 10
    max_items: Count = 2000
    max_items_per_key: Count = 1000
    max_bytes: Count = 256 * 2**20
    max_bytes_per_key: Count = 128 * 2**20
    timeout: Positive = 30.0
    pace: NotNegative = 0.0

    @model_validator(mode="before")
    @classmethod
    def _halves(cls, values: Any) -> Any:
        """Whoever changes a total need not change what one key has of it."""
        if not isinstance(values, dict):
            return values
        totals = {name: values.get(name) for name in ("max_items", "max_bytes")}
        return {f"{name}_per_key": max(total // 2, 1) for name, total in totals.items() if isinstance(total, int)} | values

    @model_validator(mode="after")
    def _ordered(self) -> "BatchSettings":
        for small, large in (
            ("least", "max_batch"),
            ("max_per_key", "max_batch"),
            ("max_batch", "max_items"),
            ("max_items_per_key", "max_items"),
            ("max_bytes_per_key", "max_bytes"),
        ):
            if getattr(self, small) > getattr(self, large):
                raise ValueError(f"{small}: expected at most {large} = {getattr(self, large)}, got {getattr(self, small)}")
        return self


class LimitSettings(Settings):
    """What one request may cost. Uploads are bounded before they are read, pixels before they are decoded."""

    max_upload: Count = 16 * 2**20  # bytes of a request's body, also after it is unzipped
    max_pixels: Count = 25_000_000  # of all pictures in one request
    max_images: Count = 256  # in one request
    read_seconds: Positive = 20.0  # in which a body must have come
    answer_seconds: Positive = 60.0  # in which an answer must be there, else 504
    grace_seconds: Positive = 30.0  # in which a service that is told to stop answers what it has accepted

    @model_validator(mode="before")
    @classmethod
    def _within_grace(cls, values: Any) -> Any:
        """Whoever shortens the grace time need not change what a body has of it: two thirds, where that is less."""
        grace = values.get("grace_seconds") if isinstance(values, dict) else None
        if not isinstance(grace, int | float) or not grace > 0:
            return values
        return {"read_seconds": min(20.0, grace * 2 / 3)} | values

    @model_validator(mode="after")
    def _ordered(self) -> "LimitSettings":
        if self.read_seconds >= self.grace_seconds:  # a body that never ends would keep the service from a clean end
            raise ValueError(
                f"read_seconds: expected less than grace_seconds = {self.grace_seconds:g}, got {self.read_seconds:g}"
            )
        return self


class ReviewSettings(Settings):
    """Flagged batches that are kept for people to look at: pictures of what clients sent, so none without a folder."""

    folder: str = ""
    max_bytes: Count = 100 * 2**20


class RaySettings(Settings):
    """For `--engine ray`. `address` is that of a running cluster ("auto" finds it); without, Ray runs on this machine alone.

    There are `ingresses` HTTP replicas, each with a queue of its own, and `min_models` to `max_models` model replicas, as
    many as the batches that wait ask for. CPUs and GPUs are what Ray sets aside for one replica.
    """

    address: str = ""
    ingresses: Count = 1
    min_models: Count = 1
    max_models: Count = 1
    ingress_cpus: Positive = 1.0
    model_cpus: Positive = 1.0
    model_gpus: NotNegative = 0.0

    @model_validator(mode="after")
    def _possible(self) -> "RaySettings":
        if self.min_models > self.max_models:
            raise ValueError(f"min_models: expected at most max_models = {self.max_models}, got {self.min_models}")
        for name in ("ingress_cpus", "model_cpus", "model_gpus"):
            if (value := getattr(self, name)) > 1 and value % 1:
                raise ValueError(f"{name}: expected a whole number or a share below 1, got {value:g}")
        return self


class KeySettings(Settings):
    """An API key: its SHA-256 in hexadecimal, and how many images a second it may send (in bursts of `burst`)."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    rate: Positive = 1000.0
    burst: Count = 2000


def _told_apart(keys: dict[str, KeySettings]) -> dict[str, KeySettings]:
    if wrong := [name for name in ("", ANONYMOUS) if name in keys]:
        raise ValueError(f"expected another name for a key, got {wrong[0]!r}")
    names: dict[str, str] = {}
    for name, key in keys.items():
        if (other := names.setdefault(key.sha256, name)) != name:
            raise ValueError(f"expected a key of its own for each name, got one sha256 for {other!r} and {name!r}")
    return keys


class ServeSettings(Settings):
    """All settings of `twoprong serve --config F.toml`. Without keys, everybody may use the service."""

    batch: BatchSettings = BatchSettings()
    limits: LimitSettings = LimitSettings()
    review: ReviewSettings = ReviewSettings()
    ray: RaySettings = RaySettings()
    keys: Annotated[dict[str, KeySettings], AfterValidator(_told_apart)] = Field(default_factory=dict)
    on_small_batch: Literal["denoise", "classify"] = "denoise"
    page: Flag = True  # for people, at /
    threads: Annotated[int, Field(ge=0, strict=True)] = 0  # of torch in the worker; 0 leaves it to torch
    spare: Flag = True  # a second process that waits to take the worker's place, with some 160 MB of its own


def load_settings(path: Path | None) -> ServeSettings:
    """The settings in a TOML file. Raises ConfigError with everything that is wrong with it."""
    if path is None:
        return ServeSettings()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return parse_settings(ServeSettings, values, str(path))
