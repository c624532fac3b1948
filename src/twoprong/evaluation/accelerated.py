"""What attacks compute on when they may be a little inexact and much faster. Scores are always the exact object's."""

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.attacks.base import Model
from twoprong.defense import Defense
from twoprong.models.fast import Compiler, Fast, HalfPrecision, Replayed, compiled, fast
from twoprong.models.features import Features, FeatureSource
from twoprong.models.precision import Precision, compiler_for
from twoprong.routes import NOTHING, Denoised, Known, Route
from twoprong.whitebox import padded

Step = Callable[..., Any]


def accelerated(model: Model, precision: Precision, images: Tensor) -> Model:
    """A defence or a classifier in this precision, for images like these; other targets as they are."""
    if precision == "fp32" or not isinstance(model, nn.Module):
        return model
    compiler = compiler_for(precision, images)
    return cast(Model, Accelerated(model, compiler) if isinstance(model, Defense) else fast(model, compiler))


class Accelerated(Defense):
    """A copy of a defence for attackers in a hurry: its networks in bf16, folded and compiled (`models/fast.py`).

    It is what the defence is up to rounding, and good for gradients; decide, score and save with the defence itself.
    """

    def __init__(self, exact: Defense, compiler: Compiler | None = compiled) -> None:
        extractor = exact.extractor
        # A layer's output can only be listened to where nothing is compiled away.
        heard = not (extractor.source is None or callable(extractor.source))
        swaps: dict[nn.Module, nn.Module] = {extractor.classifier: HalfPrecision(extractor.classifier)} if heard else {}
        for network in (extractor.classifier, *exact.passing.children(), *exact.flagged.children()):
            if network not in swaps:
                swaps[network] = fast(network, compiler)
        quick = Features(swaps[extractor.classifier], _inside(extractor.source))
        passing, flagged = (_swapped(route, swaps) for route in (exact.passing, exact.flagged))
        super().__init__(quick, exact.detector, passing, flagged, exact.config, exact.about)
        self.exact = exact
        # Whether all networks are our own copies, which nobody else puts into training mode.
        self.settled = extractor.source is None and all(isinstance(network, Fast) for network in swaps.values())
        self._answers: dict[Route, Step] = {}
        if compiler is not None and self.settled:  # of what is not ours, nobody knows what a compiler would meet
            recorded = exact.detector.reference_features.is_cuda

            def ready(step: Step) -> Step:
                return Replayed(compiler(step)) if recorded else compiler(step)

            self.look = ready(self.look)  # type: ignore[method-assign]
            self._answers = {route: ready(_answering(route)) for route in (self.passing, self.flagged)}

    def eval(self) -> "Accelerated":
        return self if getattr(self, "settled", False) else super().eval()

    def answer(self, route: Route, disturbed: Tensor, known: Known = NOTHING) -> tuple[Tensor, Tensor]:
        if known or route not in self._answers:
            return super().answer(route, disturbed, known)
        return self._answers[route](disturbed)

    def index(self, index: Tensor, size: int) -> Tensor:
        """Whole batches only: for each number of suspects a compiler would begin anew."""
        return padded(index, size)

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        """The value is the deployed one, or attackers would pass another test; the gradient is the copy's."""
        if reference is not None:
            return super().statistic(images, reference)
        with torch.no_grad():
            deployed = self.exact.statistic(images)
        if not (torch.is_grad_enabled() and images.requires_grad):
            return deployed
        value = super().statistic(images)
        return value + (deployed - value.detach())

    def in_training(self) -> Route:
        """With the exact denoiser, in half precision: batch norms that are folded away have no training mode."""
        exact = self.exact.flagged
        if not isinstance(self.flagged, Denoised) or not isinstance(exact, Denoised):
            return self.flagged
        return self.flagged.in_training(HalfPrecision(exact.denoiser))


def _answering(route: Route) -> Step:
    """What a route does after its noise, as one step for a compiler."""

    def answer(disturbed: Tensor) -> tuple[Tensor, Tensor]:
        seen = route.restore(disturbed)
        return seen, route.classify(seen)

    return answer


def _swapped(route: Route, swaps: dict[nn.Module, nn.Module]) -> Route:
    """The route with its networks replaced."""
    copied = copy.copy(route)
    copied._modules = {name: swaps[network] for name, network in route.networks().items()}
    return copied


def _inside(source: FeatureSource) -> FeatureSource:
    """The names of layers as they are behind a wrapper."""
    if isinstance(source, str):
        return f"network.{source}"
    return tuple(f"network.{name}" for name in source) if isinstance(source, tuple) else source
