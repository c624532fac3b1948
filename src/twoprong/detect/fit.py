"""Algorithm 1: find the kernel whose test tells clean from adversarial with the most power."""

import torch
from torch import Tensor

from twoprong.config import KernelConfig
from twoprong.detect.calibrate import centred, shares_of, statistics
from twoprong.detect.kernel import DeepKernel, Sample, squared_distances
from twoprong.detect.mmd import power_objective
from twoprong.errors import InputError
from twoprong.progress import Progress, silent
from twoprong.seeds import generator

SHARES = (0.05, 0.1, 0.3, 1.0)  # of adversarial images in the batches that kernels are compared on
BATCHES = 1000


def fit_kernel(
    clean: Sample, adversarial: Sample, config: KernelConfig, seed: int, progress: Progress = silent
) -> DeepKernel:
    """Ascend J by Adam on minibatches, from the median heuristic; the kernel comes back with its parameters frozen.

    With `config.ascent="paper"` it is Algorithm 1 as written (`_algorithm1`). In ours, a fifth of the images is kept aside,
    and the epoch with the highest J there, the start included, is the one returned: a
    start at which the test is nearly blind can lead the ascent astray. Clean and adversarial images are drawn independently.
    This is done for every width of `config.projections`, and the kernel with the most power on the fifth kept aside wins.
    """
    count = min(len(clean), len(adversarial))
    if count < 2:
        raise InputError(f"fit_kernel needs 2 or more images of each kind, got {len(clean)} and {len(adversarial)}")
    if config.ascent == "paper":
        return _algorithm1(clean, adversarial, config, seed, progress).requires_grad_(False)
    start, aside = clean, max(2, count // 5)
    judges = clean.rows(slice(aside)), adversarial.rows(slice(aside))
    if count >= 10:  # of fewer, none can be spared
        clean, adversarial = clean.rows(slice(aside, None)), adversarial.rows(slice(aside, None))
    pairs, judging = _Pairs(clean, adversarial), _Pairs(*judges)
    tried = []
    for number, width in enumerate(config.projections):
        stage = "kernel" if len(config.projections) == 1 else f"kernel {number + 1} of {len(config.projections)}"
        tried.append(_ascend(pairs, judging, start, width, config, seed, stage, progress))
    best = max(
        tried, key=lambda kernel: found_aside(kernel, clean, *judges, config.batch_size, seed)
    )  # ties go to the first
    return best.requires_grad_(False)


@torch.no_grad()
def found_aside(
    kernel: DeepKernel, reference: Sample, clean: Sample, adversarial: Sample, size: int, seed: int, rate: float = 0.05
) -> float:
    """The share of batches that the test finds at this rate of false alarms; they hold 5 % to 100 % adversarial images.

    Batches are drawn with replacement. So few images cannot say how well the test will do, only which kernel does better.
    """
    pool = Sample(torch.cat([clean.pixels, adversarial.pixels]), torch.cat([clean.features, adversarial.features]))
    u = centred(kernel(pool, pool), kernel(reference, pool))
    draw = generator(seed, "power")

    def measured(share: float) -> Tensor:
        many = round(share * size)
        calm = torch.randint(len(clean), (BATCHES, size - many), generator=draw)
        attacked = torch.randint(len(clean), len(pool), (BATCHES, many), generator=draw)
        return statistics(u, shares_of(torch.cat([calm, attacked], 1), len(pool)).to(u))

    threshold = torch.quantile(measured(0.0), 1 - rate)
    return sum((measured(share) > threshold).double().mean().item() for share in SHARES) / len(SHARES)


class _Pairs:
    """Two samples, with the distances of their pixels measured once: in every step they would be most of the work."""

    def __init__(self, clean: Sample, adversarial: Sample) -> None:
        self.features = clean.features.float(), adversarial.features.float()
        pixels = clean.pixels, adversarial.pixels
        self.apart = {(a, b): squared_distances(pixels[a], pixels[b]) for a, b in ((0, 0), (1, 1), (0, 1))}

    def power(self, kernel: DeepKernel, rows: tuple[Tensor | slice, Tensor | slice], scale: Tensor, floor: float) -> Tensor:
        """J on these rows of the two samples, the features divided by `scale`."""
        seen = [features[index] / scale for features, index in zip(self.features, rows, strict=True)]
        k_xx, k_yy, k_xy = (kernel.on(seen[a], seen[b], apart[rows[a]][:, rows[b]]) for (a, b), apart in self.apart.items())
        return power_objective(k_xx, k_yy, k_xy, floor)


def _algorithm1(clean: Sample, adversarial: Sample, config: KernelConfig, seed: int, progress: Progress) -> DeepKernel:
    """One minibatch an epoch and the last iterate. The bandwidths themselves are learned, and β0 ∈ (0, 1) by its logit."""
    device, scale = clean.features.device, torch.ones(()).to(clean.features)
    kernel = DeepKernel.from_median(clean, config.beta0, None, config.pixel_bandwidth).to(device)
    logs = kernel.log_feature_bandwidth, kernel.log_pixel_bandwidth
    bandwidths = [log.detach().exp().requires_grad_() for log in logs]
    optimiser = torch.optim.Adam([*bandwidths, kernel.logit_beta0], lr=config.lr)
    pairs, draw, count = _Pairs(clean, adversarial), generator(seed, "kernel"), min(len(clean), len(adversarial))
    size = min(config.batch_size, count)
    for epoch in range(config.epochs):
        rows, others = (torch.randperm(count, generator=draw)[:size].to(device) for _ in range(2))
        power = pairs.power(kernel, (rows, others), scale, config.regularisation)
        kernel.zero_grad()
        (-power).backward()
        for bandwidth, log in zip(bandwidths, logs, strict=True):
            assert log.grad is not None
            bandwidth.grad = log.grad / bandwidth.detach()
        optimiser.step()
        for bandwidth, log in zip(bandwidths, logs, strict=True):
            log.data = bandwidth.detach().clamp_min(1e-6).log()
        progress("kernel", epoch + 1, config.epochs, f"J {power.item():.3f}")
    kernel.zero_grad()
    return kernel


def _ascend(
    pairs: _Pairs,
    judging: _Pairs,
    start: Sample,
    width: int,
    config: KernelConfig,
    seed: int,
    stage: str,
    progress: Progress,
) -> DeepKernel:
    """One kernel, learned. A projection is learned on features of unit variance, and takes that scale in at the end."""
    device, scale, projection = start.features.device, torch.ones(()).to(start.features), None
    if width:
        scale = start.features.std(0)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        draw = generator(seed, "projection")
        projection = torch.randn(len(scale), width, generator=draw).to(scale) / len(scale) ** 0.5
    seen = Sample(start.pixels, start.features / scale)
    kernel = DeepKernel.from_median(seen, config.beta0, projection, config.pixel_bandwidth).to(device)
    draw = generator(seed, "kernel")
    optimiser = torch.optim.Adam(kernel.parameters(), lr=config.lr)
    counts = [len(features) for features in pairs.features]
    size = min(config.batch_size, *counts)
    best, kept = -torch.inf, {name: value.clone() for name, value in kernel.state_dict().items()}
    for epoch in range(config.epochs + 1):
        with torch.no_grad():
            now = judging.power(kernel, (slice(None), slice(None)), scale, config.regularisation).item()
        if now > best:
            best, kept = now, {name: value.clone() for name, value in kernel.state_dict().items()}
        if epoch == config.epochs:
            break
        orders = (torch.randperm(count, generator=draw).split(size) for count in counts)
        for i, j in zip(*orders, strict=False):
            if len(i) == len(j) == size:
                optimiser.zero_grad()
                rows = i.to(device), j.to(device)
                (-pairs.power(kernel, rows, scale, config.regularisation)).backward()
                optimiser.step()
        progress(stage, epoch + 1, config.epochs, f"J {now:.3f}")
    kernel.load_state_dict(kept)
    optimiser.zero_grad()
    if kernel.projection is not None:
        kernel.projection.data /= scale[:, None]
    return kernel
