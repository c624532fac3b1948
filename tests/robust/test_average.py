import torch
from torch import nn

from twoprong.robust.average import Average
from twoprong.seeds import initialised


def network():
    with initialised(0, "average"):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_the_average_is_the_formulas_by_hand():
    model = network()
    average = Average(model, 0.9)
    expected = {name: value.double().clone() for name, value in model.state_dict().items()}
    for step in range(1, 101):
        with torch.no_grad():
            for value in (*model.parameters(), *model.buffers()):
                value.add_(1) if value.is_floating_point() else value.fill_(step)
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
    for name, value in average.model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=0)
        else:
            assert value == 100  # counters are counters


def test_the_average_is_a_frozen_network_of_its_own():
    model = network()
    average = Average(model, 0.9)
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert not average.model.training
    assert model.training
    with torch.no_grad():
        model[0].weight.add_(1)
    assert not torch.equal(average.model[0].weight, model[0].weight)
