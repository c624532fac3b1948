"""Training of a named classifier where no weights are given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twoprong.checkpoint import Checkpoint
from twoprong.config import ClassifierConfig
from twoprong.data.tensors import Labelled
from twoprong.models.layout import channels_last
from twoprong.models.precision import Precision, compiler_for, computing
from twoprong.models.zoo import build
from twoprong.progress import Progress, silent
from twoprong.seeds import derive, generator, initialised

# Given a model in training mode, a batch and the training's generator: leaves gradients in the model's parameters (which
# come without any) and hands back the loss.
Objective = Callable[[nn.Module, Labelled, torch.Generator], Tensor]


def natural(model: nn.Module, batch: Labelled, draw: torch.Generator) -> Tensor:
    """The objective of ordinary training: cross-entropy on the images as they are."""
    loss = F.cross_entropy(model(batch.images), batch.labels)
    loss.backward()
    return loss.detach()


def train_classifier(
    name: str,
    classes: int,
    data: Labelled,
    config: ClassifierConfig,
    seed: int,
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
    objective: Objective = natural,
    precision: Precision = "fp32",
) -> nn.Module:
    """The named classifier, trained on `data` by SGD with Nesterov momentum; in eval mode, frozen.

    A function of the arguments. A checkpoint is written after every epoch. With "bf16" it computes in it (weights stay in
    float32), and ordinary training is compiled on a GPU.
    """
    device = data.images.device
    with initialised(seed, "classifier"):
        model = build(name, classes, data.images.shape[1])
    model = channels_last(model.to(device))
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=0.9,
        nesterov=True,
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",
    )
    draw = generator(seed, "classifier order", device=device)
    done = checkpoint.load(model, optimiser, draw) if checkpoint else 0
    size = min(config.batch_size, len(data))
    per_epoch, rate = len(data) // size, SCHEDULES[config.schedule]
    compiler = compiler_for(precision, data.images) if objective is natural else None
    forward = model if compiler is None else cast(nn.Module, compiler(model, mode="reduce-overhead"))
    model.train()
    for epoch in range(done, config.epochs):
        order = torch.randperm(len(data), generator=draw, device=device)
        total = torch.zeros((), device=device)
        with dropping(device, seed, epoch):
            for step in range(per_epoch):
                batch = data[order[step * size : (step + 1) * size]]
                if config.augment:
                    batch = Labelled(augment(batch.images, draw), batch.labels)
                for group in optimiser.param_groups:
                    group["lr"] = config.lr * rate((epoch * per_epoch + step) / (config.epochs * per_epoch))
                optimiser.zero_grad()
                with computing(precision, device):
                    total += objective(forward, batch, draw)
                optimiser.step()
        if checkpoint:
            checkpoint.save(epoch + 1, model, optimiser, draw)
        progress("classifier", epoch + 1, config.epochs, f"loss {total.item() / per_epoch:.4f}")
    optimiser.zero_grad()  # the last gradients would stay in memory as long as the model
    return model.eval().requires_grad_(False)


@contextmanager
def dropping(device: torch.device, seed: int, epoch: int) -> Iterator[None]:
    """Dropout draws from torch's global stream: seeded for an epoch, and put back."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, "dropout", epoch))
        yield


def one_cycle(done: float) -> float:
    """The rate's factor at a share `done` of the training: up in the first quarter, then down to zero, both linear."""
    return min(4 * done + 0.01, (1 - done) / 0.75)


def by_steps(done: float) -> float:
    """The rate's factor of Zagoruyko and Komodakis: to a fifth after 60, 120 and 160 of 200 epochs."""
    return float(0.2 ** sum(done >= share for share in (0.3, 0.6, 0.8)))


SCHEDULES = {"one-cycle": one_cycle, "step": by_steps}


def augment(images: Tensor, draw: torch.Generator) -> Tensor:
    """Every image shifted by up to an eighth of its size (zeros move in) and mirrored half of the time."""
    n, _, height, width = images.shape
    device = images.device
    down, across = max(1, height // 8), max(1, width // 8)
    padded = F.pad(images, (across, across, down, down))
    top = torch.randint(2 * down + 1, (n, 1), generator=draw, device=device)
    left = torch.randint(2 * across + 1, (n, 1), generator=draw, device=device)
    rows = top + torch.arange(height, device=device)
    columns = left + torch.arange(width, device=device)
    mirror = torch.rand(n, 1, generator=draw, device=device) < 0.5
    columns = torch.where(mirror, columns.flip(1), columns)
    image = torch.arange(n, device=device)
    return padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def accuracy(model: nn.Module, data: Labelled, size: int = 500) -> float:
    """The share of images that a model in eval mode classifies correctly."""
    hits = [
        (model(images).argmax(1) == labels).sum().item()
        for images, labels in zip(data.images.split(size), data.labels.split(size), strict=True)
    ]
    return sum(hits) / len(data)
