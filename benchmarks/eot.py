"""PGD on the expectation over 20 noise draws: ours, all draws in a few passes, against torchattacks, one pass a draw."""

import torch
import torchattacks
from torch import Tensor, nn

from benchmarks.timing import medians
from twoprong.attacks.pgd import EOTPGD
from twoprong.attacks.target import Plain, Route
from twoprong.models.zoo import build

SIGMA, DRAWS, STEPS, EPS = 0.25, 20, 5, 8 / 255


class NoisyTarget(Plain):
    """Noise before a classifier, as the defence has it; the draws are one batch."""

    def logits(
        self, images: Tensor, route: Route | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        many = images.repeat(draws, 1, 1, 1)
        noise = torch.empty_like(many).normal_(generator=generator)
        return self.model(many + SIGMA * noise).view(draws, len(images), -1)


class NoisyModule(nn.Module):
    """The same for torchattacks: new noise on every call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images + SIGMA * torch.randn_like(images))
        return logits


def run() -> str:
    """The small CNN on 100 digits (8×8) and on 10 colour images of 32×32, 5 steps, CPU. Weights are random: no matter.

    Ours also scores the last iterate and the outcome, which torchattacks leaves to the caller.
    """
    small, large = compare(100, 1, 8), compare(10, 3, 32)
    return (
        f"PGD + EOT-{DRAWS}, torchattacks / ours: {small['theirs'] / small['ours']:.2f} at 8×8, "
        f"{large['theirs'] / large['ours']:.2f} at 32×32 (target >= 1; {small['ours'] * 1e3:.0f} ms ours at 8×8)"
    )


def compare(count: int, channels: int, side: int) -> dict[str, float]:
    """Median seconds of both on the same images."""
    draw = torch.Generator().manual_seed(0)
    model = build("cnn", 10, channels).eval().requires_grad_(False)
    images, labels = torch.rand(count, channels, side, side, generator=draw), torch.randint(10, (count,), generator=draw)
    theirs = torchattacks.EOTPGD(NoisyModule(model).eval(), eps=EPS, alpha=EPS / 4, steps=STEPS, eot_iter=DRAWS)
    ours, target = EOTPGD(eps=EPS, step=EPS / 4, steps=STEPS, draws=DRAWS), NoisyTarget(model)
    return medians({"theirs": lambda: theirs(images, labels), "ours": lambda: ours(target, images, labels, draw)}, rounds=5)
