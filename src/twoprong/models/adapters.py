"""Classifiers from elsewhere: `module:factory`, `torchvision:NAME`, `timm:NAME`, `hf:PATH`; from [0, 1] to logits."""

import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twoprong.errors import InputError
from twoprong.models.normalise import Normalise

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Statistics = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Origin:
    """What makes the same network again, its weights aside: what a bundle keeps of a classifier from elsewhere."""

    name: str
    classes: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


class Adapted(nn.Module):
    """Somebody's network behind its normalisation; of outputs with a field `logits` (Hugging Face) it gives the logits."""

    def __init__(self, network: nn.Module, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        if len(mean) != len(std) or len(mean) not in (1, 3) or min(std) <= 0:
            raise InputError(f"mean, std: expected 1 or 3 numbers each, std above 0, got {tuple(mean)} and {tuple(std)}")
        self.normalise, self.network = Normalise(len(mean), mean, std), network

    def forward(self, images: Tensor) -> Tensor:
        found: Any = self.network(self.normalise(images))
        logits: Tensor = getattr(found, "logits", found)
        return logits


class Made(NamedTuple):
    """What an adapter gives: a network, the statistics it expects its input normalised by, whether it is trained."""

    network: nn.Module
    statistics: Statistics | None = None
    trained: bool = False


def _torchvision(name: str, classes: int) -> Made:
    models = _package("torchvision.models")
    return Made(_called(f"torchvision:{name}", lambda: models.get_model(name, weights=None, num_classes=classes)), IMAGENET)


def _timm(name: str, classes: int) -> Made:
    timm = _package("timm")
    network = _called(f"timm:{name}", lambda: timm.create_model(name, pretrained=False, num_classes=classes))
    known = getattr(network, "pretrained_cfg", None) or {}
    return Made(network, (known.get("mean", IMAGENET[0]), known.get("std", IMAGENET[1])))


def _hf(name: str, classes: int) -> Made:
    """A directory as `save_pretrained` writes it; nothing is downloaded and no code in it is run."""
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        raise InputError(f"hf:{name}: expected a directory with config.json, as save_pretrained writes it, at {folder}")
    auto = _package("transformers").AutoModelForImageClassification
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    network = _called(f"hf:{name}", lambda: auto.from_pretrained(str(folder), **options))
    file = folder / "preprocessor_config.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return Made(network, (known.get("image_mean", (0.5,) * 3), known.get("image_std", (0.5,) * 3)), trained=True)


ADAPTERS: dict[str, Callable[[str, int], Made]] = {"torchvision": _torchvision, "timm": _timm, "hf": _hf}


def adapted(
    name: str, classes: int, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> tuple[nn.Module, bool]:
    """The network that `name` stands for, with its normalisation inside, and whether it comes trained.

    `mean` and `std` go before what the package says of the network. A factory's network without either is taken as it is.
    The network's `origin` is kept, so that a bundle can name it. Raises InputError for what cannot be imported or made.
    """
    kind, _, rest = name.partition(":")
    made = ADAPTERS[kind](rest, classes) if kind in ADAPTERS else Made(from_factory(name))
    if (mean is None) != (std is None):
        raise InputError("--mean, --std: expected both or neither, got one of them")
    statistics = (mean, std) if mean is not None and std is not None else made.statistics
    network = made.network if statistics is None else Adapted(made.network, *statistics)
    if kind != "hf":  # whose directory need not be there where the bundle is loaded
        used = (None, None) if statistics is None else (tuple(statistics[0]), tuple(statistics[1]))
        remember(network, Origin(name, classes, *used))
    return network, made.trained


def remember(network: nn.Module, origin: Origin) -> None:
    network.origin = origin  # type: ignore[assignment]  # torch declares only tensors and modules


def origin_of(network: nn.Module) -> dict[str, Any] | None:
    """What a bundle's manifest says of a network that an adapter made; None for any other."""
    origin = getattr(network, "origin", None)
    return asdict(origin) if isinstance(origin, Origin) else None


def rebuild(origin: dict[str, Any], allow: Iterable[str]) -> nn.Module:
    """The network that a bundle names, without its weights; its module is imported only where the user allows it."""
    known, allow = Origin(**origin), (allow,) if isinstance(allow, str) else allow
    module = str(known.name).partition(":")[0]
    if module not in allow:
        raise InputError(
            f"the classifier is made by {known.name}, code that is not in the bundle: pass allow=[{module!r}] "
            f"(--allow {module}) if you trust that module, or classifier=..."
        )
    return adapted(known.name, known.classes, known.mean, known.std)[0]


def from_factory(name: str) -> nn.Module:
    """Import `module:factory` and call it. Raises InputError for what cannot be imported, called, or is no module."""
    module, _, factory = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except Exception as error:  # whatever that code raises
        raise InputError(
            f"--classifier {name}: expected MODULE:FACTORY, a function without arguments ({_first_line(error)})"
        ) from error
    if not isinstance(made, nn.Module):
        raise InputError(f"--classifier {name}: expected a torch.nn.Module, got {type(made).__name__}")
    return made


def _package(name: str) -> ModuleType:
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package built for another torch fails in ways of its own
        missing = isinstance(error, ModuleNotFoundError)
        hint = f"pip install {package}" if missing else f"install a build of it that is made for torch {torch.__version__}"
        raise InputError(
            f"--classifier {package}:...: {package} cannot be imported ({_first_line(error)}); {hint}"
        ) from error


def _called(name: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except Exception as error:  # names that the package does not know, files that it cannot read: each raises its own
        raise InputError(f"--classifier {name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
