"""PGD on the expectation over 20 noise draws: ours, all draws in a few passes, against torchattacks, one pass a draw."""

import torch
import torchattacks
from torch import Tensor, nn

from benchmarks.timing import medians
from twoprong.attacks.pgd import EOTPGD
from twoprong.attacks.target import Plain, Route
from twoprong.models.zoo import build

SIGMA, DRAWS, STEPS, IMAGES, EPS = 0.25, 20, 5, 20, 8 / 255


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
    """A small CNN on batches of 20 images of 32×32, 5 steps, CPU. Weights are random: the time does not depend on them.

    Ours also scores the last iterate and the outcome, which torchattacks leaves to the caller.
    """
    draw = torch.Generator().manual_seed(0)
    model = build("cnn", 10, 3).eval().requires_grad_(False)
    images, labels = torch.rand(IMAGES, 3, 32, 32, generator=draw), torch.randint(10, (IMAGES,), generator=draw)
    theirs = torchattacks.EOTPGD(NoisyModule(model), eps=EPS, alpha=EPS / 4, steps=STEPS, eot_iter=DRAWS)
    ours, target = EOTPGD(eps=EPS, step=EPS / 4, steps=STEPS, draws=DRAWS), NoisyTarget(model)
    seconds = medians(
        {"theirs": lambda: theirs(images, labels), "ours": lambda: ours(target, images, labels, draw)}, rounds=7
    )
    ratio = seconds["theirs"] / seconds["ours"]
    return f"PGD + EOT-{DRAWS}, torchattacks / ours: {ratio:.2f} (target >= 1; {seconds['ours'] * 1e3:.0f} ms ours)"
