"""Frozen networks made fast on a GPU: batch norm folded into convolutions, bf16, channels last, compiled.

The results are those of the network up to bf16's rounding. What decides and what is scored stays the network itself.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from twoprong.models.dunet import DUNet
from twoprong.models.featured import Featured
from twoprong.models.layout import channels_last
from twoprong.models.normalise import Normalise

Compiler = Callable[..., Callable[..., Any]]


def fast(network: nn.Module, compiler: Compiler | None = torch.compile) -> nn.Module:
    """The frozen network, made fast. Of one that is not ours nothing is known: it just runs in bf16.

    `compiler` None leaves out the compilation, which takes a minute and pays on a GPU only.
    """
    if isinstance(network, Featured):
        return FastClassifier(network, compiler)
    return Fast(network, compiler) if isinstance(network, DUNet) else HalfPrecision(network)


class HalfPrecision(nn.Module):
    """Any network inside an autocast region; what it gives is float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            return self.network(images).float()


class Fast(nn.Module):
    """A network of ours: called as before, computing in bf16 on folded weights of its own.

    With gradients it is compiled for throughput, without them as CUDA graphs, because small batches wait for launches.
    Results are float32 copies, so that the next call does not overwrite them.
    """

    def __init__(self, network: nn.Module, compiler: Compiler | None = torch.compile) -> None:
        super().__init__()
        self.network = halved(folded(network))
        self._learning = self._run if compiler is None else compiler(self._run)
        self._judging = self._run if compiler is None else compiler(self._run, mode="reduce-overhead")

    def forward(self, images: Tensor) -> Tensor:
        return self._call(images)[0]

    def _call(self, images: Tensor) -> tuple[Tensor, ...]:
        images = images.contiguous(memory_format=torch.channels_last)
        if torch.is_grad_enabled() and images.requires_grad:
            return tuple(value.float() for value in self._learning(images))
        return tuple(value.to(torch.float32, copy=True) for value in self._judging(images))

    def _run(self, images: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(images.device.type, torch.bfloat16):
            return self._compute(images)

    def _compute(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.network(images),)


class FastClassifier(Fast, Featured):
    """A classifier of ours that hands over its features in the same pass."""

    network: Featured

    def _compute(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.network.both(images)

    def features(self, images: Tensor) -> Tensor:
        return self._call(images)[1]

    def both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = self._call(images)
        return logits, features


def folded(network: nn.Module) -> nn.Module:
    """A frozen copy in eval mode, in which every batch norm right after a convolution has become part of it."""
    network = copy.deepcopy(network).eval().requires_grad_(False)
    for parent in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        layers: list[nn.Module] = []
        for layer in parent:
            before = layers[-1] if layers else None
            if isinstance(layer, nn.BatchNorm2d) and isinstance(before, nn.Conv2d):
                layers[-1] = fuse_conv_bn_eval(before, layer).requires_grad_(False)
            else:
                layers.append(layer)
        parent._modules = {str(number): layer for number, layer in enumerate(layers)}
    return network


def halved(network: nn.Module) -> nn.Module:
    """The network with its weights in bf16 and channels last. Images are normalised in float32 still."""
    for module in network.modules():
        if not isinstance(module, Normalise):
            for value in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                value.data = value.data.bfloat16() if value.is_floating_point() else value.data
    return channels_last(network)
