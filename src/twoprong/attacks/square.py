"""Square (Andriushchenko et al. 2020): random search with squares, without a single gradient."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.apgd import Survivors
from twoprong.attacks.base import Attack
from twoprong.attacks.losses import mean_margin
from twoprong.attacks.target import Target
from twoprong.config import Count, NotNegative

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of the share of pixels, in steps out of 10,000
TILES = 5  # a side of the first l2 perturbation
SMALL = 1e-12


@dataclass(frozen=True, kw_only=True)
class Square(Attack):
    """Changes one random square of an image at a time and keeps the change if the margin rises; `steps` queries an image.

    linf: stripes of ±ε, then squares of ±ε per channel. l2: tiles of opposed bumps, then such a bump is put into one square
    and paid for by clearing another. The square's share of the image begins at `p_init` and falls by the paper's schedule,
    rescaled to `steps`. Where images are judged one by one, each is done when it is misclassified; behind a batch test all
    images are changed at once and the change is kept if the batch is better for it: more images across, then the higher
    mean margin. `draws` is the number of noise draws the margin is averaged over.
    """

    steps: Count = 5000
    p_init: NotNegative = 0.8
    draws: Count = 1

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        best = Survivors(target, images)
        best.offer(images, self._margins(target, images, labels, generator))
        first, propose = PROPOSALS[self.norm]
        index = best.left
        if len(index) == 0:
            return best.images
        original, own = images[index], labels[index]
        search = Survivors(target, original)  # apart from `best`: the search begins at the first pattern, good or bad
        x = self.ball.project(original + first(original, self.eps, generator), original, self.eps)
        search.offer(x, self._margins(target, x, own, generator))
        for step in range(1, self.steps):
            left = search.left
            if len(left) == 0:
                break
            at = original[left]
            delta = propose(search.images[left] - at, share(step, self.steps, self.p_init), self.eps, generator)
            x = self.ball.project(at + delta, at, self.eps)
            search.offer_at(left, x, self._margins(target, x, own[left], generator))
        best.offer_at(index, search.images, search.score)
        return best.images

    @torch.no_grad()
    def _margins(self, target: Target, x: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        return mean_margin(target.logits(x, None, self.draws, generator), labels)


def share(step: int, steps: int, p_init: float) -> float:
    """The share of pixels to change at a step: `p_init`, halved at every one of HALVINGS that is behind."""
    scaled = int(step / steps * 10_000)
    return p_init / 2 ** sum(scaled > limit for limit in HALVINGS)


def stripes(images: Tensor, eps: float, generator: torch.Generator | None) -> Tensor:
    """Vertical stripes of ±ε, one pixel wide."""
    return eps * _signs(images[:, :, :1, :], generator).expand_as(images)


def linf_square(delta: Tensor, p: float, eps: float, generator: torch.Generator | None) -> Tensor:
    """The perturbation with one square of ±ε, the sign drawn by channel."""
    side = _side(p, delta)
    window = _window(delta, side, generator)[0]
    return torch.where(window, eps * _signs(delta[:, :, :1, :1], generator), delta)


def tiles(images: Tensor, eps: float, generator: torch.Generator | None) -> Tensor:
    """A grid of opposed bumps, signs at random, scaled to ε; a margin is left where the grid does not divide the image."""
    height, width = images.shape[2:]
    across = min(TILES, height, width)
    side = min(height, width) // across
    pattern = opposed_bumps(side, images)
    grid = _signs(images[:, :, :1, :1].expand(-1, -1, across, across), generator)
    tiled = (grid[:, :, :, None, :, None] * pattern[:, None, :]).reshape(*images.shape[:2], across * side, across * side)
    top, left = (height - across * side) // 2, (width - across * side) // 2
    delta = torch.zeros_like(images)
    delta[:, :, top : top + across * side, left : left + across * side] = tiled
    return _scaled(delta, eps)


def l2_square(delta: Tensor, p: float, eps: float, generator: torch.Generator | None) -> Tensor:
    """The perturbation with one square cleared and its norm, with what ε leaves unused, put into another."""
    side = _odd(max(_side(p, delta), 3), delta)
    there, rows, columns = _window(delta, side, generator)
    cleared = _window(delta, side, generator)[0]
    pattern = opposed_bumps(side, delta)
    turned = torch.rand(len(delta), 1, 1, 1, generator=generator, device=delta.device) < 0.5
    bump = torch.where(turned, pattern.T[rows, columns], pattern[rows, columns])
    bump = bump / _channel_norm(bump).clamp_min(SMALL) * _signs(delta[:, :, :1, :1], generator)
    old = torch.where(there, delta, 0)
    new = torch.where(there, bump + old / _channel_norm(old).clamp_min(SMALL), 0)
    unused = (eps**2 - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0) / delta.shape[1]
    available = (torch.where(there | cleared, delta, 0).square().sum((2, 3), keepdim=True) + unused).sqrt()
    new = new / _channel_norm(new).clamp_min(SMALL) * available
    return _scaled(torch.where(there, new, torch.where(cleared, 0, delta)), eps)


def opposed_bumps(side: int, like: Tensor) -> Tensor:
    """η (side, side): one bump in the upper half, its negative in the lower, of unit norm; a single pixel is 1."""
    if side == 1:
        return torch.ones(1, 1, dtype=like.dtype, device=like.device)
    upper = side // 2
    both = torch.cat([bump(upper, side, like), -bump(side - upper, side, like)])
    return both / both.norm()


def bump(height: int, width: int, like: Tensor) -> Tensor:
    """η_rs = Σ_{k=0}^{M(r,s)} 1/(n+1-k)², n = ⌊max(height, width)/2⌋, M = n - max(|r - centre|, |s - centre|)."""
    n = max(height, width) // 2
    rows = (torch.arange(height, device=like.device) - height // 2).abs()
    columns = (torch.arange(width, device=like.device) - width // 2).abs()
    ring = torch.maximum(rows[:, None], columns[None])  # n at the rim, 0 in the middle: one term per ring crossed
    terms = 1 / torch.arange(n + 1, 0, -1, dtype=like.dtype, device=like.device).square()
    return terms.cumsum(0)[n - ring]


Propose = Callable[[Tensor, float, float, torch.Generator | None], Tensor]
First = Callable[[Tensor, float, torch.Generator | None], Tensor]
PROPOSALS: dict[str, tuple[First, Propose]] = {"linf": (stripes, linf_square), "l2": (tiles, l2_square)}


def _window(delta: Tensor, side: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
    """A square at a random place of every image: where it is (N, 1, H, W), and every pixel's row and column in it."""
    n, height, width = len(delta), *delta.shape[2:]
    places = []
    for extent, shape in ((height, (n, 1, height, 1)), (width, (n, 1, 1, width))):
        first = torch.randint(extent - side + 1, (n, 1), generator=generator, device=delta.device)
        places.append((torch.arange(extent, device=delta.device) - first).view(shape))
    rows, columns = places
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    return inside, rows.clamp(0, side - 1), columns.clamp(0, side - 1)


def _side(p: float, delta: Tensor) -> int:
    height, width = delta.shape[2:]
    return min(max(round((p * height * width) ** 0.5), 1), height, width)


def _odd(side: int, delta: Tensor) -> int:
    """The next odd side, or the largest odd one that fits."""
    most = min(delta.shape[2:])
    return min(side | 1, most if most % 2 else max(most - 1, 1))


def _signs(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randint(2, like.shape, generator=generator, device=like.device).to(like.dtype) * 2 - 1


def _channel_norm(delta: Tensor) -> Tensor:
    return delta.square().sum((2, 3), keepdim=True).sqrt()


def _scaled(delta: Tensor, eps: float) -> Tensor:
    return delta * (eps / delta.square().sum((1, 2, 3), keepdim=True).sqrt().clamp_min(SMALL))
