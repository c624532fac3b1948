"""FAB (Croce & Hein 2020, "Minimally distorted adversarial examples"), targeted: the shortest way across a boundary."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.apgd import Survivors, likeliest_wrong, margin_to
from twoprong.attacks.base import Attack, loss_gradient
from twoprong.attacks.losses import mean_margin
from twoprong.attacks.target import Target
from twoprong.config import Count, NotNegative

BISECTIONS = 3  # of the final search between the image and the nearest point across


@dataclass(frozen=True, kw_only=True)
class FABT(Attack):
    """For each of the `targets` likeliest wrong classes, the nearest misclassified point; those beyond ε do not count.

    The boundary z_t = z_y is linearised at x; δ and δ₀ are the shortest ways from x and from the image x₀ onto it inside
    [0,1]. x ← (1-α)(x + ηδ) + α(x₀ + ηδ₀) with α = min(‖δ‖/(‖δ‖+‖δ₀‖), alpha_max), and where that is across it is pulled
    back to x₀ + β(x - x₀). Further restarts begin at random points of half the ball. Behind a batch test the whole batch
    moves together and the nearest points of all images are tried as one batch. Images without success stay as they are.
    """

    steps: Count = 100
    restarts: Count = 1
    targets: Count = 9
    alpha_max: NotNegative = 0.1
    eta: NotNegative = 1.05
    beta: NotNegative = 0.9

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        with torch.no_grad():
            logits = target.logits(images, generator=generator)
        best = Survivors(target, images)
        best.offer(images, mean_margin(logits, labels))
        for restart in range(self.restarts):
            for aims in likeliest_wrong(logits.mean(0), labels, self.targets):
                index = best.left
                if len(index) == 0:
                    return best.images
                origin, own = images[index], labels[index]
                start = self._start(origin, restart, generator)
                found = self._search(target, start, origin, own, aims[index], generator)
                best.offer_at(index, found, self._margins(target, found, own, generator))
        if target.coupled:
            return best.images
        return torch.where((best.score > 0)[:, None, None, None], best.images, images)

    def _start(self, origin: Tensor, restart: int, generator: torch.Generator | None) -> Tensor:
        if restart == 0:
            return origin
        return self.ball.project(origin + self.ball.random(origin, self.eps / 2, generator), origin, self.eps)

    def _search(
        self,
        target: Target,
        x: Tensor,
        origin: Tensor,
        labels: Tensor,
        aims: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """The nearest point across of every image, or the image itself where none was found within ε."""
        nearest = torch.full_like(origin[:, 0, 0, 0], torch.inf)
        found = origin
        for _ in range(self.steps):
            value, gradient = self._boundary(target, x, labels, aims, generator)
            x = self._approach(x, origin, value, gradient)
            across = self._margins(target, x, labels, generator) > 0
            distance = self.ball.size(x - origin)
            closer = across & (distance < nearest)
            found, nearest = torch.where(_wide(closer), x, found), torch.where(closer, distance, nearest)
            x = torch.where(_wide(across), origin + self.beta * (x - origin), x)
        return self._tighten(target, found, origin, labels, generator)

    def _approach(self, x: Tensor, origin: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """One step towards the linearised boundary, with a bias towards the image."""
        delta = shortest_way(x, gradient, -value, self.norm)
        rise = (gradient * (origin - x)).flatten(1).sum(1)
        delta_origin = shortest_way(origin, gradient, -value - rise, self.norm)
        size, size_origin = self.ball.size(delta), self.ball.size(delta_origin)
        alpha = _wide((size / (size + size_origin).clamp_min(1e-12)).clamp_max(self.alpha_max))
        return ((1 - alpha) * (x + self.eta * delta) + alpha * (origin + self.eta * delta_origin)).clamp(0, 1)

    def _tighten(
        self, target: Target, found: Tensor, origin: Tensor, labels: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Bisects between image and found point, and drops what is still too far."""
        way = found - origin
        low, high = torch.zeros_like(way[:, 0, 0, 0]), torch.ones_like(way[:, 0, 0, 0])
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            across = self._margins(target, origin + _wide(middle) * way, labels, generator) > 0
            low, high = torch.where(across, low, middle), torch.where(across, middle, high)
        found = origin + _wide(high) * way
        return torch.where(_wide(self.ball.size(found - origin) <= self.eps), found, origin)

    def _boundary(
        self, target: Target, x: Tensor, labels: Tensor, aims: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """z_t - z_y and its gradient, from one pass."""
        look = loss_gradient(target, x, labels, lambda logits, labels: margin_to(logits, labels, aims), generator)
        return look.loss, look.gradient

    @staticmethod
    @torch.no_grad()
    def _margins(target: Target, x: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        return mean_margin(target.logits(x, generator=generator), labels)


def shortest_way(x: Tensor, slope: Tensor, rise: Tensor, norm: str) -> Tensor:
    """The smallest δ with <slope, δ> = rise and x + δ in [0,1], image by image; where none will do, the closest to it.

    Every pixel goes the way that helps, by min(τ·v, room), room being what [0,1] leaves it and v = 1 for linf, |slope| for
    l2. The rise is then a rising, piecewise linear function of τ with a kink wherever a pixel runs out of room; sorting the
    kinks finds the piece, and the τ on it, exactly.
    """
    flat = slope.flatten(1) * torch.where(rise < 0, -1, 1)[:, None]
    scale = flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    flat, need = flat / scale, (rise.abs()[:, None] / scale).clamp_max(torch.finfo(flat.dtype).max)
    room = torch.where(flat > 0, 1 - x.flatten(1), x.flatten(1)).clamp_min(0)
    weight = flat.abs()
    speed = torch.ones_like(weight) if norm == "linf" else weight
    kinks, order = torch.where(weight > 0, room / speed.clamp_min(1e-30), 0).sort(1)
    used = (weight * room).gather(1, order).cumsum(1)  # by pixels that have run out of room, up to each kink
    rates = (weight * speed).gather(1, order)
    running = rates.flip(1).cumsum(1).flip(1)  # the rise per τ before each kink
    gain = used - (weight * room).gather(1, order) + kinks * running  # the rise reached at each kink
    piece = (gain < need).sum(1, keepdim=True).clamp_max(gain.shape[1] - 1)
    before = (used.gather(1, piece) - (weight * room).gather(1, order).gather(1, piece)).clamp_min(0)
    tau = (need - before) / running.gather(1, piece).clamp_min(1e-30)
    tau = torch.where(gain[:, -1:] < need, torch.inf, tau.clamp_min(0))
    delta = flat.sign() * torch.minimum(torch.where(speed > 0, tau * speed, 0), room)
    return delta.view_as(x)


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None, None]
