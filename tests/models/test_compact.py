import torch

from twoprong.models.compact import compact
from twoprong.models.zoo import build
from twoprong.seeds import generator, initialised
from twoprong.storage import load_tensors, save_tensors


def test_a_compact_network_takes_a_quarter_of_the_room_and_says_nearly_the_same(tmp_path):
    with initialised(0, "compact"):
        network = build("wrn-10-1", 10, 3).eval()
    images = torch.rand(20, 3, 32, 32, generator=generator(0, "compact"))
    with torch.no_grad():
        before = network(images)
        after = compact(network)(images)
    assert 0 < (after - before).norm() / before.norm() < 0.05
    save_tensors(tmp_path / "packed", network.state_dict(), packed=True)
    save_tensors(tmp_path / "plain", network.state_dict())
    assert (tmp_path / "packed").stat().st_size < 0.35 * (tmp_path / "plain").stat().st_size
    loaded = load_tensors(tmp_path / "packed")[0]
    assert all(torch.equal(loaded[name], value) for name, value in network.state_dict().items())


def test_twice_is_once():
    with initialised(1, "compact"):
        network = compact(build("cnn", 10, 1))
    once = {name: value.clone() for name, value in network.state_dict().items()}
    assert all(torch.equal(once[name], value) for name, value in compact(network).state_dict().items())
