"""C&W (Carlini & Wagner 2017): the smallest perturbation in l2 that crosses the boundary, here held inside a ball."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import margin
from twoprong.attacks.target import Target
from twoprong.config import Count, NotNegative, Positive

BOX = 0.9  # how far along tanh black and white lie: at 1 they would be at infinity, where no pixel ever moves again
NOT_ACROSS = 1e3  # ranks every image that is not across below every one that is; above any distance between two images


@dataclass(frozen=True, kw_only=True)
class CW(Attack):
    """min |δ|² + c·max(κ - margin, 0) by Adam on w, the images being (tanh(w)/BOX + 1)/2; binary search for c.

    The successful iterate nearest to the image (in the attack's norm) is kept, or else the one of the largest margin; what
    lies outside the ball is projected onto it. Behind a batch test all images share one c, and the batch is kept whole.
    Deterministic on a deterministic target.
    """

    steps: Count = 100
    searches: Count = 5
    c: Positive = 0.1
    lr: Positive = 0.01
    kappa: NotNegative = 0.0

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        best = Best(target, images)
        c = torch.full((1 if target.coupled else len(images),), self.c, dtype=images.dtype, device=images.device)
        low, high = torch.zeros_like(c), torch.full_like(c, torch.inf)
        for _ in range(self.searches):
            across = self._descend(target, images, labels, generator, c, best)
            low, high = torch.where(across, low, c), torch.where(across, c, high)
            c = torch.where(high.isinf(), 10 * c, (low + high) / 2)
        return best.images

    def _descend(
        self,
        target: Target,
        images: Tensor,
        labels: Tensor,
        generator: torch.Generator | None,
        c: Tensor,
        best: Best,
    ) -> Tensor:
        """One descent from the images; says for which c it was successful."""
        w = torch.atanh(BOX * (2 * images - 1)).requires_grad_()
        adam = torch.optim.Adam([w], lr=self.lr)
        successful = torch.zeros_like(c, dtype=torch.bool)
        for _ in range(self.steps):
            with torch.enable_grad():
                x = in_box(w)
                margins = margin(target.logits(x, generator=generator)[0], labels)
                distortion = (x - images).flatten(1).square().sum(1)
                (w.grad,) = torch.autograd.grad((distortion + c * (self.kappa - margins).clamp_min(0)).sum(), w)
            adam.step()
            x, margins = x.detach(), margins.detach()
            across = (margins > 0) & (margins >= self.kappa)
            # Above 0 exactly where an image is across inside the ball: what `Best` counts first on a coupled batch.
            best.offer(x, torch.where(across, self.eps - self.ball.size(x - images), margins - self.kappa - NOT_ACROSS))
            successful |= across.all() if target.coupled else across
        return successful


def in_box(w: Tensor) -> Tensor:
    """Images in [0, 1] from unconstrained w; what tanh reaches beyond is clipped, unseen by the gradient."""
    x = (torch.tanh(w) / BOX + 1) / 2
    return x + (x.clamp(0, 1) - x).detach()
