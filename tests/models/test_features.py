import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from twoprong.errors import InputError
from twoprong.models.features import Features
from twoprong.seeds import generator, initialised

IMAGES = torch.rand(5, 1, 4, 4, generator=generator(0, "images"))


class Shuffled(nn.Module):
    """Registered in another order than it runs; `spare` is registered last and never runs."""

    def __init__(self, between=lambda: None):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 6), nn.Tanh())
        self.spare = nn.Linear(4, 4)
        self.between = between
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        deep = self.body(images)
        self.between()
        logits = self.head(deep)
        self.between()
        return logits


@pytest.fixture
def model():
    with initialised(0, "network"):
        return Shuffled().double()


def hooks(model):
    return [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]


def by_hand(model, images=IMAGES):
    deep = model.body(images.double())
    return deep @ model.head.weight.T + model.head.bias, deep


def test_the_default_is_the_input_of_the_last_linear_layer_that_runs(model):
    logits, features = Features(model)(IMAGES.double())
    expected_logits, expected = by_hand(model)
    assert features.shape == (5, 6)
    torch.testing.assert_close(logits, expected_logits)
    assert torch.equal(features, expected)


def test_several_layers_are_averaged_over_positions_and_stand_side_by_side(model):
    logits, features = Features(model, ("body.3", "body.1"))(IMAGES.double())
    maps, flat = model.body[:2](IMAGES.double()), model.body[:4](IMAGES.double())
    assert torch.equal(logits, by_hand(model)[0])
    torch.testing.assert_close(features, torch.cat([flat, maps.mean((2, 3))], 1))
    assert not hooks(model)


@pytest.mark.parametrize("names", [("body.1", "spare"), ("spare", "body.1")])
def test_of_several_layers_each_has_to_run(model, names):
    with pytest.raises(InputError, match="did not run"):
        Features(model, names)(IMAGES.double())


def test_of_several_layers_each_has_to_be_there(model):
    with pytest.raises(InputError, match="no layer 'bodice'"):
        Features(model, ("body.1", "bodice"))


def test_a_layer_that_runs_twice_gives_its_last_input():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, rows):
            return self.layer(self.layer(rows))

    twice, rows = Twice(), torch.rand(3, 4, generator=generator(0, "rows"))
    assert torch.equal(Features(twice)(rows)[1], twice.layer(rows))


@pytest.mark.parametrize(("name", "shape"), [("body.0", (5, 8)), ("body.3", (5, 6)), ("body", (5, 6)), ("head", (5, 3))])
def test_a_named_layer_gives_its_output_as_one_row_an_image(model, name, shape):
    expected = IMAGES.double()
    for layer in {"body.0": model.body[:1], "body.3": model.body[:4], "body": model.body}.get(
        name, [model.body, model.head]
    ):
        expected = layer(expected)
    logits, features = Features(model, name)(IMAGES.double())
    assert features.shape == shape
    assert torch.equal(features, expected.flatten(1))
    assert torch.equal(logits, model(IMAGES.double()))


def test_a_callable_gives_the_features_and_the_classifier_the_logits(model):
    logits, features = Features(model, lambda images: images[:, :, :2] * 2)(IMAGES.double())
    assert torch.equal(features, IMAGES.double()[:, :, :2].reshape(5, 8) * 2)
    assert torch.equal(logits, model(IMAGES.double()))


@pytest.mark.parametrize("source", [None, "body.0", lambda images: images])
def test_one_forward_pass_and_no_trace_of_it(model, source):
    extract = Features(model, source)
    assert (model.calls, hooks(model)) == (0, [])
    for calls in (1, 2):
        extract(IMAGES.double())
        assert (model.calls, hooks(model)) == (calls, [])


@pytest.mark.parametrize("source", [None, "body"])
def test_hooks_of_others_stay(model, source):
    heard = []
    model.head.register_forward_hook(lambda *_: heard.append("after"))
    model.head.register_forward_pre_hook(lambda *_: heard.append("before"))
    before = hooks(model)
    Features(model, source)(IMAGES.double())
    assert heard == ["before", "after"]
    assert hooks(model) == before


def test_gradients_flow_through_features_and_logits(model):
    for which, expected in enumerate(by_hand(model, IMAGES)):
        images = IMAGES.double().requires_grad_()
        Features(model)(images)[which].square().sum().backward()
        reference = IMAGES.double().requires_grad_()
        by_hand(model, reference)[which].square().sum().backward()
        assert expected.requires_grad
        assert images.grad.abs().sum() > 0
        torch.testing.assert_close(images.grad, reference.grad)
    with torch.no_grad():
        assert not Features(model)(IMAGES.double())[1].requires_grad


@pytest.mark.parametrize("source", [None, "body"])
def test_a_forward_pass_that_fails_leaves_no_hooks(model, source):
    def fail():
        raise RuntimeError("in the middle")

    extract = Features(model, source)
    model.between = fail
    with pytest.raises(RuntimeError, match="in the middle"):
        extract(IMAGES.double())
    assert hooks(model) == []
    model.between = lambda: None
    assert torch.equal(extract(IMAGES.double())[1], by_hand(model)[1])


def test_a_classifier_without_a_linear_layer_is_refused_with_the_fix():
    with pytest.raises(InputError, match=r"expected a classifier with a Linear layer.*Sequential.*features='layer4'"):
        Features(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))


@pytest.mark.parametrize("name", ["heat", "", "body.9"])
def test_an_unknown_layer_is_refused_with_the_known_ones(model, name):
    with pytest.raises(InputError) as caught:
        Features(model, name)
    assert f"no layer {name!r}" in str(caught.value)
    assert [layer for layer in ("head", "body", "body.0", "spare") if layer not in str(caught.value)] == []


def test_a_layer_that_does_not_run_is_refused(model):
    with pytest.raises(InputError, match="did not run"):
        Features(model, "spare")(IMAGES.double())
    assert hooks(model) == []


def test_linear_layers_of_which_none_runs_are_refused():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 2)

        def forward(self, images):
            return images.flatten(1)

    with pytest.raises(InputError, match="did not run"):
        Features(Idle())(IMAGES)


@pytest.mark.parametrize("source", [None, "body", "head"])
def test_threads_that_meet_inside_one_classifier_hear_only_themselves(source):
    # The barrier holds every thread before and after the last layer, so all hooks are in place whenever one runs.
    count = 4
    barrier = threading.Barrier(count, timeout=30)
    with initialised(0, "network"):
        model = Shuffled(barrier.wait)
    extract = Features(model, source)
    batches = [torch.rand(3, 1, 4, 4, generator=generator(0, "thread", number)) for number in range(count)]
    for _ in range(10):
        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(extract, batches))
        for images, (logits, features) in zip(batches, answers, strict=True):
            deep = model.body(images)
            assert torch.equal(features, model.head(deep) if source == "head" else deep)
            assert torch.equal(logits, model.head(deep))
    assert hooks(model) == []


def test_threads_that_come_and_go_as_they_like_get_their_own_features():
    with initialised(0, "network"):
        model = Shuffled()
    extract = Features(model)
    batches = [torch.rand(2, 1, 4, 4, generator=generator(0, "thread", number)) for number in range(400)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # change threads as often as possible
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(extract, batches))
    finally:
        sys.setswitchinterval(interval)
    for images, (logits, features) in zip(batches, answers, strict=True):
        deep = model.body(images)
        assert torch.equal(features, deep)
        assert torch.equal(logits, model.head(deep))
    assert hooks(model) == []
