from types import SimpleNamespace

import pytest
import torch

from twoprong.models.fast import compiled
from twoprong.models.precision import compiler_for, computing
from twoprong.recipe import fit, train_named


@pytest.mark.parametrize(
    ("precision", "device", "compiles"),
    [("fp32", "cpu", False), ("bf16", "cpu", False), ("fp32", "cuda", False), ("bf16", "cuda", True)],
)
def test_compilation_is_for_bf16_on_a_gpu(precision, device, compiles):
    images = SimpleNamespace(is_cuda=device == "cuda", shape=(1, 3, 32, 32))  # there may be no GPU here
    assert (compiler_for(precision, images) is compiled) == compiles
    assert compiler_for(precision, SimpleNamespace(is_cuda=True, shape=(1, 3, 8, 8))) is None


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_networks_compute_in_it(precision, dtype):
    with computing(precision, torch.device("cpu")):
        assert torch.nn.Linear(2, 2)(torch.rand(1, 2)).dtype == dtype


def test_a_whole_fit_in_bf16_makes_a_defence_that_works(digits, small_config):
    """Weights, kernel, features of the reference and thresholds are float32 all the same."""
    short = small_config.model_copy(update={"denoiser": small_config.denoiser.model_copy(update={"epochs": 1})})
    data = digits.train[:600]
    classifier = train_named("cnn", data, 10, short, precision="bf16")
    defense = fit(classifier, data, config=short, precision="bf16")
    assert {value.dtype for value in defense.state_dict().values() if value.is_floating_point()} == {
        torch.float32,
        torch.float64,
    }
    assert defense.about["precision"] == "bf16"
    batch = digits.test[:100]
    assert (defense(batch.images).labels == batch.labels).float().mean() > 0.8
