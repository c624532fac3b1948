"""Who in a flagged batch is it: a score for every image, and the images that are blamed.

The score is the log-odds that an image is attacked, linear in its texture (`texture.py`) and in its mean kernel with the
reference. It is learned on the images that the kernel was learned on, clean and attacked with the whole change and with
parts of it, so that small changes are known, too. It judges an image by itself: of a batch of one it is the statistic.

An image is blamed if its score reaches the limit. Then the rest must pass the test at its own size: until it does, the image
with the largest witness is blamed as well. So nobody is classified as clean who would not have passed the test without the
suspects, whatever became of the scores; where no rest passes, all are blamed. So they are where two thirds are: in a batch
that somebody filled with attacked images, the few that are not found are no better. So they are, too, where rounding lets
the whole batch pass here that the test has flagged.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from twoprong.detect.kernel import Sample
from twoprong.detect.texture import patch_directions, texture
from twoprong.errors import InputError

STRENGTHS = (1.0, 0.5, 0.25)  # parts of an attack's change that the score is learned from
RIDGE = 1e-3  # on coefficients of columns with unit variance
MOST = 2 / 3  # of a batch may be blamed before all are
NEWTON = 50  # steps at most; a handful is enough


class Blame(nn.Module):
    """The score of an image, and the limit at which a flagged batch's images are blamed. Both are learned elsewhere."""

    filters: Tensor  # (filters, C, height, width) of the texture
    weights: Tensor  # (filters + 2,): of the texture, of the mean kernel with the reference, and the constant
    limit: Tensor  # a number

    def __init__(self, filters: Tensor, weights: Tensor, limit: Tensor) -> None:
        super().__init__()
        for name, value in (("filters", filters), ("weights", weights), ("limit", limit)):
            self.register_buffer(name, value)

    @classmethod
    def from_state(cls, state: dict[str, Tensor], pixels: Tensor) -> "Blame | None":
        """The score among the tensors of a detector of images like `pixels`; None where there is none, as in older bundles.

        Raises InputError for tensors that do not fit together.
        """
        if not any(name.startswith("blame.") for name in state):
            return None
        filters, weights, limit = (state[f"blame.{name}"] for name in ("filters", "weights", "limit"))
        shape = tuple(filters.shape)
        fits = filters.ndim == pixels.ndim == 4 and len(filters) == filters[0].numel() and shape[1] == pixels.shape[1]
        if not fits or any(side > most for side, most in zip(shape[2:], pixels.shape[2:], strict=True)):
            raise InputError(f"not a detector's tensors: filters of {shape} for images of {tuple(pixels.shape[1:])}")
        if weights.shape != (len(filters) + 2,) or limit.ndim:
            raise InputError(f"not a detector's tensors: {tuple(weights.shape)} weights, limit {tuple(limit.shape)}")
        return cls(filters, weights, limit)

    def score(self, pixels: Tensor, near: Tensor) -> Tensor:
        """Log-odds (N,) of being attacked, differentiable; `near` is each image's mean kernel with the reference."""
        return texture(pixels, self.filters) @ self.weights[:-2] + self.weights[-2] * near + self.weights[-1]


class Examples(NamedTuple):
    """What the score is learned from: images, and the same attacked, one strength after the other."""

    clean: Sample
    attacked: Sample


def weaker(clean: Tensor, attacked: Tensor) -> Tensor:
    """Attacked images with the whole change and with parts of it, one strength after the other."""
    return torch.cat([clean + strength * (attacked - clean) for strength in STRENGTHS])


def learn_score(clean: Tensor, near_clean: Tensor, attacked: Tensor, near_attacked: Tensor) -> tuple[Tensor, Tensor]:
    """Filters and weights of `Blame`: logistic regression, clean against attacked, each kind with half of the weight.

    Newton's method in float64. `near_…` are the mean kernels with the reference.
    """
    filters = patch_directions(clean)
    kinds = (clean, near_clean), (attacked, near_attacked)
    columns = [torch.cat([texture(images, filters), near[:, None]], 1) for images, near in kinds]
    x = torch.cat(columns).double()
    mean, scale = x.mean(0), x.std(0).clamp_min(1e-12)
    z = torch.cat([(x - mean) / scale, torch.ones_like(x[:, :1])], 1)
    truth = torch.cat([torch.full((len(part),), float(kind)) for kind, part in enumerate(columns)]).to(z)
    counted = torch.cat([torch.full((len(part),), 0.5 / len(part)) for part in columns]).to(z)
    ridge = RIDGE * torch.eye(z.shape[1]).to(z)
    ridge[-1, -1] = 0
    found = torch.zeros_like(z[0])
    for _ in range(NEWTON):
        odds = (z @ found).sigmoid()
        slope = z.T @ (counted * (odds - truth)) + ridge @ found
        bend = (z * (counted * odds * (1 - odds))[:, None]).T @ z + ridge
        step = torch.linalg.solve(bend, slope)
        found = found - step
        if step.abs().max() < 1e-9:
            break
    weights = found[:-1] / scale
    return filters, torch.cat([weights, (found[-1] - weights @ mean)[None]]).float()


class Batch(NamedTuple):
    """What is known of a batch: scores, mean kernels with the reference, kernel within, the reference's own mean kernel."""

    scores: Tensor
    near: Tensor
    k: Tensor
    within: Tensor


def blamed(batch: Batch, limit: float, flags: Callable[[float, int], bool], sizes: range) -> Tensor:
    """The mask of the images of a flagged batch that are blamed: one at least. `flags` judges a statistic of a batch of a
    size, which is one of `sizes`."""
    smallest = max(2, sizes[0])
    found = ~(batch.scores < limit)  # what is no number, too
    rest = (~found).nonzero().squeeze(1)
    k, near = batch.k[rest][:, rest].double().fill_diagonal_(0), batch.near[rest].double()
    order = (k.mean(1) - near).argsort()
    k, near, rest = k[order][:, order], near[order], rest[order]
    counts = torch.arange(1, len(rest) + 1, device=k.device, dtype=k.dtype)
    pairs = 2 * k.tril(-1).sum(1).cumsum(0) / (counts * (counts - 1)).clamp_min(1)
    values = (batch.within + pairs - 2 * near.cumsum(0) / counts).tolist()
    kept = next((count for count in range(len(rest), smallest - 1, -1) if not flags(values[count - 1], count)), 0)
    found[rest[kept:]] = True
    return found if 0 < found.double().mean() <= MOST else torch.ones_like(found)
