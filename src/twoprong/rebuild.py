"""The parts of a defence out of a verified bundle. Nothing is built that the tensors in the bundle do not fill."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from twoprong.card import protected
from twoprong.config import FitConfig
from twoprong.detect.checks import check_settings
from twoprong.detect.detector import Detector
from twoprong.errors import BundleError
from twoprong.manifest import MANIFEST
from twoprong.models.adapters import rebuild as from_origin
from twoprong.models.dunet import DUNet
from twoprong.models.features import Features, FeatureSource
from twoprong.models.layout import channels_last
from twoprong.models.modes import evaluating
from twoprong.models.zoo import build
from twoprong.parts import Parts
from twoprong.routes import ROUTES, Route
from twoprong.storage import fingerprint

NETWORKS: dict[str, Callable[..., nn.Module]] = {"classifier": build, "denoiser": DUNet}  # by kind; others must be given
GRAM = 2**24  # entries of the reference's Gram matrix that any bundle may ask for, and of the relabellings; 64 MB each
POSITIONS = 2**16  # pixels up to which an image is sent through the networks; beyond, through torch's slow meta device
KINDS = {
    **{f"kernel.{name}": (torch.float, 0) for name in ("log_feature_bandwidth", "log_pixel_bandwidth", "logit_beta0")},
    "kernel.projection": (torch.float, 2),
    "sizes": (torch.long, 1),
    "upper": (torch.double, 1),
    "central": (torch.double, 1),
    "calibrated_on": (torch.long, 1),
    "blame.filters": (torch.float, 4),
    "blame.weights": (torch.float, 1),
    "blame.limit": (torch.double, 0),
    "reference_pixels": (torch.float, 4),
    "reference_features": (torch.float, 2),
}  # of the detector's tensors: type, dimensions

Read = Callable[[Path], dict[str, Tensor]]


def read_detector(file: Path, manifest: dict[str, Any], config: FitConfig, read: Read) -> Detector:
    """The detector, which needs no network. Raises BundleError where the manifest does not say what its tensors do."""
    tensors = read(file)
    for name, tensor in tensors.items():
        expected = KINDS.get(name)
        if expected and (tensor.dtype, tensor.ndim) != expected:
            got = f"{tensor.dtype} with {tensor.ndim}"
            raise BundleError(f"{file}: {name}: expected {expected[0]} with {expected[1]} dimensions, got {got}")
        if expected and not bool(tensor.isfinite().all()):
            raise BundleError(f"{file}: {name}: expected finite numbers")
    with refusing(file):
        check_memory(tensors["reference_pixels"], tensors["reference_features"], config.detector.permutations)
        detector = Detector.from_state(tensors, config.detector.permutations, config.detector.statistic)
        check_settings(detector, config.detector)
    said = [(row["batch_size"], row["threshold"], row["central"]) for row in manifest["thresholds"]]
    if said != list(zip(*(column.tolist() for column in detector.thresholds), strict=True)):
        raise BundleError(f"{file.with_name(MANIFEST)}: other thresholds than those in force, which are in {file.name}")
    image, shape = manifest["preprocessing"], list(detector.reference_pixels.shape[1:])
    if [image["channels"], image["height"], image["width"]] != shape or image["range"] != [0, 1]:
        raise BundleError(f"{file.with_name(MANIFEST)}: other images than the reference in {file.name}, which are {shape}")
    return detector


def check_memory(pixels: Tensor, features: Tensor, permutations: int) -> None:
    """Raise BundleError for a reference, or relabellings of it, that take far more memory than they bring."""
    count = len(pixels)
    if count**2 > max(GRAM, 16 * (pixels.numel() + features.numel())):
        raise BundleError(f"a reference of {count:,} images is more than can be tested against; fit with fewer")
    if count * permutations > GRAM:
        raise BundleError(f"{permutations:,} permutations with a reference of {count:,} images are too many; fit with fewer")


def assemble(
    root: Path,
    manifest: dict[str, Any],
    config: FitConfig,
    detector: Detector,
    classifier: nn.Module | None,
    features: FeatureSource,
    read: Read,
    allow: Iterable[str] = (),
) -> Parts:
    """The parts that a verified manifest lists, on the CPU; `classifier` and `features` are those that cannot be stored.

    A factory that the manifest names is run only if its module is in `allow`.
    """
    listed = manifest["parts"]
    source = listed["extractor"]["features"]
    if source != "callable" and features is not None:
        raise BundleError(f"{root}: fitted on the features of {source or 'the last Linear layer'}; leave features= out")
    if source == "callable" and features is None:
        raise BundleError(f"{root}: fitted with a callable for features; pass the same one: load(..., features=...)")
    source = features if source == "callable" else source
    networks, twins = {}, {}
    for name, entry in listed["networks"].items():
        given, file = classifier if entry is protected(manifest) else None, root / f"{name}.safetensors"
        if entry["kind"] in NETWORKS:
            tensors = read(file)
            twins[name] = _twin(file, entry, tensors)
        if given is None and entry["kind"] == "factory":
            networks[name] = _made(file, entry, read(file), allow)
        else:
            stored = entry["spec"] and given is None
            networks[name] = _built(file, entry, tensors) if stored else _given(root, name, entry, given)
    with refusing(root / MANIFEST):
        parts = _joined(manifest, config, detector, networks, source)
        if not callable(source):  # which may be anywhere, on any device
            own = classifier is None and len(twins) == len(networks)
            large = own and detector.reference_pixels[0, 0].numel() > POSITIONS
            _rehearse(_joined(manifest, config, detector, twins, source) if large else parts, routes=own)
    return parts


def _joined(
    manifest: dict[str, Any], config: FitConfig, detector: Detector, networks: Mapping[str, nn.Module], source: FeatureSource
) -> Parts:
    def route(entry: Mapping[str, Any]) -> Route:
        if entry["kind"] not in ROUTES:
            raise BundleError(f"unknown route {entry['kind']!r}; known are {', '.join(ROUTES)}")
        given = {role: networks[name] for role, name in entry["networks"].items()}
        return ROUTES[entry["kind"]](**given, **entry["settings"])

    listed = manifest["parts"]
    extractor = Features(networks[listed["extractor"]["network"]], source)
    return Parts(extractor, detector, route(listed["passing"]), route(listed["flagged"]), config, manifest["about"])


@torch.no_grad()
def _rehearse(parts: Parts, routes: bool) -> None:
    """Send an image of the reference through the extractor, and through the routes: what does not fit is seen here."""
    pixels, stored = parts.detector.reference
    image = pixels[:1].to(next(parts.extractor.parameters(), pixels).device)
    with evaluating(parts.extractor), evaluating(parts.passing), evaluating(parts.flagged):
        width = parts.extractor(image)[1].shape[1]
        if width != stored.shape[1]:
            raise BundleError(f"features of width {width}, but the reference has features of width {stored.shape[1]}")
        shapes = {route.classify(route.restore(image)).shape for route in (parts.passing, parts.flagged) if routes}
        if len(shapes) > 1:
            raise BundleError(f"routes that give logits of different shapes: {sorted(map(tuple, shapes))}")


def _twin(file: Path, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network without memory for its weights; the tensors are exactly those that it needs."""
    depth = re.search(r"\d+", str(entry["spec"].get("name", "")))
    if depth and int(depth[0]) > len(tensors):
        raise BundleError(f"{file}: {len(tensors)} tensors are too few for {entry['spec']['name']}")
    with refusing(file), torch.device("meta"), _Unfilled():
        twin = NETWORKS[entry["kind"]](**entry["spec"]).eval()
    expected, got = _kinds(twin.state_dict()), _kinds(tensors)
    for name in sorted(expected.keys() | got.keys()):
        if expected.get(name) != got.get(name):
            raise BundleError(f"{file}: {name}: expected {expected.get(name, 'none')}, got {got.get(name, 'none')}")
    return twin


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{tensor.dtype} of shape {tuple(tensor.shape)}" for name, tensor in tensors.items()}


