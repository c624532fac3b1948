"""What a batch can go through on its way to logits. A new kind of route is one class here and nothing elsewhere.

    images ─► disturb (what is random) ─► restore (what the classifier is shown) ─► classify

The paper's passing route is the classifier itself (`Direct`), its flagged route noise → denoiser → classifier (`Denoised`).
In the hardened mode both are robust, image by image: a robust network, and the classifier where that network is unsure
(`Gated`), and the robust network alone (`Robust`).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from twoprong.attacks.losses import margin
from twoprong.attacks.target import Hurdle
from twoprong.config import NoiseLaw
from twoprong.models.features import full
from twoprong.purify.loss import add_noise
from twoprong.robust.gate import lead
from twoprong.seeds import from_system

Known = Mapping[nn.Module, Tensor]  # logits that a pass for the test has computed already, by network
NOTHING: Known = MappingProxyType({})
SOFT = 0.05  # of a probability: how wide around its threshold the gate's gradient blends the two networks


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

    @property
    def asked(self) -> tuple[nn.Module, ...]:
        """The networks that are shown every image just as it comes; none, of a route that shows them something else."""
        return ()

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

    def hurdles(self, seen: Tensor, labels: Tensor) -> list[Hurdle]:
        """The networks that an attacker has to get past: where he is past all of them, the answer is wrong.

        They have no computation in common, so that each can be differentiated by itself.
        """
        return [Hurdle.of(self.classify(seen), labels)]

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

    @property
    def asked(self) -> tuple[nn.Module, ...]:
        return (self.classifier,)

    def classify(self, seen: Tensor, known: Known = NOTHING) -> Tensor:
        return _logits(self.classifier, seen, known)


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

    @property
    def asked(self) -> tuple[nn.Module, ...]:
        return ()

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


class Robust(Route):
    """The robust network alone."""

    kind = "robust"

    def __init__(self, robust: nn.Module) -> None:
        super().__init__()
        self.robust = robust

    @property
    def classifier(self) -> nn.Module:  # type: ignore[override]
        return self.robust

    @property
    def asked(self) -> tuple[nn.Module, ...]:
        return (self.robust,)

    def classify(self, seen: Tensor, known: Known = NOTHING) -> Tensor:
        return _logits(self.robust, seen, known)


class Gated(Direct):
    """The robust network R where its lead is at least `tau`, elsewhere the classifier A; the logits are the answerer's.

    R's lead is the probability of its first class less that of its second. The answer jumps where the lead crosses `tau`,
    and the derivative there is no help to an attacker. So the gradient of the logits is that of a blend, w·R + (1 - w)·A
    with w = sigmoid((lead - tau) / SOFT) held fixed: away from the threshold it is the exact one.
    """

    kind = "gate"

    def __init__(self, classifier: nn.Module, robust: nn.Module, tau: float) -> None:
        super().__init__(classifier)
        self.robust, self.tau = robust, tau

    @property
    def asked(self) -> tuple[nn.Module, ...]:
        return (self.classifier, self.robust)

    def classify(self, seen: Tensor, known: Known = NOTHING) -> Tensor:
        accurate, robust = (_logits(network, seen, known) for network in (self.classifier, self.robust))
        ahead = (lead(robust.detach().softmax(-1)) - self.tau)[:, None]
        answer = torch.where(ahead < 0, accurate, robust)  # a lead that is not a number does not open the way to A
        if not answer.requires_grad:
            return answer
        weight = torch.sigmoid(ahead / SOFT)
        blend = weight * robust + (1 - weight) * accurate
        return answer.detach() + (blend - blend.detach())

    def hurdles(self, seen: Tensor, labels: Tensor) -> list[Hurdle]:
        """R, which must be wrong or lead by less than `tau`, and A, which must be wrong where it is asked."""
        accurate, robust = (_logits(network, seen, NOTHING) for network in (self.classifier, self.robust))
        gap = margin(robust.softmax(-1), labels)
        asked = (lead(robust.softmax(-1)) < self.tau) | (gap <= 0)
        beaten = torch.where(asked, margin(accurate, labels), gap.detach())  # of A's computation alone
        return [Hurdle(robust, gap + self.tau), Hurdle(accurate, beaten)]

    def settings(self) -> dict[str, Any]:
        return {"tau": self.tau}


def _logits(network: nn.Module, seen: Tensor, known: Known) -> Tensor:
    return known[network] if network in known else full(network(seen))


ROUTES: dict[str, type[Route]] = {route.kind: route for route in (Direct, Denoised, Robust, Gated)}
