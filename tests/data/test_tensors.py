import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from twoprong.data.tensors import Labelled, as_labelled, check_labels, image_digests
from twoprong.errors import InputError


def batch(count=4, channels=3, size=8, dtype=torch.float32):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_good_labels_become_int64(dtype):
    labels = check_labels(torch.tensor([0, 2, 1], dtype=dtype), 3, classes=3)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 1, 2], None, "got list.*torch.as_tensor"),
        (torch.eye(3), None, r"got \(3, 3\).*argmax\(1\)"),
        (torch.zeros(3, 1, dtype=torch.int64), None, r"got \(3, 1\).*flatten"),
        (torch.zeros(3), None, r"got torch.float32; use labels.long\(\)"),
        (torch.zeros(3, dtype=torch.bool), None, "got torch.bool"),
        (torch.zeros(2, dtype=torch.int64), None, "expected 3, one per image, got 2"),
        (torch.tensor([0, -1, -5]), None, "expected 0 or more, got -1 at index 1"),
        (torch.tensor([0, 1, 7]), 3, r"expected 0 to 2 \(3 classes\), got 7 at index 2"),
    ],
)
def test_broken_labels_are_refused_with_the_fix(labels, classes, message):
    with pytest.raises(InputError, match=f"labels: .*{message}"):
        check_labels(labels, 3, classes)


def test_labelled_is_cut_and_moved_as_one():
    data = Labelled(batch(), torch.arange(4))
    assert len(data) == 4
    for cut in (data[1:3], data[torch.tensor([1, 2])], data[torch.tensor([False, True, True, False])]):
        assert cut.labels.tolist() == [1, 2]
        assert torch.equal(cut.images, data.images[1:3])
    moved = data.to("meta")
    assert (moved.images.device.type, moved.labels.device.type) == ("meta", "meta")


def test_every_way_in_gives_the_same_data():
    images, labels = batch(), torch.tensor([0, 1, 1, 2])
    pairs = TensorDataset(images, labels)
    ways = {
        "tensors": as_labelled(images, labels),
        "arrays": as_labelled(images.numpy(), labels.numpy().astype(np.int32)),
        "double": as_labelled(images.double(), labels),
        "labelled": as_labelled(Labelled(images, labels)),
        "dataset": as_labelled(pairs),
        "loader": as_labelled(DataLoader(pairs, batch_size=3)),
        "list": as_labelled(list(images), labels.tolist()),
        "pairs": as_labelled([(image.numpy(), int(label)) for image, label in pairs]),
        "channels last": as_labelled(images.permute(0, 2, 3, 1).numpy(), labels),
        "loader of channels last": as_labelled(DataLoader(TensorDataset(images.permute(0, 2, 3, 1), labels), batch_size=3)),
    }
    for name, data in ways.items():
        assert data.images.dtype == torch.float32, name
        assert torch.equal(data.images, images), name
        assert torch.equal(data.labels, labels), name


def test_bytes_and_pictures_are_taken_as_they_are_shown():
    pixels = torch.randint(0, 256, (4, 8, 8, 3), generator=torch.Generator().manual_seed(0)).byte()
    expected, labels = pixels.permute(0, 3, 1, 2).float() / 255, torch.arange(4)
    pictures = [Image.fromarray(one.numpy()) for one in pixels]
    for images in (pixels, pixels.numpy(), pictures):
        assert torch.equal(as_labelled(images, labels).images, expected)
    assert torch.equal(as_labelled(Items(*zip(pictures, range(4), strict=True))).images, expected)


def test_arrays_are_copied():
    array = batch().numpy()
    data = as_labelled(array, np.arange(4))
    array[:] = 0
    assert torch.equal(data.images, batch())


def test_an_array_with_negative_strides_is_taken():
    data = as_labelled(batch().numpy()[::-1], np.arange(4))
    assert torch.equal(data.images, batch().flip(0))


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(1, 2, 2), 0)])


class Endless(Dataset):
    def __getitem__(self, index):
        return torch.zeros(1, 2, 2), 0


