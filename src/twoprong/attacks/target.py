"""What an attack may ask of the thing it attacks: a classifier, or a whole defence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from twoprong.attacks.losses import margin
from twoprong.errors import InputError
from twoprong.models.features import full
from twoprong.models.modes import modules_of

Role = Literal["passing", "flagged"]  # of a route: for batches that the test lets pass, or for those it flags
ROLES: tuple[Role, ...] = get_args(Role)


class Hurdle(NamedTuple):
    """A network that stands between an attacker and a wrong answer: its logits (N, classes), and how far the attacker is
    `past` it (N,), positive where he is."""

    logits: Tensor
    past: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> "Hurdle":
        """A network whose answer is the answer: he is past it where it is wrong."""
        return cls(logits, margin(logits, labels))


class Outcome(Protocol):
    """What the deployed object did with a batch; a `Decision` is one."""

    @property
    def logits(self) -> Tensor: ...
    @property
    def adversarial(self) -> bool: ...
    @property
    def statistic(self) -> float: ...
    @property
    def threshold(self) -> float: ...


@runtime_checkable
class Target(Protocol):
    """The deployed object, differentiable. Batches are whole and in order; nobody takes them apart.

    `coupled` says whether an image's outcome depends on the others in its batch, as it does behind a batch test. `routes`
    are the roles that lead to different places; where there is one place only, any role leads there.
    """

    coupled: bool
    routes: tuple[Role, ...]

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Logits (draws, N, classes) on a route, or on the one the batch would take. Deterministic routes give one draw."""

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        """The batch's test statistic (a scalar) against the deployed reference, or against other images."""

    def threshold(self, size: int) -> float:
        """The statistic at which a batch of `size` is flagged."""

    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> Outcome:
        """The deployed decision, without gradients."""


class Transparent(Target, Protocol):
    """A Target that also shows its inside, for the attacks that are made for exactly this kind of defence."""

    def restored(
        self, images: Tensor, route: Role = "flagged", draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """What a route shows its classifier: (draws·N, C, H, W), or N images where nothing is random."""

    def classified(self, seen: Tensor, route: Role = "flagged") -> Tensor:
        """The route's logits (N, classes) for what it shows its classifier."""

    def hurdles(
        self, images: Tensor, labels: Tensor, route: Role = "passing", generator: torch.Generator | None = None
    ) -> list[Hurdle]:
        """What an attacker has to get past on a route: where he is past all of it, the answer is wrong. Image by image."""

    def embed(self, images: Tensor) -> Tensor:
        """The features (N, d) that the test sees."""

    def witness(self, images: Tensor, others: Tensor) -> Tensor:
        """How conspicuous each image (N,) is among clean `others`: its own share in the statistic, up to a constant."""

    def suspicion(self, images: Tensor) -> Tensor:
        """How far each image (N,) by itself is above the limit at which it is blamed for an alarm; zero without a limit."""

    def reference_images(self) -> Tensor:
        """The clean images that batches are tested against; none for a plain classifier."""


INSIDE = ("restored", "classified", "hurdles", "embed", "witness", "suspicion", "reference_images")


def transparent(target: Target) -> Transparent:
    """The same target, if it shows its inside. Raises InputError otherwise."""
    if not all(hasattr(target, name) for name in INSIDE):
        raise InputError("target: this attack reads features, reference and routes; give a Defense or a classifier")
    return cast(Transparent, target)


@dataclass(frozen=True)
class PlainOutcome:
    logits: Tensor
    adversarial: bool = False
    statistic: float = 0.0
    threshold: float = float("inf")


class Plain:
    """A bare classifier as a Target: one route, nothing tested."""

    coupled = False
    routes: tuple[Role, ...] = ("passing",)

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self.model = model

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        return full(self.model(images))[None]

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        return 0 * images.sum()

    def threshold(self, size: int) -> float:
        return float("inf")

    @torch.no_grad()
    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> PlainOutcome:
        return PlainOutcome(full(self.model(images)))

    def restored(
        self, images: Tensor, route: Role = "flagged", draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        return images

    def classified(self, seen: Tensor, route: Role = "flagged") -> Tensor:
        return full(self.model(seen))

    def hurdles(
        self, images: Tensor, labels: Tensor, route: Role = "passing", generator: torch.Generator | None = None
    ) -> list[Hurdle]:
        return [Hurdle.of(self.classified(images, route), labels)]

    def embed(self, images: Tensor) -> Tensor:
        return full(self.model(images))

    def witness(self, images: Tensor, others: Tensor) -> Tensor:
        return 0 * images.flatten(1).sum(1)

    def suspicion(self, images: Tensor) -> Tensor:
        return 0 * images.flatten(1).sum(1)

    def reference_images(self) -> Tensor:
        return torch.zeros(0)

    def modules(self) -> list[nn.Module]:
        return modules_of(self.model)


class Counted:
    """A Target that counts what it is asked: `queries` is the number of images, each as often as it was computed.

    Whatever else the target offers (the reference that `match` reads, the images that BPDA then asks about) is passed on.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.coupled, self.routes, self.queries = target, target.coupled, target.routes, 0

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        logits = self.target.logits(images, route, draws, generator)
        self.queries += len(images) * len(logits)
        return logits

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        self.queries += len(images)
        return self.target.statistic(images, reference)

    def threshold(self, size: int) -> float:
        return self.target.threshold(size)

    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> Outcome:
        self.queries += len(images)
        return self.target.decide(images, generator)

    def hurdles(
        self, images: Tensor, labels: Tensor, route: Role = "passing", generator: torch.Generator | None = None
    ) -> list[Hurdle]:
        self.queries += len(images)
        return transparent(self.target).hurdles(images, labels, route, generator)

    def embed(self, images: Tensor) -> Tensor:
        self.queries += len(images)
        return transparent(self.target).embed(images)

    def witness(self, images: Tensor, others: Tensor) -> Tensor:
        self.queries += len(images) + len(others)
        return transparent(self.target).witness(images, others)

    def suspicion(self, images: Tensor) -> Tensor:
        self.queries += len(images)
        return transparent(self.target).suspicion(images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def as_target(model: Target | Callable[[Tensor], Tensor]) -> Target:
    """A Target as it is; any other callable from images to logits as a plain classifier."""
    return model if isinstance(model, Target) else Plain(model)
