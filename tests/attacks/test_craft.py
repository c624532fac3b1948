import pytest
import torch
from torch import nn

from twoprong.attacks import MMA
from twoprong.attacks import craft as module
from twoprong.attacks.craft import craft
from twoprong.config import AttackConfig
from twoprong.data.tensors import Labelled
from twoprong.storage import load_tensors

CONFIG = AttackConfig(eps=0.1, step=0.03, steps=3, targets=2, batch_size=4)


class Counted(nn.Module):
    """A classifier that counts its calls."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, images):
        self.calls += 1
        return self.inner(images)


@pytest.fixture
def classifier(build_model):
    return Counted(build_model())


@pytest.fixture
def data(batch):
    return Labelled(*batch(10))


def files(cache):
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_every_image_is_attacked_in_order(classifier, data):
    attack = MMA(eps=0.1, step=0.03, steps=3, targets=2)
    expected = torch.cat([attack(classifier, part.images, part.labels).images for part in (data[:4], data[4:8], data[8:])])
    assert torch.equal(craft(classifier, data, CONFIG), expected)


def test_settings_reach_the_attack(classifier, data):
    found = craft(classifier, data, CONFIG.model_copy(update={"norm": "l2", "eps": 0.7, "step": 0.3}))
    sizes = (found - data.images).flatten(1).norm(dim=1)
    assert sizes.max() <= 0.7 + 1e-6
    assert sizes.max() > 0.5


def test_finished_chunks_are_not_crafted_again(classifier, data, tmp_path):
    first = craft(classifier, data, CONFIG, tmp_path)
    assert len(files(tmp_path)) == 3
    classifier.calls = 0
    assert torch.equal(craft(classifier, data, CONFIG, tmp_path), first)
    assert classifier.calls == 0
    assert torch.equal(first, craft(classifier, data, CONFIG))
    assert classifier.calls > 0


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_interrupted_cache_is_completed_to_the_same_images(classifier, data, tmp_path, lost):
    whole = craft(classifier, data, CONFIG, tmp_path)
    calls = classifier.calls
    files(tmp_path)[lost].unlink()
    classifier.calls = 0
    assert torch.equal(craft(classifier, data, CONFIG, tmp_path), whole)
    assert classifier.calls == calls / 3  # each chunk costs the same number of passes
    assert len(files(tmp_path)) == 3


def test_a_run_that_dies_leaves_whole_chunks(classifier, data, tmp_path):
    per_chunk = 1 + CONFIG.steps + 1 + 1  # to rank the targets, the steps, the margins reached, the success
    expected = craft(classifier, data, CONFIG)
    assert classifier.calls == 3 * per_chunk

    def dying(stage, done, total, *rest):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        craft(classifier, data, CONFIG, tmp_path, dying)
    assert len(files(tmp_path)) == 2
    classifier.calls = 0
    assert torch.equal(craft(classifier, data, CONFIG, tmp_path), expected)
    assert classifier.calls == per_chunk


@pytest.mark.parametrize(
    "setting", [{"eps": 0.11}, {"norm": "l2"}, {"step": 0.02}, {"steps": 4}, {"targets": 1}, {"batch_size": 5}]
)
def test_another_setting_never_meets_an_old_file(classifier, data, tmp_path, setting):
    craft(classifier, data, CONFIG, tmp_path)
    old = files(tmp_path)
    other = CONFIG.model_copy(update=setting)
    assert torch.equal(craft(classifier, data, other, tmp_path), craft(classifier, data, other))
    assert len(files(tmp_path)) == len(old) + -(-len(data) // other.batch_size)


@pytest.mark.parametrize("ingredient", ["weight", "buffer", "image", "label"])
def test_another_ingredient_never_meets_an_old_file(classifier, data, tmp_path, ingredient):
    craft(classifier, data, CONFIG, tmp_path)
    images, labels = data.images.clone(), data.labels.clone()
    with torch.no_grad():
        if ingredient == "weight":
            classifier.inner[5].weight[0, 0] += 0.5
        elif ingredient == "buffer":
            classifier.inner[1].running_var[0] *= 2
        elif ingredient == "image":
            images[-1, 0, 0, 0] = 1 - images[-1, 0, 0, 0]
        else:
            labels[-1] = (labels[-1] + 1) % 4
    changed = Labelled(images, labels)
    classifier.calls = 0
    found = craft(classifier, changed, CONFIG, tmp_path)
    assert classifier.calls > 0
    assert torch.equal(found, craft(classifier, changed, CONFIG))
    assert len(files(tmp_path)) == 6


def test_another_revision_of_the_attacks_never_meets_an_old_file(classifier, data, tmp_path, monkeypatch):
    craft(classifier, data, CONFIG, tmp_path)
    monkeypatch.setattr(module, "REVISION", module.REVISION + 1)
    classifier.calls = 0
    craft(classifier, data, CONFIG, tmp_path)
    assert classifier.calls > 0
    assert len(files(tmp_path)) == 6


def test_files_hold_the_images_and_progress_is_told(classifier, data, tmp_path):
    told = []
    whole = craft(classifier, data, CONFIG, tmp_path / "new" / "place", lambda *args: told.append(args[:3]), "stage")
    assert told == [("stage", number, 3) for number in (1, 2, 3)]
    stored = [load_tensors(file)[0]["images"] for file in files(tmp_path)]
    assert torch.equal(torch.cat(stored), whole)
