import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from twoprong.errors import DataError, InputError
from twoprong.models.weights import load_weights


class Runs:
    """Pickled, it would run a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return subprocess.call, (["touch", str(self.mark)],)


@pytest.fixture
def trained():
    return nn.Linear(3, 2)


def read(file):
    model = nn.Linear(3, 2)
    load_weights(model, file, "linear")
    return model


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state},
        lambda state: {f"module.{name}": value for name, value in state.items()},
    ],
)
@pytest.mark.parametrize("suffix", ["pt", "pth"])
def test_the_ways_in_which_people_save_weights(trained, tmp_path, wrapped, suffix):
    torch.save(wrapped(trained.state_dict()), tmp_path / f"net.{suffix}")
    assert torch.equal(read(tmp_path / f"net.{suffix}").weight, trained.weight)


def test_safetensors(trained, tmp_path):
    save_file(trained.state_dict(), tmp_path / "net.safetensors")
    assert torch.equal(read(tmp_path / "net.safetensors").weight, trained.weight)


def test_a_file_with_code_in_it_is_refused_and_does_not_run(tmp_path):
    torch.save({"state_dict": Runs(tmp_path / "ran")}, tmp_path / "net.pt")
    with pytest.raises(DataError, match=r"net\.pt: holds more than plain tensors.*save_file\("):
        read(tmp_path / "net.pt")
    assert not (tmp_path / "ran").exists()


def test_a_whole_module_is_refused_with_the_way_to_convert_it(trained, tmp_path):
    torch.save(trained, tmp_path / "net.pt")
    with pytest.raises(DataError, match=r"plain tensors.*save_file\(model\.state_dict\(\)"):
        read(tmp_path / "net.pt")


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {"state_dict": {}}, torch.zeros(2)])
def test_what_is_no_state_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "net.pt")
    with pytest.raises(DataError, match="expected a state_dict"):
        read(tmp_path / "net.pt")


def test_damaged_and_missing_files_are_named(tmp_path):
    (tmp_path / "net.pt").write_bytes(b"not a file of torch's")
    for name in ("net.pt", "absent.pth", "absent.safetensors"):
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save(nn.Linear(4, 2).state_dict(), tmp_path / "net.pt")
    with pytest.raises(InputError, match="not linear's weights"):
        read(tmp_path / "net.pt")


def head(outputs, width=4):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, outputs))


def test_weights_with_more_outputs_ask_for_all_classes(tmp_path):
    """So it is where the data have only some of the classes. What differs in more than that is another network."""
    torch.save(head(5).state_dict(), tmp_path / "net.pt")
    with pytest.raises(InputError, match=r"last layer .* 5 outputs, the data have 2 classes; name all .*--classes a,b,c$"):
        load_weights(head(2), tmp_path / "net.pt", "net")
    for other in (head(6), head(2, width=3), nn.Sequential(nn.Linear(3, 2))):
        with pytest.raises(InputError, match="not net's weights") as caught:
            load_weights(other, tmp_path / "net.pt", "net")
        assert "--classes" not in str(caught.value)