IMAGE = torch.zeros(1, 2, 2)
TALL = torch.zeros(1, 3, 2)


def test_dataset_labels_may_be_numbers_of_any_whole_kind():
    items = Items((IMAGE, 1), [IMAGE, np.int64(2)], (IMAGE, torch.tensor(3)))
    assert as_labelled(items).labels.tolist() == [1, 2, 3]


def test_a_stream_is_taken_through_a_loader():
    assert as_labelled(DataLoader(Stream())).images.shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("source", "labels", "message"),
    [
        (batch(), None, "labels: expected one per image, got none"),
        (Items((IMAGE, 0)), torch.tensor([0]), "labels: expected none beside a Items"),
        (batch(), torch.arange(3), "labels: expected 4, one per image, got 3"),
        (batch().mul(255), torch.arange(4), r"values in \[0, 1\]"),
        (np.array([["a"]]), np.zeros(1, int), "images: expected an array of numbers, got <U1"),
        (Items((IMAGE, 0), IMAGE), None, "item 1 to be a pair .* got Tensor"),
        (Items((IMAGE, 0), (IMAGE, 0, 1)), None, r"item 1 .* got \(Tensor, int, int\)"),
        (Items((IMAGE, "cat")), None, r"item 0 .* got \(Tensor, str\)"),
        (Items((IMAGE, 0.5)), None, r"item 0 .* got \(Tensor, float\)"),
        (Items((IMAGE, torch.tensor(0.5))), None, "item 0 to be a pair"),
        (Items((IMAGE, 0), ("cat.png", 1)), None, "expected item 1 to be one image .* got str"),
        (Items((torch.zeros(2, 1, 2, 2), 0)), None, r"expected item 0 to be one image .* got shape \(2, 1, 2, 2\)"),
        ([IMAGE, IMAGE], None, "item 0 to be a pair .* pass labels beside the images"),
        ([IMAGE, IMAGE], ["cat", "dog"], "labels: .*got list"),
        (Items((IMAGE, 0), (IMAGE, 1), (TALL, 1)), None, r"one size, got \(1, 3, 2\) in item 2 and \(1, 2, 2\)"),
        (Items(), None, "empty Dataset"),
        (Stream(), None, "got Stream; wrap it in a DataLoader"),
        (Endless(), None, "got Endless; wrap it in a DataLoader"),
        (DataLoader(TensorDataset(batch())), None, r"batch 0 to be a pair of tensors .* got \(Tensor\)"),
        (DataLoader(Items((IMAGE, "cat"))), None, r"batch 0 .* got \(Tensor, tuple\)"),
        (DataLoader(Items((IMAGE, 0), (TALL, 1))), None, r"one size, got \(1, 3, 2\) in batch 1"),
        (DataLoader(Items((IMAGE, 0)), batch_size=2, drop_last=True), None, "empty DataLoader"),
    ],
)
def test_what_cannot_be_used_is_refused(source, labels, message):
    with pytest.raises(InputError, match=message):
        as_labelled(source, labels)


def test_the_number_of_classes_is_checked_for_a_dataset_too():
    with pytest.raises(InputError, match=re.escape("expected 0 to 1 (2 classes), got 5 at index 1")):
        as_labelled(Items((IMAGE, 0), (IMAGE, 5)), classes=2)


def test_a_digest_is_the_pictures_own_whatever_its_format():
    pixels = torch.randint(0, 256, (4, 3, 5, 5), generator=torch.Generator().manual_seed(0)).byte()
    images = pixels.float() / 255
    digests = image_digests(images)
    assert digests.dtype == torch.int64
    assert len(set(digests.tolist())) == 4
    assert torch.equal(digests, image_digests(images.double()))
    assert torch.equal(digests.flip(0), image_digests(images.flip(0)))
    images[0, 0, 0, 0] = (images[0, 0, 0, 0] + 0.5) % 1
    assert (image_digests(images) != digests).tolist() == [True, False, False, False]