def _built(file: Path, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """A network with its weights, which `_twin` has found to fit."""
    network = NETWORKS[entry["kind"]](**entry["spec"])
    network.load_state_dict(tensors)
    network = channels_last(network).requires_grad_(False)
    if entry["fingerprint"] not in (None, fingerprint(network)):
        raise BundleError(f"{file}: other weights than those that the manifest has the fingerprint of")
    return network


def _made(file: Path, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], allow: Iterable[str]) -> nn.Module:
    """A network that somebody's code makes, with the weights of the bundle."""
    with refusing(file):
        network = from_origin(entry["spec"], allow)
        network.load_state_dict(tensors)
    network = channels_last(network).eval().requires_grad_(False)
    if entry["fingerprint"] != fingerprint(network):
        raise BundleError(f"{file}: other weights than those that the manifest has the fingerprint of")
    return network


def _given(root: Path, name: str, entry: Mapping[str, Any], given: nn.Module | None) -> nn.Module:
    if given is None:
        raise BundleError(f"{root}: the {name} ({entry['type']}) is not in the bundle; load(..., classifier=...)")
    if entry["fingerprint"] != fingerprint(given):
        raise BundleError(f"{root}: the {name} given is not the one it was fitted around ({entry['type']}): other weights")
    return given


class _Unfilled(TorchFunctionMode):
    """Draws no weights where there are none: for that the meta device would import half of torch, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.normal_ else func(*args, **(kwargs or {}))


@contextmanager
def refusing(file: Path) -> Iterator[None]:
    """Whatever goes wrong with what a bundle holds is a BundleError that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError) as error:
        raise BundleError(f"{file}: {error}") from error
