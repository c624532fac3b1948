"""Are the gradients that attacks follow those of the deployed function?"""

from typing import Any

import torch
from torch import Tensor

from twoprong.attacks.losses import margin
from twoprong.attacks.target import Role, Target
from twoprong.data.tensors import Labelled
from twoprong.evaluation.sanity.finding import FAR, Finding, finding, not_memory
from twoprong.models.modes import evaluating
from twoprong.seeds import generator

ALIKE = 0.8  # cosine of two gradients, or share of equal labels; bf16 rounds away less


def check_gradients(target: Target, batch: Labelled, eps: float, seed: int) -> Finding:
    """Gradients must exist, hardly ever be zero, and agree with what the deployed function does in finite steps."""
    start = _near(batch.images, eps, seed)
    values: dict[str, Any] = {}
    problems = []
    for route in target.routes:
        try:
            zero, wrong = _loss_gradients(target, start, batch.labels, route, seed)
        except RuntimeError as error:
            not_memory(error)
            problems.append(f"the {route} route cannot be differentiated ({str(error).splitlines()[0]})")
            continue
        values |= {f"{route}_zero": zero, f"{route}_error": wrong}
        if zero > FAR:
            problems.append(f"{zero:.0%} of the gradients of the {route} route are zero")
        if wrong > 0.5:
            problems.append(f"gradients of the {route} route are off by {wrong:.0%} (median) from finite differences")
    try:
        wrong = _statistic_gradient(target, start)
        values["statistic_error"] = wrong
        if wrong > 0.5:
            problems.append(f"the statistic's gradient is off by {wrong:.0%} from a finite difference")
    except RuntimeError as error:
        not_memory(error)
        problems.append(f"the statistic cannot be differentiated ({str(error).splitlines()[0]})")
    return finding(
        "gradients",
        "Do the routes and the statistic have gradients, not zero, that agree with finite differences?",
        not problems,
        "; ".join(problems) or "they exist, are not zero, and agree with finite differences",
        **values,
    )


def check_copy(deployed: Target, attacked: Target, batch: Labelled, eps: float, seed: int) -> Finding:
    """Attacks may compute on a copy in half precision: its gradients must point where the deployed object's do."""
    name, question = (
        "fast copy",
        "Does the copy that attacks compute on have the gradients and labels of the deployed object?",
    )
    start, values = _near(batch.images, eps, seed), dict[str, float]()
    try:
        for route in deployed.routes:
            (exact, slopes), (copied, others) = (
                _look(one, start, batch.labels, route, seed) for one in (deployed, attacked)
            )
            values[f"{route}_alike"] = torch.cosine_similarity(slopes.flatten(1), others.flatten(1)).median().item()
            values[f"{route}_labels"] = (exact == copied).double().mean().item()
        slopes, others = (_statistic_slope(one, start) for one in (deployed, attacked))
        values["statistic_alike"] = torch.cosine_similarity(slopes.flatten(), others.flatten(), dim=0).item()
    except RuntimeError as error:
        not_memory(error)
        return finding(name, question, False, f"it cannot be differentiated ({str(error).splitlines()[0]})")
    off = [f"{name.replace('_', ' ')} {value:.2f}" for name, value in values.items() if not value >= ALIKE]
    told = f"at least {min(values.values()):.2f} alike" if not off else "; ".join(off)
    return finding(name, question, not off, told, **values)


def _near(images: Tensor, eps: float, seed: int) -> Tensor:
    """A random point of the ball of every image: an attack's gradients are not those of its start."""
    draw = generator(seed, "sanity", "gradients", device=images.device)
    return (images + eps * (2 * torch.rand(images.shape, generator=draw, device=images.device) - 1)).clamp(0, 1)


def _look(target: Target, images: Tensor, labels: Tensor, route: Role, seed: int) -> tuple[Tensor, Tensor]:
    """The labels given on a route and the gradient of the margin, always with the same noise."""
    with evaluating(target), torch.enable_grad():
        leaf = images.detach().requires_grad_()
        logits = target.logits(leaf, route, 1, generator(seed, "sanity", "noise", device=images.device))[0]
        (gradient,) = torch.autograd.grad(margin(logits, labels).sum(), leaf)
    return logits.argmax(1), gradient


def _statistic_slope(target: Target, images: Tensor) -> Tensor:
    with evaluating(target), torch.enable_grad():
        leaf = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(target.statistic(leaf), leaf)
    return gradient


def _loss_gradients(target: Target, images: Tensor, labels: Tensor, route: Role, seed: int) -> tuple[float, float]:
    """The share of zero gradients of the margin, and the median relative error along the gradient of those that are not."""

    def value(x: Tensor) -> Tensor:  # the same noise at every call
        return margin(target.logits(x, route, 1, generator(seed, "sanity", "noise", device=x.device))[0], labels)

    gradient = _look(target, images, labels, route, seed)[1]
    length = gradient.flatten(1).norm(dim=1)
    zero = (length == 0).double().mean().item()
    if zero == 1:
        return zero, 0.0
    direction = gradient / length.clamp_min(1e-30)[:, None, None, None]
    with evaluating(target), torch.no_grad():
        step = 1e-2
        slope = (value(images + step * direction) - value(images - step * direction)) / (2 * step)
    error = ((slope - length).abs() / length.clamp_min(1e-30))[length > 0]
    return zero, error.median().item()


def _statistic_gradient(target: Target, images: Tensor) -> float:
    """The relative error of the statistic's slope along its gradient."""
    gradient = _statistic_slope(target, images)
    length = gradient.norm().item()
    if length == 0:
        return 1.0
    with evaluating(target), torch.no_grad():
        step = 0.05
        direction = gradient / length
        slope = (target.statistic(images + step * direction) - target.statistic(images - step * direction)) / (2 * step)
    return abs(slope.item() - length) / length
