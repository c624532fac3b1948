"""The deep kernel of MMD-OPT (Liu et al. 2020; paper eq. 3)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Sample(NamedTuple):
    """What the kernel sees of n images: their pixels and a classifier's penultimate features, one row an image."""

    pixels: Tensor
    features: Tensor

    def __len__(self) -> int:  # rows, not fields: a Sample stands for its images
        return self.pixels.shape[0]

    def rows(self, index: Tensor | slice) -> "Sample":
        return Sample(self.pixels[index], self.features[index])


class DeepKernel(nn.Module):
    """k(x,z) = [(1 - β0)·s(φ(x)·P, φ(z)·P) + β0]·q(x,z), with s and q Gaussian: exp(-d² / 2σ²); values in (0, 1].

    The paper's kernel has no projection P of the features; ours may have one (features × width), learned with the rest. The
    three scalars are learned without constraint (log bandwidths, the logit of β0) and shown constrained.
    Everything here is computed in float32 or better, whatever the inputs are and even inside an autocast region. Distances
    of features are taken from their `centre`, which a detector sets: a batch's own mean would be the place of its largest
    image, and cost all others their digits.
    """

    centre: Tensor | None

    def __init__(
        self,
        feature_bandwidth: float = 1.0,
        pixel_bandwidth: float = 1.0,
        beta0: float = 0.1,
        projection: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.log_feature_bandwidth = nn.Parameter(torch.tensor(feature_bandwidth).log())
        self.log_pixel_bandwidth = nn.Parameter(torch.tensor(pixel_bandwidth).log())
        self.logit_beta0 = nn.Parameter(torch.tensor(beta0).logit())
        self.projection = None if projection is None else nn.Parameter(projection)
        self.register_buffer("centre", None, persistent=False)

    @classmethod
    def from_median(
        cls, sample: Sample, beta0: float = 0.1, projection: Tensor | None = None, pixel_bandwidth: float | None = None
    ) -> "DeepKernel":
        """A kernel at the median heuristic: k = 1/e at the median distance, for features and (unless given) for pixels."""
        seen = sample.features if projection is None else sample.features @ projection
        return cls(median_bandwidth(seen), pixel_bandwidth or median_bandwidth(sample.pixels), beta0, projection)

    @property
    def feature_bandwidth(self) -> Tensor:
        return self.log_feature_bandwidth.exp()

    @property
    def pixel_bandwidth(self) -> Tensor:
        return self.log_pixel_bandwidth.exp()

    @property
    def beta0(self) -> Tensor:
        return self.logit_beta0.sigmoid()

    def forward(self, x: Sample, z: Sample) -> Tensor:
        """The Gram matrix k(x_i, z_j), of shape (len(x), len(z))."""
        with torch.autocast(x.pixels.device.type, enabled=False):
            return self.on(x.features, z.features, squared_distances(x.pixels, z.pixels))

    def on(self, x: Tensor, z: Tensor, apart: Tensor) -> Tensor:
        """The same from features, and squared distances of pixels that are known already."""
        with torch.autocast(x.device.type, enabled=False):
            similar = gaussian(squared_distances(self._seen(x), self._seen(z), self.centre), self.feature_bandwidth)
            return ((1 - self.beta0) * similar + self.beta0) * gaussian(apart, self.pixel_bandwidth)

    def centred_at(self, features: Tensor) -> "DeepKernel":
        """This kernel, taking distances from the mean of these features from now on: the same one, up to rounding."""
        with torch.no_grad():
            self.centre = self._seen(features).mean(0)
        return self

    def measurable(self, features: Tensor) -> Tensor:
        """Which images (N,) have distances to others: squares of their features that are finite, with room for sums."""
        seen = self._seen(features)
        return (4 * (seen if self.centre is None else seen - self.centre).float().square().sum(1)).isfinite()

    def _seen(self, features: Tensor) -> Tensor:
        if self.projection is None:
            return features
        return features.to(torch.promote_types(features.dtype, torch.float32)) @ self.projection


def gaussian(squared: Tensor, bandwidth: Tensor) -> Tensor:
    return torch.exp(-squared / (2 * bandwidth**2))


def squared_distances(x: Tensor, z: Tensor, centre: Tensor | None = None) -> Tensor:
    """|x_i - z_j|² as one matrix product. Rows are centred first, by default at the mean of `z`, which keeps the subtraction
    of large numbers small."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, z.dtype), torch.float32)
    x, z = x.flatten(1).to(dtype), z.flatten(1).to(dtype)
    centre = z.mean(0).detach() if centre is None else centre
    x, z = x - centre, z - centre
    squared = x.square().sum(1)[:, None] + z.square().sum(1)[None, :] - 2 * (x @ z.T)
    return squared.clamp_min(0)


def median_bandwidth(rows: Tensor, most: int = 1000) -> float:
    """The σ for which exp(-d²/2σ²) is 1/e at the median distance between rows; 1 where all rows are the same."""
    rows = rows[:most]
    i, j = torch.triu_indices(len(rows), len(rows), offset=1, device=rows.device)
    median = squared_distances(rows, rows)[i, j].median().item() if len(rows) > 1 else 0.0
    return (median / 2) ** 0.5 or 1.0
