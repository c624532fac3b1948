"""Algorithm 2: train the denoiser against a kernel and the classifier."""

from collections.abc import Callable

import torch
from torch import Tensor

from twoprong.checkpoint import Checkpoint
from twoprong.config import DenoiserConfig
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.models.dunet import DUNet
from twoprong.models.fast import Compiler
from twoprong.models.features import Features
from twoprong.models.layout import channels_last
from twoprong.models.modes import evaluating
from twoprong.models.precision import Precision, compiler_for, computing
from twoprong.progress import Progress, silent
from twoprong.purify.loss import add_noise, denoiser_loss
from twoprong.seeds import generator, initialised


def train_denoiser(
    clean: Sample,
    adversarial: Tensor,
    labels: Tensor,
    features: Features,
    kernel: DeepKernel,
    config: DenoiserConfig,
    seed: int,
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
    precision: Precision = "fp32",
) -> DUNet:
    """A DUNet, in eval mode and frozen. Adam, rate ÷10 at the milestones, minibatches reshuffled every epoch.

    `clean` and `adversarial` are the same images before and after the attack; a share of each batch may stay clean. A
    checkpoint is written after every epoch.
    With "bf16" the denoiser computes in it (its weights and the loss stay in float32), compiled on a GPU.
    """
    device, count = adversarial.device, len(labels)
    with initialised(seed, "denoiser"):
        denoiser = DUNet(adversarial.shape[1], config.width)
    denoiser = channels_last(denoiser.to(device))
    optimiser = torch.optim.Adam(denoiser.parameters(), lr=config.lr, fused=device.type == "cuda")
    draw = generator(seed, "denoiser noise", device=device)
    done = checkpoint.load(denoiser, optimiser, draw) if checkpoint else 0
    size = min(config.batch_size, count)
    loss_of = objective(denoiser, features, kernel, config, precision, compiler_for(precision, adversarial))
    with evaluating(features.classifier):
        for epoch in range(done, config.epochs):
            for group in optimiser.param_groups:
                group["lr"] = config.lr * 0.1 ** sum(epoch >= share * config.epochs for share in config.milestones)
            total = torch.zeros((), device=device)
            batches = torch.randperm(count, generator=draw, device=device).split(size)[: count // size]
            for batch in batches:
                optimiser.zero_grad()
                spared = round(config.clean_share * size)  # batches are in random order
                before = torch.cat([clean.pixels[batch[:spared]], adversarial[batch[spared:]]])
                noisy = add_noise(before, config, draw)
                loss = loss_of(noisy, *clean.rows(batch), labels[batch])
                loss.backward(inputs=list(denoiser.parameters()))
                optimiser.step()
                total += loss.detach()
            if checkpoint:
                checkpoint.save(epoch + 1, denoiser, optimiser, draw)
            progress("denoiser", epoch + 1, config.epochs, f"loss {total.item() / len(batches):.4f}")
    optimiser.zero_grad()
    return denoiser.eval().requires_grad_(False)


def objective(
    denoiser: DUNet,
    features: Features,
    kernel: DeepKernel,
    config: DenoiserConfig,
    precision: Precision,
    compiler: Compiler | None,
) -> Callable[..., Tensor]:
    """From noisy images, what the kernel sees of the clean ones (pixels, features) and labels to the loss of a step."""

    def loss_of(noisy: Tensor, pixels: Tensor, deep: Tensor, labels: Tensor) -> Tensor:
        with computing(precision, noisy.device):
            denoised = denoiser(noisy)
        if config.clamp:
            denoised = denoised.clamp(0, 1)
        clean = Sample(pixels, deep)
        return denoiser_loss(denoised, clean, labels, features, kernel, config.alpha, config.estimator)

    # As one graph: the launches of the loss alone would take a fifth of a step. A classifier that is not ours is listened to
    # by hooks, and a graph that breaks there has no gradients for the denoiser (seen with torch 2.11).
    return compiler(loss_of, mode="reduce-overhead") if compiler is not None and features.handed_over else loss_of
