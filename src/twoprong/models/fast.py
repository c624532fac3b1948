"""Frozen networks made fast on a GPU: batch norm folded into convolutions, bf16, channels last, compiled.

The results are those of the network up to bf16's rounding. What decides and what is scored stays the network itself.
"""

import copy
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from twoprong.models.dunet import DUNet
from twoprong.models.featured import Featured
from twoprong.models.layout import channels_last
from twoprong.models.normalise import Normalise
from twoprong.storage import fingerprint

Compiler = Callable[..., Callable[..., Any]]
_made: WeakKeyDictionary[nn.Module, tuple[object, nn.Module]] = WeakKeyDictionary()  # what a network was, and its fast form


def compiled(step: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """torch.compile with room for the shapes and networks that share our code.

    It counts compilations by the code, whosever it is, and runs whatever comes after the eighth uncompiled.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 64)
    return torch.compile(step, **options)


def fast(network: nn.Module, compiler: Compiler | None = compiled) -> nn.Module:
    """The frozen network, made fast: once, as long as its weights are the same. One that is not ours just runs in bf16.

    `compiler` None leaves out the compilation, which takes a minute and pays on a GPU only.
    """
    if not isinstance(network, Featured | DUNet):
        return HalfPrecision(network)  # nothing is known of it
    state = fingerprint(network, str(next(network.parameters()).device)), compiler
    if network not in _made or _made[network][0] != state:
        kind = FastClassifier if isinstance(network, Featured) else Fast
        _made[network] = state, kind(network, compiler)
    return _made[network][1]


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

    Without gradients it is also recorded as a CUDA graph, because small batches wait for launches. Results are float32.
    """

    def __init__(self, network: nn.Module, compiler: Compiler | None = compiled) -> None:
        super().__init__()
        self.network = halved(folded(network))
        self._learning = self._run if compiler is None else compiler(self._run)
        self._judging = self._learning
        if compiler is not None and next(network.parameters()).is_cuda:
            self._judging = Replayed(self._learning)

    def forward(self, images: Tensor) -> Tensor:
        return self._call(images)[0]

    def _call(self, images: Tensor) -> tuple[Tensor, ...]:
        images = images.contiguous(memory_format=torch.channels_last)
        if torch.is_grad_enabled() and images.requires_grad:
            return tuple(value.float() for value in self._learning(images))
        # What is recorded or compiled as part of something larger is not recorded by itself.
        inside = torch.compiler.is_compiling() or (images.is_cuda and torch.cuda.is_current_stream_capturing())
        return tuple(value.float() for value in (self._run if inside else self._judging)(images))

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


class Replayed:
    """A step on GPU tensors that is recorded for the first shapes it meets and replayed from then on, as one launch.

    On small batches the launches of a network's kernels, and the guards of compiled code, take longer than the kernels.
    Results are copies: the recording's own are overwritten by its next run. For one stream at a time, for tensors that stay
    where they are, and not for steps that draw random numbers.
    """

    most = 8  # shapes; each recording keeps memory of its own, and an attack on single slots meets many shapes once

    def __init__(self, step: Callable[..., tuple[Tensor, ...]]) -> None:
        self.step = step
        self.lock = threading.Lock()
        self.recorded: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], tuple[Tensor, ...]]] = {}

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        key = tuple((value.shape, value.dtype, value.device) for value in given)
        with self.lock:
            if key not in self.recorded and len(self.recorded) < self.most:
                self.recorded[key] = self._record(given)
            if key in self.recorded:
                graph, inputs, results = self.recorded[key]
                for place, value in zip(inputs, given, strict=True):
                    place.copy_(value)
                graph.replay()
                return tuple(value.clone() for value in results)
        return self.step(*given)

    def _record(self, given: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], tuple[Tensor, ...]]:
        inputs = tuple(value.clone() for value in given)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles and chooses kernels, which must not happen while recording
            for _ in range(3):
                self.step(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.step(*inputs)
        return graph, inputs, results


def folded(network: nn.Module) -> nn.Module:
    """A frozen copy in eval mode, in which every batch norm right after a convolution has become part of it."""
    network = copy.deepcopy(network).eval().requires_grad_(False)
    for parent in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        layers: list[nn.Module] = []
        for layer in parent:
            before = layers[-1] if layers else None
            if isinstance(layer, nn.BatchNorm2d) and isinstance(before, nn.Conv2d):
                layers[-1] = fuse_conv_bn_eval(before, layer).requires_grad_(False)
            elif not isinstance(layer, nn.Dropout):  # which does nothing in eval mode
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
