"""manifest.json: what may stand in it, and how older formats spell it. Nothing in it is used before it is checked here."""

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from twoprong.config import NoiseLaw, parse_config
from twoprong.errors import BundleError, ConfigError

FORMAT = 3
READABLE = (1, 2, FORMAT)  # in format 1 no tensor was packed; formats 1 and 2 knew the paper's routes only
BEFORE = {"kernel": {"projections": [0]}, "denoiser": {"guide": "detector"}}  # as it was before there was a choice
MANIFEST = "manifest.json"
LARGEST = 16_000_000  # bytes
DEEPEST = 50  # objects and lists within each other
SHOWN = 3  # problems that a message lists

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _source(named: Any) -> Any:
    """The features' source: nothing, a layer's name, or a list of names."""
    listed = isinstance(named, list) and named and all(isinstance(name, str) for name in named)
    if not (named is None or isinstance(named, str) or listed):
        raise ValueError(f"expected a layer's name or a list of names, got {named!r}")
    return named


Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^\w[\w-]{0,99}$")]  # of a network, and so of its file
Natural = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Source = Annotated[Any, AfterValidator(_source)]


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class File(Entry):
    bytes: Annotated[int, Field(ge=0)]
    sha256: Digest


class Preprocessing(Entry):
    channels: Natural
    height: Natural
    width: Natural
    range: Annotated[list[Finite], Field(min_length=2, max_length=2)]


class ClassifierSpec(Entry):
    name: Annotated[str, StringConstraints(max_length=100)]
    classes: Natural
    channels: Natural


class DenoiserSpec(Entry):
    channels: Natural
    width: Annotated[Finite, Field(gt=0, le=1000)]


class Classifier(Entry):
    kind: Literal["classifier"]
    type: str
    spec: ClassifierSpec
    fingerprint: Digest


class Denoiser(Entry):
    kind: Literal["denoiser"]
    type: str
    spec: DenoiserSpec
    fingerprint: Digest | None  # which older formats did not have


class FactorySpec(Entry):
    name: Annotated[str, StringConstraints(max_length=300)]
    classes: Natural
    mean: Annotated[list[Finite], Field(min_length=1, max_length=3)] | None
    std: Annotated[list[Finite], Field(min_length=1, max_length=3)] | None


class Factory(Entry):
    """A classifier that somebody's code makes; its weights are in the bundle."""

    kind: Literal["factory"]
    type: str
    spec: FactorySpec
    fingerprint: Digest


class Given(Entry):
    kind: Literal["given"]
    type: str
    spec: None
    fingerprint: Digest


Network = Annotated[Classifier | Denoiser | Factory | Given, Field(discriminator="kind")]


class ExtractorEntry(Entry):
    kind: Literal["features"]
    network: str
    features: Source


class DetectorEntry(Entry):
    kind: Literal["mmd"]


class NoSettings(Entry):
    pass


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


class Noise(Entry):
    sigma: Annotated[Finite, Field(ge=0)]
    noise: NoiseLaw
    clamp: bool = True  # which older bundles do not say


class GateSettings(Entry):
    tau: Annotated[Finite, Field(ge=0)]


SETTINGS: dict[str, type[BaseModel]] = {
    "classifier": NoSettings,
    "denoiser": Noise,
    "robust": NoSettings,
    "gate": GateSettings,
}  # by kind, of our own routes


class RouteEntry(Entry):
    kind: str
    networks: dict[str, str]
    settings: dict[str, Any]

    @model_validator(mode="after")
    def _settings(self) -> "RouteEntry":
        try:
            SETTINGS.get(self.kind, Anything).model_validate(self.settings)
        except ValidationError as error:
            raise ValueError(f"settings: {_explained(error)}") from None
        return self


class PartList(Entry):
    networks: dict[Name, Network]
    extractor: ExtractorEntry
    detector: DetectorEntry
    passing: RouteEntry
    flagged: RouteEntry

    @model_validator(mode="after")
    def _known(self) -> "PartList":
        used = {self.extractor.network, *self.passing.networks.values(), *self.flagged.networks.values()}
        if used != set(self.networks):
            raise ValueError(f"expected the networks {sorted(used)}, which the parts name, got {sorted(self.networks)}")
        for route in (self.passing, self.flagged):
            for role, name in route.networks.items():
                if {role, self.networks[name].kind} in ({"classifier", "denoiser"}, {"robust", "denoiser"}):
                    raise ValueError(f"expected a {role}, got {name!r}, which is none")
            if route.kind in ("gate", "robust") and "robust" not in route.networks:
                raise ValueError(f"expected a robust network in a route of kind {route.kind!r}")
        if "classifier" not in self.passing.networks:
            raise ValueError("expected the protected classifier in the passing route")
        return self


