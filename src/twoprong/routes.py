"""What a batch can go through on its way to logits. A new kind of route is one class here and nothing elsewhere.

    images ─► disturb (what is random) ─► restore (what the classifier is shown) ─► classify

The paper's passing route is the classifier itself (`Direct`), its flagged route noise → denoiser → classifier (`Denoised`).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from twoprong.config import NoiseLaw
from twoprong.models.features import full
from twoprong.purify.loss import add_noise
from twoprong.seeds import from_system

Known = Mapping[nn.Module, Tensor]  # logits that a pass for the test has computed already, by network
NOTHING: Known = MappingProxyType({})


class Route(nn.Module, ABC):
    """From images (N, C, H, W) in [0, 1] to logits (N, classes), differentiable in the images.

    `classifier` is the network that the route is there for, as it would answer alone. `kind` names the class in a bundle,
    which keeps the route's networks and its `settings()`: `kind(**networks, **settings)` is the route again.
    """

    kind: ClassVar[str]
    classifier: nn.Module

    @property
    def random(self) -> bool:
        """Whether two passes of one image may differ."""
        return False

    def disturb(self, images: Tensor, draws: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """All that is random: (draws·N, C, H, W), draw after draw; of a route without noise the images themselves."""
        return images

    def restore(self, disturbed: Tensor) -> Tensor:
        """What the classifier is shown."""
        return disturbed

    @abstractmethod
    def classify(self, seen: Tensor, known: Known = NOTHING) -> Tensor:
        """Logits for what `restore` gives. `known` are logits of these very images, not to be computed again."""

    def logits(self, images: Tensor, draws: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Logits (draws, N, classes), all draws in one pass; a route without noise gives one draw."""
        logits = self.classify(self.restore(self.disturb(images, draws, generator)))
        return logits.view(-1, len(images), logits.shape[-1])

    def broken(self) -> Callable[[Tensor], Tensor] | None:
        """A form of the route that is known not to withstand attacks, for sanity checks; None where there is none."""
        return None

    def networks(self) -> dict[str, nn.Module]:
        """The networks by the names that the constructor gives them."""
        return {name: network for name, network in self._modules.items() if network is not None}  # a network twice, too

    def settings(self) -> dict[str, Any]:
        """What else the constructor takes: facts that JSON can write."""
        return {}


class Direct(Route):
    """The classifier, and nothing else."""

    kind = "classifier"

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def classify(self, seen: Tensor, known: Known = NOTHING) -> Tensor:
        return known[self.classifier] if self.classifier in known else full(self.classifier(seen))


class Denoised(Direct):
    """Noise, denoiser, classifier (Algorithm 2's denoiser at inference).

    Noise is seeded by the operating system unless a generator is given, as evaluations do.
    """

    kind = "denoiser"

    def __init__(
        self, classifier: nn.Module, denoiser: nn.Module, sigma: float, noise: NoiseLaw = "symmetric", clamp: bool = True
    ) -> None:
        super().__init__(classifier)
        self.denoiser, self.sigma, self.noise, self.clamp = denoiser, sigma, noise, clamp

    @property
    def random(self) -> bool:
        return self.sigma > 0

    def disturb(self, images: Tensor, draws: int = 1, generator: torch.Generator | None = None) -> Tensor:
        many = images.repeat(draws if self.random else 1, 1, 1, 1)
        return add_noise(many, self, from_system(images.device) if generator is None else generator)

    def restore(self, disturbed: Tensor) -> Tensor:
        restored = full(self.denoiser(disturbed))
        return restored.clamp(0, 1) if self.clamp else restored

    def broken(self) -> Callable[[Tensor], Tensor]:
        """Denoiser and classifier without noise."""
        return lambda images: self.classify(self.restore(images))

    def in_training(self, denoiser: nn.Module | None = None) -> "Denoised":
        """The route with its denoiser (or another) copied and in training mode; the copy's batch norms remember nothing."""
        learner = copy.deepcopy(self.denoiser if denoiser is None else denoiser).train()
        for module in learner.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.0
        return Denoised(self.classifier, learner, self.sigma, self.noise, self.clamp)

    def settings(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "noise": self.noise, "clamp": self.clamp}


ROUTES: dict[str, type[Route]] = {route.kind: route for route in (Direct, Denoised)}
