"""Logits and penultimate features from one forward pass, for any classifier."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.errors import InputError
from twoprong.models.featured import Featured

FeatureSource = str | tuple[str, ...] | Callable[[Tensor], Tensor] | None


class Features(nn.Module):
    """An extractor: reads a classifier's features while it computes its logits.

    `source` is None (the input of the last Linear layer that runs), a layer's name (that layer's output), several names
    (their outputs, each averaged over positions, side by side), or a callable from images to features, which costs a pass of
    its own. Our own classifiers hand their features over. Others are listened to, by hooks that live for one call and hear
    the calling thread only: the classifier is left as it was.
    """

    def __init__(self, classifier: nn.Module, source: FeatureSource = None) -> None:
        super().__init__()
        self.classifier = classifier
        self.source = source = tuple(source) if isinstance(source, list) else source
        self._layers: list[nn.Module] = []
        if source is None:
            self._layers = [module for module in classifier.modules() if isinstance(module, nn.Linear)]
            if not self._layers:
                raise InputError(
                    "features: expected a classifier with a Linear layer, found none in "
                    f"{type(classifier).__name__}; name a layer (features='layer4') or give a callable"
                )
        elif not callable(source):
            layers = dict(classifier.named_modules())
            for name in self._names:
                if name not in layers or not name:
                    known = ", ".join([name for name in layers if name][-8:])
                    raise InputError(f"features: the classifier has no layer {name!r}; its last layers are {known}")
                self._layers.append(layers[name])

    @property
    def _names(self) -> tuple[str, ...]:
        """The layers that were asked for by name."""
        return (self.source,) if isinstance(self.source, str) else self.source if isinstance(self.source, tuple) else ()

    @property
    def handed_over(self) -> bool:
        """Whether the classifier hands its features over. A compiler can follow that; it cannot follow hooks."""
        return self.source is None and isinstance(self.classifier, Featured)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, classes) and features (N, d), never in half precision; gradients flow through both."""
        if self.handed_over:
            logits, features = cast(Featured, self.classifier).both(images)
            return full(logits), full(features)
        if callable(self.source):
            return full(self.classifier(images)), full(self.source(images).flatten(1))
        heard: dict[int, Any] = {}
        caller = threading.get_ident()

        def listen(number: int, module: nn.Module, inputs: tuple[Any, ...], *rest: Any) -> None:
            # `rest` is (named inputs, output); torch may leave the first out for a hook that another thread is removing.
            if threading.get_ident() == caller:
                named_inputs, output = rest
                heard[number] = output if self._names else (*inputs, *named_inputs.values())[0]

        # The last Linear layer that runs is known only afterwards: each writes to one place, the last one stays.
        hooks = [
            layer.register_forward_hook(partial(listen, number if self._names else 0), with_kwargs=True)
            for number, layer in enumerate(self._layers)
        ]
        try:
            logits = self.classifier(images)
        finally:
            for hook in hooks:
                hook.remove()
        if len(heard) < max(1, len(self._names)):
            raise InputError("features: the layer they come from did not run; name one that does (features='layer4')")
        outputs = [heard[number] for number in sorted(heard)]
        for output in outputs:
            if not isinstance(output, Tensor):
                raise InputError(f"features: expected layer {self.source!r} to give a tensor, got {type(output).__name__}")
        if isinstance(self.source, tuple):
            outputs = [full(output).flatten(2).mean(2) if output.ndim > 2 else output for output in outputs]
        return full(logits), torch.cat([full(output.flatten(1)) for output in outputs], 1)


def full(values: Tensor) -> Tensor:
    """Half precision, as it comes out of an autocast region, widened to float32; anything else as it is."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
