"""Are the gradients that attacks follow those of the deployed function?"""

from typing import Any

import torch
from torch import Tensor

from twoprong.attacks.base import evaluating
from twoprong.attacks.losses import margin
from twoprong.attacks.target import Route, Target
from twoprong.data.tensors import Labelled
from twoprong.evaluation.sanity import FAR, Finding, finding, not_memory
from twoprong.seeds import generator


def check_gradients(target: Target, batch: Labelled, eps: float, norm: str, seed: int) -> Finding:
    """Gradients must exist, hardly ever be zero, and agree with what the deployed function does in finite steps."""
    draw = generator(seed, "sanity", "gradients", device=batch.images.device)
    start = (
        batch.images + eps * (2 * torch.rand(batch.images.shape, generator=draw, device=batch.images.device) - 1)
    ).clamp(0, 1)
    values: dict[str, Any] = {}
    problems = []
    for route in ("clean", "denoise"):
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
        "Do both routes and the statistic have gradients, not zero, that agree with finite differences?",
        not problems,
        "; ".join(problems) or "they exist, are not zero, and agree with finite differences",
        **values,
    )


def _loss_gradients(target: Target, images: Tensor, labels: Tensor, route: Route, seed: int) -> tuple[float, float]:
    """The share of zero gradients of the margin, and the median relative error along the gradient of those that are not."""

    def value(x: Tensor) -> Tensor:  # the same noise at every call
        return margin(target.logits(x, route, 1, generator(seed, "sanity", "noise", device=x.device))[0], labels)

    with evaluating(target), torch.enable_grad():
        leaf = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(value(leaf).sum(), leaf)
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
    with evaluating(target), torch.enable_grad():
        leaf = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(target.statistic(leaf), leaf)
    length = gradient.norm().item()
    if length == 0:
        return 1.0
    with evaluating(target), torch.no_grad():
        step = 0.05
        direction = gradient / length
        slope = (target.statistic(images + step * direction) - target.statistic(images - step * direction)) / (2 * step)
    return abs(slope.item() - length) / length
