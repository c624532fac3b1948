"""Fast networks are the networks up to bf16's rounding. Compilation is tried on a GPU only (benchmarks/gpu.py)."""

from functools import partial

import pytest
import torch
from torch import nn

from twoprong.models.dunet import DUNet
from twoprong.models.fast import Fast, FastClassifier, HalfPrecision, Replayed, compiled, fast, folded
from twoprong.models.features import Features
from twoprong.models.zoo import build
from twoprong.seeds import generator, initialised

NETWORKS = ("cnn", "resnet18", "wrn-10-1", "dunet")


def network(name):
    """With batch norms that have seen something, so that folding them is not trivial."""
    with initialised(0, name):
        made = DUNet(3, 0.1) if name == "dunet" else build(name, 10, 3)
        made.train()
        with torch.no_grad():
            for _ in range(3):
                made(torch.rand(16, 3, 16, 16, generator=generator(1, name)))
    return made.eval()


@pytest.fixture(scope="module")
def images():
    return torch.rand(8, 3, 16, 16, generator=generator(0, "images"))


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_changes_nothing_but_the_number_of_layers(name, images):
    made = network(name)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    small = folded(made)
    with torch.no_grad():
        assert torch.allclose(small(images), made(images), atol=1e-4, rtol=1e-4)
    norms = [sum(isinstance(part, nn.BatchNorm2d) for part in one.modules()) for one in (small, made)]
    assert norms[0] < norms[1]
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())
    assert not any(parameter.requires_grad for parameter in small.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_fast_is_the_network_up_to_rounding_with_its_gradients(name, images):
    made = network(name).requires_grad_(False)
    quick = fast(made, compiler=None)
    slopes = []
    for one in (made, quick):
        leaf = images.clone().requires_grad_()
        found = one(leaf)
        assert found.dtype == torch.float32
        slopes.append(torch.autograd.grad(found.square().sum(), leaf)[0].flatten())
    assert torch.nn.functional.cosine_similarity(*slopes, dim=0) > 0.98
    with torch.no_grad():
        exact, rounded = made(images), quick(images)
    assert (exact - rounded).abs().max() < 0.05 * exact.abs().max() + 0.02


def test_a_classifier_hands_over_its_features(images):
    made = network("resnet18")
    quick = fast(made, compiler=None)
    assert isinstance(quick, FastClassifier)
    logits, features = Features(quick)(images)
    _, exact = Features(made)(images)
    assert logits.shape == (8, 10)
    assert (features - exact).abs().max() < 0.05 * exact.abs().max()


def test_a_network_is_made_fast_once_and_again_when_its_weights_are_others(images):
    made = network("cnn").requires_grad_(False)
    quick = fast(made, compiler=None)
    assert fast(made, compiler=None) is quick
    assert fast(network("cnn"), compiler=None) is not quick
    made.head.bias += 1
    again = fast(made, compiler=None)
    with torch.no_grad():
        assert torch.allclose(again(images), quick(images) + 1, atol=0.02)


def test_what_many_networks_share_is_compiled_for_each_of_them(images):
    seen = []

    def backend(graph, example):
        seen.append(graph)
        return graph

    for depth in range(10):  # torch gives up after eight
        quick = Fast(nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(depth + 1))), partial(compiled, backend=backend))
        with torch.no_grad():
            quick(images)
    assert len(seen) == 10


def test_each_call_has_results_of_its_own(images):
    quick = fast(network("cnn"), compiler=None)
    with torch.no_grad():
        first = quick(images)
        kept = first.clone()
        quick(images.flip(0))
    assert torch.equal(first, kept)


def test_kinds():
    assert isinstance(fast(DUNet(1, 0.1), None), Fast)
    assert isinstance(fast(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), None), HalfPrecision)


def test_the_compiler_is_asked_once():
    asked = []

    def compiler(run, mode=None):
        asked.append(mode)
        return run

    quick = fast(network("cnn"), compiler)
    assert asked == [None]
    assert quick(torch.rand(2, 3, 16, 16)).shape == (2, 10)


def test_recordings_are_made_for_the_first_shapes_and_filled_anew(monkeypatch):
    """The bookkeeping around a recording; what CUDA makes of it is seen on a GPU only."""
    double = Replayed(lambda x: (2 * x,))
    double.most = 2

    class Graph:
        def __init__(self, place, result):
            self.place, self.result, self.replays = place, result, 0

        def replay(self):
            self.replays += 1
            self.result.copy_(2 * self.place)

    def record(given):
        inputs, results = tuple(value.clone() for value in given), tuple(torch.empty_like(value) for value in given)
        return Graph(inputs[0], results[0]), inputs, results

    monkeypatch.setattr(double, "_record", record)
    kept = []
    for size in (3, 4, 5, 3):
        given = torch.rand(size, generator=generator(size, len(kept)))
        kept.append((given, double(given)[0]))
    assert all(torch.equal(found, 2 * given) for given, found in kept)  # an earlier result is not overwritten
    assert sorted(graph.replays for graph, *_ in double.recorded.values()) == [1, 2]