class Threshold(Entry):
    batch_size: Natural
    threshold: Finite
    central: Finite


class About(BaseModel):
    """Anybody may put anything here; what we read of it has a type."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    classes: list[str] = []
    split_sizes: dict[str, int] = {}
    measured: dict[str, Any] = {}


class Manifest(Entry):
    format: int
    digest: Digest
    files: dict[str, File]
    preprocessing: Preprocessing
    parts: PartList
    thresholds: Annotated[list[Threshold], Field(min_length=1)]
    config: dict[str, Any]
    about: About
    versions: dict[str, str]


def parse(raw: bytes, file: object) -> dict[str, Any]:
    """The JSON of a manifest of a format that we read, not yet checked. Raises BundleError naming the file."""
    if deepest(raw) > DEEPEST:
        raise BundleError(f"{file}: damaged, not a bundle's manifest (nested more than {DEEPEST} levels deep)")
    try:
        manifest = json.loads(raw.decode())
        version, digest = manifest["format"], manifest["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file}: damaged, not a bundle's manifest ({error})") from error
    if type(version) is not int or version not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise BundleError(f"{file}: format {version!r}, this version of twoprong reads formats {known}; fit again")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise BundleError(f"{file}: damaged, its content does not match its digest")
    return dict(manifest)


def check(manifest: dict[str, Any], file: object) -> dict[str, Any]:
    """A parsed manifest as today's format has it, every value of the kind it should be. Raises BundleError otherwise."""
    try:
        manifest = upgraded(manifest)
        Manifest.model_validate(manifest)
        manifest["config"] = parse_config(manifest["config"]).model_dump(mode="json")
    except ValidationError as error:
        raise BundleError(f"{file}: {_explained(error)}") from error
    except ConfigError as error:
        raise BundleError(f"{file}: settings that this version does not know ({error})") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{file}: parts missing or of another kind than its format has ({error})") from error
    return manifest


def upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of an older format as today's; settings that it is older than, as they were before there was a choice."""
    config = manifest["config"]
    config |= {name: BEFORE[name] | config[name] for name in BEFORE if isinstance(config.get(name), dict)}
    config.setdefault("rescue", "batch")
    if manifest["format"] == FORMAT:
        return manifest
    given, denoiser = manifest["classifier"], config["denoiser"]
    both = {"classifier": "classifier", "denoiser": "denoiser"}
    spec = {"channels": manifest["preprocessing"]["channels"], "width": denoiser["width"]}
    noise = {"sigma": denoiser["sigma"], "noise": denoiser.get("noise", "symmetric")}
    parts = {
        "networks": {
            "classifier": {"kind": "classifier" if given["spec"] else "given", **given},
            "denoiser": {"kind": "denoiser", "type": "twoprong.models.dunet.DUNet", "spec": spec, "fingerprint": None},
        },
        "extractor": {"kind": "features", "network": "classifier", "features": manifest.get("features")},
        "detector": {"kind": "mmd"},
        "passing": {"kind": "classifier", "networks": {"classifier": "classifier"}, "settings": {}},
        "flagged": {"kind": "denoiser", "networks": both, "settings": noise},
    }
    return {key: value for key, value in manifest.items() if key not in ("classifier", "features")} | {"parts": parts}


def deepest(raw: bytes) -> int:
    """How many objects and lists stand within each other, counted without a parser, which would recurse."""
    depth = most = 0
    for bracket in re.findall(rb"[\[\]{}]", _STRING.sub(b"", raw)):
        depth += 1 if bracket in b"[{" else -1
        most = max(most, depth)
    return most


def _explained(error: ValidationError) -> str:
    problems = [".".join(map(str, one["loc"])) + ": " + one["msg"] for one in error.errors()]
    return "; ".join(_shortened(problems)).replace("Value error, ", "").replace("Input should be", "expected")


def _shortened(problems: list[str]) -> Iterable[str]:
    left = len(problems) - SHOWN
    return [*problems[:SHOWN], f"{left} more"] if left > 0 else problems
