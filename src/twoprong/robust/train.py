"""Adversarial training of a named classifier: the ordinary loop, with an attacker inside it."""

from difflib import get_close_matches

import torch
from torch import Tensor, nn

from twoprong.attacks.norms import NORMS
from twoprong.checkpoint import Checkpoint
from twoprong.config import AttackConfig, ClassifierConfig
from twoprong.data.tensors import Labelled
from twoprong.errors import InputError
from twoprong.models.modes import evaluating
from twoprong.models.precision import Precision
from twoprong.models.train import train_classifier
from twoprong.progress import Progress, silent
from twoprong.robust.losses import METHODS, Method


def train_robust(
    method: str,
    name: str,
    classes: int,
    data: Labelled,
    config: ClassifierConfig,
    attack: AttackConfig,
    seed: int,
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
    precision: Precision = "fp32",
) -> nn.Module:
    """The named classifier, adversarially trained by one of METHODS; in eval mode, frozen. A function of the arguments.

    Of `attack` the ball, the step and the number of steps are used. Raises InputError for an unknown method.
    """
    if method not in METHODS:
        near = get_close_matches(method, METHODS, 1)
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}{f' ({near[0]}?)' if near else ''}")
    chosen = METHODS[method]

    def objective(model: nn.Module, batch: Labelled, draw: torch.Generator) -> Tensor:
        adversarial = ascend(chosen, model, batch, attack, draw)
        return chosen.backward(model, batch.images, adversarial, batch.labels)

    return train_classifier(name, classes, data, config, seed, checkpoint, progress, objective, precision)


def ascend(method: Method, model: nn.Module, batch: Labelled, attack: AttackConfig, draw: torch.Generator) -> Tensor:
    """PGD from a random start on the method's inner loss: what the model is to withstand in this step.

    In eval mode: the attacker meets batch norm with its running averages, as in deployment, and his many passes do not
    enter these averages. The model's own pass, with the batch's statistics, is the method's.
    """
    ball, images = NORMS[attack.norm], batch.images
    with evaluating(model):
        with torch.no_grad():
            clean = model(images)
        x = ball.project(images + ball.random(images, attack.eps, draw), images, attack.eps)
        for _ in range(attack.steps):
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(method.inner(model(leaf), clean, batch.labels).sum(), leaf)
            x = ball.project(x + attack.step * ball.direction(gradient), images, attack.eps)
    return x.detach()
