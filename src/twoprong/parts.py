"""The parts of a defence as a manifest lists them: networks, extractor, detector, two routes, each with its kind."""

import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twoprong.card import protected
from twoprong.config import FitConfig
from twoprong.detect.detector import Detector
from twoprong.errors import BundleError, InputError
from twoprong.models.adapters import origin_of, rebuild
from twoprong.models.dunet import DUNet
from twoprong.models.features import Features, FeatureSource
from twoprong.models.layout import channels_last
from twoprong.models.zoo import ModelSpec, build
from twoprong.routes import ROUTES, Route
from twoprong.storage import fingerprint

FORMAT = 3
READABLE = (1, 2, FORMAT)  # in format 1 no tensor was packed; formats 1 and 2 knew the paper's routes only
BEFORE = {"kernel": {"projections": [0]}, "denoiser": {"guide": "detector"}}  # as it was before there was a choice
MANIFEST = "manifest.json"
DETECTOR = "detector"
NETWORKS: dict[str, Callable[..., nn.Module]] = {"classifier": build, "denoiser": DUNet}  # by kind; others must be given


@dataclass(frozen=True)
class Parts:
    """All that a Defense is made of, and all that a bundle keeps."""

    extractor: Features
    detector: Detector
    passing: Route
    flagged: Route
    config: FitConfig
    about: dict[str, Any]


def describe(parts: Parts) -> dict[str, Any]:
    """The manifest, but for the list of files and the digest. Raises BundleError for a route that is not in ROUTES."""
    table, names = parts.detector.thresholds, _names(parts)
    channels, height, width = parts.detector.reference_pixels.shape[1:]
    source = parts.extractor.source
    return {
        "format": FORMAT,
        "preprocessing": {"channels": channels, "height": height, "width": width, "range": [0, 1]},
        "parts": {
            "networks": {name: _network(network) for network, name in names.items()},
            "extractor": {
                "kind": "features",
                "network": names[parts.extractor.classifier],
                "features": "callable" if callable(source) else source,
            },
            "detector": {"kind": "mmd"},
            "passing": _route(parts.passing, names),
            "flagged": _route(parts.flagged, names),
        },
        "thresholds": [
            {"batch_size": int(size), "threshold": float(upper), "central": float(central)}
            for size, upper, central in zip(*table, strict=True)
        ],
        "config": parts.config.model_dump(mode="json"),
        "about": parts.about,
        "versions": {
            "twoprong": metadata.version("twoprong"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def stored_networks(parts: Parts) -> dict[str, nn.Module]:
    """The networks whose weights are in the bundle, by name."""
    return {name: network for network, name in _names(parts).items() if _network(network)["spec"] is not None}


def assemble(
    root: Path,
    manifest: dict[str, Any],
    config: FitConfig,
    detector: Detector,
    classifier: nn.Module | None,
    features: FeatureSource,
    read: Callable[[Path], dict[str, Tensor]],
    allow: Iterable[str] = (),
) -> Parts:
    """The parts that a verified manifest lists, on the CPU; `classifier` and `features` are those that cannot be stored.

    A factory that the manifest names is run only if its module is in `allow`.
    """
    listed = manifest["parts"]
    try:
        networks = {
            name: _built(root, name, entry, classifier if entry is protected(manifest) else None, read, allow)
            for name, entry in listed["networks"].items()
        }
        passing, flagged = (_assembled(listed[role], networks) for role in ("passing", "flagged"))
        network, source = networks[listed["extractor"]["network"]], _source(listed["extractor"]["features"])
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise BundleError(f"{root / MANIFEST}: {' '.join(str(error).split())}") from error
    if source != "callable" and features is not None:
        raise BundleError(f"{root}: fitted on the features of {source or 'the last Linear layer'}; leave features= out")
    if source == "callable" and features is None:
        raise BundleError(f"{root}: fitted with a callable for features; pass the same one: load(..., features=...)")
    try:
        extractor = Features(network, features if source == "callable" else source)
    except InputError as error:
        raise BundleError(f"{root}: {error}") from error
    return Parts(extractor, detector, passing, flagged, config, manifest["about"])


def upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of an older format as today's; settings that it is older than, as they were before there was a choice."""
    config = manifest["config"]
    config |= {name: BEFORE[name] | config[name] for name in BEFORE if isinstance(config.get(name), dict)}
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


def _names(parts: Parts) -> dict[nn.Module, str]:
    """Every network once, by the first name that a route gives it; what only the test looks at is the extractor's."""
    names: dict[nn.Module, str] = {}
    named = [*parts.passing.networks().items(), *parts.flagged.networks().items(), ("extractor", parts.extractor.classifier)]
    for name, network in named:
        if network not in names:
            taken = [*names.values(), DETECTOR]
            names[network] = next(one for one in (name, *(f"{name}-{i}" for i in range(2, 99))) if one not in taken)
    return names


def _network(network: nn.Module) -> dict[str, Any]:
    kind, spec = "given", None
    if isinstance(network, DUNet):
        kind, spec = "denoiser", {"channels": network.channels, "width": network.width}
    elif isinstance(known := getattr(network, "spec", None), ModelSpec):
        kind, spec = "classifier", asdict(known)
    elif (origin := origin_of(network)) is not None:
        kind, spec = "factory", origin
    named = f"{type(network).__module__}.{type(network).__qualname__}"
    return {"kind": kind, "type": named, "spec": spec, "fingerprint": fingerprint(network)}


def _route(route: Route, names: Mapping[nn.Module, str]) -> dict[str, Any]:
    if ROUTES.get(route.kind) is not type(route):
        raise BundleError(f"a route of kind {route.kind!r} cannot be saved: put its class into twoprong.routes.ROUTES")
    networks = {name: names[network] for name, network in route.networks().items()}
    return {"kind": route.kind, "networks": networks, "settings": route.settings()}


def _assembled(entry: Mapping[str, Any], networks: Mapping[str, nn.Module]) -> Route:
    return ROUTES[entry["kind"]](**{name: networks[of] for name, of in entry["networks"].items()}, **entry["settings"])


def _built(
    root: Path,
    name: str,
    entry: Mapping[str, Any],
    given: nn.Module | None,
    read: Callable[[Path], dict[str, Tensor]],
    allow: Iterable[str],
) -> nn.Module:
    """A network from its weights, or the one given for it. Raises BundleError where these are not the manifest's."""
    if given is None and entry["kind"] == "given":
        raise BundleError(f"{root}: the {name} ({entry['type']}) is not in the bundle; load(..., classifier=...)")
    file, said = root / f"{name}.safetensors", entry["fingerprint"]
    network = given
    if network is None:
        factory = entry["kind"] == "factory"
        network = rebuild(entry["spec"], allow) if factory else NETWORKS[entry["kind"]](**entry["spec"])
        try:
            network.load_state_dict(read(file))
        except RuntimeError as error:
            raise BundleError(f"{file}: {' '.join(str(error).split())}") from error
        network = channels_last(network).requires_grad_(False)
    if said is None or fingerprint(network) == said:
        return network
    if given is None:
        raise BundleError(f"{file}: other weights than those that the manifest has the fingerprint of")
    raise BundleError(f"{root}: the {name} given is not the one it was fitted around ({entry['type']}): other weights")


def _source(named: Any) -> str | tuple[str, ...] | None:
    """The features' source as the manifest has it: nothing, a name, or a list of names."""
    if named is None or isinstance(named, str):
        return named
    if isinstance(named, list) and named and all(isinstance(name, str) for name in named):
        return tuple(named)
    raise InputError(f"features: expected a layer's name or a list of names, got {named!r}")
