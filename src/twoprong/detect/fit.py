"""Algorithm 1: find the kernel whose test tells clean from adversarial with the most power."""

import torch

from twoprong.config import KernelConfig
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import power_objective
from twoprong.errors import InputError
from twoprong.progress import Progress, silent
from twoprong.seeds import generator


def fit_kernel(
    clean: Sample, adversarial: Sample, config: KernelConfig, seed: int, progress: Progress = silent
) -> DeepKernel:
    """Ascend J by Adam on minibatches, from the median heuristic; the kernel comes back with its parameters frozen.

    A fifth of the images is kept aside, and the epoch with the highest J there, the start included, is the one returned: a
    start at which the test is nearly blind can lead the ascent astray. Clean and adversarial images are drawn independently.
    """
    if min(len(clean), len(adversarial)) < 2:
        raise InputError(f"fit_kernel needs 2 or more images of each kind, got {len(clean)} and {len(adversarial)}")
    kernel = DeepKernel.from_median(clean, config.beta0).to(clean.features.device)
    aside = max(2, min(len(clean), len(adversarial)) // 5)
    judges = clean.rows(slice(aside)), adversarial.rows(slice(aside))
    if min(len(clean), len(adversarial)) >= 10:  # of fewer, none can be spared
        clean, adversarial = clean.rows(slice(aside, None)), adversarial.rows(slice(aside, None))
    draw = generator(seed, "kernel")
    optimiser = torch.optim.Adam(kernel.parameters(), lr=config.lr)
    size = min(config.batch_size, len(clean), len(adversarial))
    best, kept = -torch.inf, {name: value.clone() for name, value in kernel.state_dict().items()}
    for epoch in range(config.epochs + 1):
        with torch.no_grad():
            now = power(kernel, *judges, config.regularisation).item()
        if now > best:
            best, kept = now, {name: value.clone() for name, value in kernel.state_dict().items()}
        if epoch == config.epochs:
            break
        orders = (torch.randperm(len(sample), generator=draw).split(size) for sample in (clean, adversarial))
        for i, j in zip(*orders, strict=False):
            if len(i) == len(j) == size:
                optimiser.zero_grad()
                (-power(kernel, clean.rows(i), adversarial.rows(j), config.regularisation)).backward()
                optimiser.step()
        progress("kernel", epoch + 1, config.epochs, f"J {now:.3f}")
    kernel.load_state_dict(kept)
    optimiser.zero_grad()
    return kernel.requires_grad_(False)


def power(kernel: DeepKernel, clean: Sample, adversarial: Sample, regularisation: float = 1e-8) -> torch.Tensor:
    """J of a kernel on two samples of one size."""
    return power_objective(
        kernel(clean, clean), kernel(adversarial, adversarial), kernel(clean, adversarial), regularisation
    )
