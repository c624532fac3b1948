"""The parts of a defence as a manifest lists them: networks, extractor, detector, two routes, each with its kind."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import torch
from torch import nn

from twoprong.config import FitConfig
from twoprong.detect.detector import Detector
from twoprong.errors import BundleError
from twoprong.manifest import FORMAT
from twoprong.models.adapters import origin_of
from twoprong.models.dunet import DUNet
from twoprong.models.features import Features
from twoprong.models.zoo import ModelSpec
from twoprong.routes import ROUTES, Route
from twoprong.storage import fingerprint

DETECTOR = "detector"


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
