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

    Clean and adversarial minibatches are drawn independently of each other. All of it is a function of the arguments.
    """
    kernel = DeepKernel.from_median(clean, config.beta0).to(clean.features.device)
    if len(clean) < 2 or len(adversarial) < 2:
        raise InputError(f"fit_kernel needs 2 or more images of each kind, got {len(clean)} and {len(adversarial)}")
    draw = generator(seed, "kernel")
    optimiser = torch.optim.Adam(kernel.parameters(), lr=config.lr)
    size = min(config.batch_size, len(clean), len(adversarial))
    for epoch in range(config.epochs):
        batches = zip(
            torch.randperm(len(clean), generator=draw).split(size),
            torch.randperm(len(adversarial), generator=draw).split(size),
            strict=False,
        )
        for i, j in batches:
            if len(i) < size or len(j) < size:
                continue
            objective = power(kernel, clean.rows(i), adversarial.rows(j), config.regularisation)
            optimiser.zero_grad()
            (-objective).backward()
            optimiser.step()
        progress("kernel", epoch + 1, config.epochs, f"J {objective.item():.3f}")
    return kernel.requires_grad_(False)


def power(kernel: DeepKernel, clean: Sample, adversarial: Sample, regularisation: float = 1e-8) -> torch.Tensor:
    """J of a kernel on two samples of one size."""
    return power_objective(
        kernel(clean, clean), kernel(adversarial, adversarial), kernel(clean, adversarial), regularisation
    )
