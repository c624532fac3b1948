"""MagNet (Meng & Chen 2017): refuse what an autoencoder of clean images cannot reconstruct, reconstruct the rest.

A baseline to stand beside: it judges images one by one, where our defence judges batches.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import margin
from twoprong.attacks.target import ROLES, Role, Target
from twoprong.config import Count, NotNegative, Numbers
from twoprong.data.images import check_images
from twoprong.errors import InputError
from twoprong.evaluation.baselines.parts import Refusal
from twoprong.models.features import full
from twoprong.models.modes import evaluating
from twoprong.progress import Progress, silent
from twoprong.seeds import generator, initialised

TEMPERATURES = (10, 40)
NOISE = {1: 0.1, 3: 0.025}  # on the autoencoder's input, by channels: the paper's levels for MNIST and CIFAR-10
HELD_OUT = 5  # one image in so many sets the thresholds
BATCH, RATE = 64, 3e-3  # images per step, and the highest learning rate
# Passes over the images, and most steps: on a quarter of the training digits kept aside, more passes gained nothing.
PASSES, STEPS = 24, 5000
SPARE = 0.05  # attacks aim this far below the thresholds, so that rounding does not refuse the image


class Autoencoder(nn.Module):
    """Images to images of the same shape, not clamped, through a code of half the height and width."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.ReLU(),
            nn.Conv2d(width // 2, channels, 3, padding=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]  # an odd one comes back a pixel larger
        return self.decoder(self.encoder(images))[..., :height, :width]


class MagNet(nn.Module):
    """A classifier behind MagNet's detectors and reformer, and the Target of attacks that know it.

    Four detectors: the mean absolute and the mean squared error of the reconstruction, and the Jensen-Shannon divergence
    between the classifier's softmax for the image and for its reconstruction, at temperatures 10 and 40. An image is
    refused when one of them exceeds its threshold. Until it is trained or loaded nothing is refused.

    The classifier is the caller's, in eval mode and on the images' device: it is not in the state, and not moved by `to`.
    """

    coupled = False  # every image is judged by itself
    routes = ROLES
    classifier: nn.Module
    limits: Tensor

    def __init__(self, classifier: nn.Module, channels: int) -> None:
        super().__init__()
        self.__dict__["classifier"] = classifier  # past the registry
        self.autoencoder = Autoencoder(channels)
        self.register_buffer("limits", torch.full((2 + len(TEMPERATURES),), torch.inf))
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> "MagNet":
        """It stays in eval mode, whatever is asked."""
        return super().train(False)

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        """Everything that computes, the classifier included: attacks put all of it into eval mode."""
        yield from super().modules()
        yield from self.classifier.modules()

    def reform(self, images: Tensor) -> Tensor:
        """The reconstruction, in [0, 1]: what the classifier is given."""
        return full(self.autoencoder(images)).clamp(0, 1)

    def rejects(self, images: Tensor) -> Tensor:
        """Who (N,) is refused."""
        with torch.no_grad():
            return ~(self.excess(images) <= 0)  # whoever cannot be judged is refused

    def excess(self, images: Tensor) -> Tensor:
        """How far (N,) the worst of the detectors is above its threshold, relative to it; differentiable."""
        return (self.scores(images) / self.limits).amax(1) - 1

    def scores(self, images: Tensor) -> Tensor:
        """What the detectors (N, 4) measure."""
        reformed = self.reform(images)
        error = (images - reformed).flatten(1)
        before, after = full(self.classifier(images)), full(self.classifier(reformed))
        divergences = [jensen_shannon(before / heat, after / heat) for heat in TEMPERATURES]
        return torch.stack([error.abs().mean(1), error.square().mean(1), *divergences], 1)

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Logits (1, N, classes) of the reconstructions; there is no noise.

        What is flagged is refused, so on the flagged route there is nothing to gain: all classes are equal there.
        """
        logits = full(self.classifier(self.reform(images)))[None]
        return 0 * logits if route == "flagged" else logits

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        """The mean over the images of max(excess, 0), as a scalar: zero when nobody is refused."""
        return self.excess(images).clamp_min(0).mean()

    def threshold(self, size: int) -> float:
        """A mean excess so small that below it few are refused, and that an attack on many images can still get to."""
        return 0.003

    @torch.no_grad()
    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> Refusal:
        excess = self.excess(images)
        rejected, statistic = ~(excess <= 0), excess.clamp_min(0).mean().item()  # as `rejects`
        return Refusal(self.logits(images)[0], rejected, bool(rejected.any()), statistic, self.threshold(len(images)))


@dataclass(frozen=True, kw_only=True)
class EvadeEach(Attack):
    """`evade` for a MagNet, which judges images one by one: be accepted and misclassified.

    Every image ascends min(margin, κ) - λ·relu(excess + 0.05), for every λ of `penalties`. Kept is its iterate with the
    largest margin among those that are accepted; an image that was never accepted is left as it was.
    """

    steps: Count = 40
    step: NotNegative | None = None
    kappa: NotNegative = 0.5
    penalties: Numbers = (1.0, 1e1, 1e2)

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        excess_of = getattr(target, "excess", None)
        if excess_of is None:
            raise InputError("target: this attack needs a MagNet; attack a Defense with `evade`")
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        best = Best(target, images)
        for penalty in self.penalties:
            x = self.start(images, True, generator)
            for last in [*[False] * self.steps, True]:
                with torch.enable_grad():
                    leaf = x.detach().requires_grad_()
                    gap, excess = margin(target.logits(leaf)[0], labels), excess_of(leaf)
                    objective = gap.clamp_max(self.kappa) - penalty * (excess + SPARE).clamp_min(0)
                    (gradient,) = torch.autograd.grad(objective.sum(), leaf)
                best.offer(x, torch.where(excess > 0, -torch.inf, gap).detach())
                if not last:
                    x = self.move(x, gradient, step, images)
        return best.images


def train_magnet(
    classifier: nn.Module,
    clean: Tensor,
    rate: float = 0.05,
    seed: int = 0,
    progress: Progress = silent,
    steps: int | None = None,
) -> MagNet:
    """A MagNet for `classifier`, frozen, on the device of the clean images (N, C, H, W); a function of the arguments.

    The autoencoder learns to take Gaussian noise out of four fifths of the images (squared error, Adam, batches of 64);
    `steps` is 24 passes over them where it is not given, at most 5,000. The thresholds refuse at most a share `rate` of
    the last fifth. Raises InputError for fewer than ten images or a rate outside (0, 1).
    """
    clean = check_images(clean).detach().float()
    if not 0 < rate < 1:
        raise InputError(f"rate: expected a share of clean images between 0 and 1, got {rate!r}; 0.05 is usual")
    if len(clean) < 2 * HELD_OUT:
        raise InputError(f"clean: expected {2 * HELD_OUT} images or more to learn from, got {len(clean)}; give more")
    device, channels = clean.device, clean.shape[1]
    with initialised(seed, "magnet"):
        magnet = MagNet(classifier, channels)
    magnet = magnet.to(device)
    draw = generator(seed, "magnet images", device=device)
    order = torch.randperm(len(clean), generator=draw, device=device)
    held_out, learned = order[: len(clean) // HELD_OUT], order[len(clean) // HELD_OUT :]
    steps = min(STEPS, math.ceil(PASSES * len(learned) / BATCH)) if steps is None else steps
    autoencoder = magnet.autoencoder.requires_grad_()
    optimiser = torch.optim.Adam(autoencoder.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    for step in range(steps):
        images = clean[learned[torch.randint(len(learned), (BATCH,), generator=draw, device=device)]]
        noisy = images + NOISE[channels] * torch.empty_like(images).normal_(generator=draw)
        with torch.enable_grad():
            loss = F.mse_loss(autoencoder(noisy.clamp(0, 1)), images)
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            progress("magnet", step + 1, steps, f"error {loss.item():.5f}")
    optimiser.zero_grad()
    autoencoder.requires_grad_(False)
    with evaluating(magnet), torch.no_grad():
        scores = torch.cat([magnet.scores(part) for part in clean[held_out].split(500)])
    magnet.limits.copy_(limits(scores, rate))
    return magnet


def limits(scores: Tensor, rate: float) -> Tensor:
    """The detectors' thresholds (4,): at most a share `rate` of the images (rows of `scores`) is above one or another.

    Each detector may refuse the same number of images, the largest that keeps this promise.
    """
    ranked = scores.sort(0, descending=True)
    ranks = ranked.indices.argsort(0).amin(1)  # how far down the nearest detector finds each image
    each = int(ranks.sort().values[int(rate * len(scores))])
    return ranked.values[each].clamp_min(torch.finfo(scores.dtype).tiny)


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon divergence (N,) in nats between softmax(one) and softmax(other), logits (N, classes).

    In double precision: at a high temperature it is a small difference of large terms.
    """
    log_p, log_q = (F.log_softmax(logits.double(), 1) for logits in (one, other))
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    divergence = (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(1) / 2
    return divergence.to(one.dtype)
