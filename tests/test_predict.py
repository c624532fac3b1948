import logging
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import twoprong as tp
from twoprong.attacks import PGD
from twoprong.data.tensors import Labelled
from twoprong.errors import InputError
from twoprong.predict import last_sizes, rebatched

SIZES = range(2, 121)  # what the defence of these tests can judge


@pytest.fixture(scope="module")
def mixed(classifier, digits):
    """A clean batch, an attacked one, and a clean rest."""
    images, labels = digits.test.images[:250].clone(), digits.test.labels[:250]
    images[100:200] = PGD(eps=0.2, step=0.03)(classifier, images[100:200], labels[100:200]).images
    return images


def test_answers_are_those_of_the_defence_batch_by_batch_in_order(defense, mixed):
    found = defense.predict(mixed, batch_size=100, generator=torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(1)
    expected = [defense(part, draw) for part in mixed.split([100, 100, 50])]
    assert len(found) == 250
    assert torch.equal(found.labels, torch.cat([one.labels for one in expected]))
    assert torch.allclose(found.probabilities, torch.cat([one.logits.softmax(1) for one in expected]))
    assert [batch.slice for batch in found.batches] == [slice(0, 100), slice(100, 200), slice(200, 250)]
    for batch, one in zip(found.batches, expected, strict=True):
        told = (batch.adversarial, batch.statistic, batch.threshold, batch.p_value, batch.tested)
        assert told == (one.adversarial, one.statistic, one.threshold, one.p_value, True)
    assert [batch.adversarial for batch in found.batches] == [False, True, False]


def test_each_image_knows_whether_its_batch_was_flagged(defense, mixed):
    found = defense.predict(mixed)
    assert found.adversarial.tolist() == [False] * 100 + [True] * 100 + [False] * 50
    assert [one.adversarial for one in found] == found.adversarial.tolist()
    assert (found[99].adversarial, found[100].adversarial, found[-1].adversarial) == (False, True, False)
    assert found.batch_of(100) is found.batch_of(199) is found.batches[1]
    assert found.batch_of(-1) is found.batches[2]
    assert found[7].label == int(found.labels[7])
    assert found[7].probability == found.probabilities[7].max()
    for index in (250, -251):
        with pytest.raises(IndexError):
            found.batch_of(index)
        with pytest.raises(IndexError):
            found[index]
    assert repr(found).startswith(f"Predictions(250 images, 1 of 3 batches flagged, {int(found.suspects.sum())} suspects: ")
    assert [one.suspect for one in found] == found.suspects.tolist()
    assert found.suspects[100:200].any()
    assert not found.suspects[~found.adversarial].any()


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def as_bytes(images):
    return (images * 255).round().byte()


SOURCES = {
    "tensor": lambda images: images,
    "bytes": as_bytes,
    "array, channels last": lambda images: as_bytes(images).permute(0, 2, 3, 1).numpy(),
    "list": list,
    "pictures": lambda images: [Image.fromarray(one) for one in as_bytes(images)[:, 0].numpy()],
    "labelled": lambda images: Labelled(images, torch.zeros(len(images), dtype=torch.long)),
    "data set": lambda images: TensorDataset(images, torch.zeros(len(images))),
    "data set without labels": lambda images: Items(list(images)),
    "stream": lambda images: Stream([(image, 0) for image in images]),
    "loader": lambda images: DataLoader(TensorDataset(images, torch.zeros(len(images))), batch_size=33),
    "loader without labels": lambda images: DataLoader(Items(list(images)), batch_size=7),
    "loader of a stream": lambda images: DataLoader(Stream(list(images)), batch_size=64),
    "generator": lambda images: (part for part in images.split(41)),
    "generator of pairs": lambda images: ((part, None) for part in images.split(41)),
    "generator of images": iter,
    "generator of arrays, channels last": lambda images: (one.permute(1, 2, 0).numpy() for one in as_bytes(images)),
    "generator of images with labels": lambda images: ((image, torch.tensor(3)) for image in images),
    "generator of labelled pictures": lambda images: ((Image.fromarray(one), 3) for one in as_bytes(images)[:, 0].numpy()),
    "generator of lists": lambda images: (list(part) for part in images.split(41)),
    "loader of single images": lambda images: DataLoader(TensorDataset(images, torch.zeros(len(images))), batch_size=None),
    "list of batches": lambda images: list(images.split(41)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_answers(defense, digits, source):
    images = as_bytes(digits.test.images[:130]).float() / 255  # digits have 17 shades, bytes 256
    expected = defense.predict(images, batch_size=60)
    found = defense.predict(SOURCES[source](images), batch_size=60)
    assert torch.equal(found.labels, expected.labels)
    assert [batch.slice for batch in found.batches] == [batch.slice for batch in expected.batches]
    assert [batch.statistic for batch in found.batches] == [batch.statistic for batch in expected.batches]


@pytest.mark.parametrize(
    ("rest", "size", "expected"),
    [
        (60, 100, [60]),
        (1, 100, [1]),  # too few in all
        (100, 100, [100]),
        (101, 100, [101]),
        (119, 100, [119]),
        (120, 100, [120]),
        (121, 100, [61, 60]),  # one batch would be too large
        (149, 100, [75, 74]),
        (150, 100, [100, 50]),
        (199, 100, [100, 99]),
        (3, 2, [3]),
        (121, 120, [61, 60]),
    ],
)
def test_the_last_images_are_divided_so_that_they_can_be_tested(rest, size, expected):
    assert last_sizes(rest, size, SIZES) == expected


@pytest.mark.parametrize(("least", "most"), [(2, 5), (3, 9), (10, 20), (7, 12)])
def test_no_batch_is_too_large_and_none_too_small_where_that_can_be(least, most):
    for size in range(least, most + 1):
        for count in range(1, 3 * most):
            parts = torch.arange(count).split(4)
            batches = list(rebatched(parts, size, range(least, most + 1)))
            assert torch.equal(torch.cat(batches), torch.arange(count))
            lengths = [len(batch) for batch in batches]
            assert max(lengths) <= most
            if count >= least and most >= 2 * least - 1:  # then any sum of a batch and a remainder can be halved
                assert min(lengths) >= least, (size, count, lengths)


def test_batches_are_at_most_what_the_detector_is_calibrated_for(defense, digits):
    found = defense.predict(digits.test.images[:300], batch_size=1000)
    assert [batch.slice.stop for batch in found.batches] == [120, 240, 300]
    assert all(batch.tested for batch in found.batches)


def test_a_batch_size_that_cannot_be_tested_is_refused(older, digits):
    for wrong in ("a", 2.5):
        with pytest.raises(InputError, match=f"batch_size: expected 2 or more, fewer cannot be tested, got {wrong}"):
            older.predict(digits.test.images[:5], batch_size=wrong)
    with pytest.raises(InputError, match="batch_size: expected 2 or more, fewer cannot be tested, got 1"):
        older.predict(digits.test.images[:10], batch_size=1)


@pytest.mark.parametrize(("policy", "adversarial"), [("denoise", True), ("classify", False)])
def test_too_few_images_in_all_are_the_policys(older, digits, tmp_path, policy, adversarial, caplog):
    older.save(tmp_path / "bundle")
    patient = tp.load(tmp_path / "bundle", on_small_batch=policy)
    with caplog.at_level(logging.WARNING, "twoprong"):
        found = patient.predict(digits.test.images[:1])
    assert [(batch.adversarial, batch.tested) for batch in found.batches] == [(adversarial, False)]
    assert "1 not tested" in repr(found)
    with pytest.raises(InputError, match=r"batch of 1 image: expected 2 or more"):
        older.predict(digits.test.images[:1])


def test_a_stream_is_not_kept_in_memory(defense, digits):
    alive, most = weakref.WeakSet(), 0

    def stream():
        nonlocal most
        for start in range(0, 300, 20):
            part = digits.test.images[start : start + 20].clone()
            alive.add(part)
            yield part
            del part
            most = max(most, len(alive))

    defense.predict(stream(), batch_size=20)
    assert most <= 4


def test_progress_is_told_batch_by_batch(defense, mixed):
    heard = []

    def listen(stage, done, total, note=""):
        heard.append((stage, done, total, note))

    defense.predict(mixed, progress=listen)
    assert heard == [
        ("predict", 100, 250, "0 flagged"), ("predict", 200, 250, "1 flagged"), ("predict", 250, 250, "1 flagged"),
    ]  # fmt: skip
    heard.clear()
    defense.predict(iter(mixed.split(50)), progress=listen)
    assert [(done, total) for _, done, total, _ in heard] == [(100, 100), (200, 200), (250, 250)]


def test_class_names_are_told(defense, digits):
    known = tp.Defense(**{**vars(defense.parts), "about": {"classes": [f"digit {label}" for label in range(10)]}})
    found = known.predict(digits.test.images[:20])
    assert found.names == [f"digit {label}" for label in found.labels.tolist()]
    assert found[3].name == found.names[3]
    assert "digit" in repr(known(digits.test.images[:20]))
    unnamed = tp.Defense(**{**vars(defense.parts), "about": {}})
    assert unnamed.predict(digits.test.images[:20]).names is None


def bad(images, index, value):
    spoiled = images.clone()
    spoiled[index] = value
    return spoiled


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda images: bad(images, 150, torch.nan), "from image 100 on: images: .*NaN first in image 50 of 100"),
        (lambda images: bad(images, 20, 255), r"images: expected values in \[0, 1\], got \[0, 255\]"),
        (lambda images: [*images[:110], torch.zeros(1, 9, 8)], r"from image 100 on: images: expected one size"),
        (lambda images: (part for part in (images[:100], images[:50, :, :7])), r"from image 100 on: .*got \(1, 7, 8\)"),
        (lambda images: [], "at least one image, got an empty list"),
        (lambda images: iter([]), "at least one image, got an empty list_iterator"),
        (lambda images: images[:0], "at least one image, got an empty Tensor"),
        (lambda images: images[0], r"expected a batch .*got shape \(1, 8, 8\)"),
        (lambda images: "cat.png", "item 0 to be one image .* got str"),
        (lambda images: 7, "expected images, a Dataset with a length, a DataLoader or batches of images, got int"),
        (lambda images: {"image": images}, "expected images, a Dataset with a length, .* got dict"),
        (lambda images: ({"image": part} for part in images.split(10)), "got dict"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(defense, digits, spoil, message):
    with pytest.raises(InputError, match=message):
        defense.predict(spoil(digits.test.images[:200]))


def test_results_are_in_the_cpus_memory_and_carry_no_gradient(defense, digits):
    found = defense.predict(digits.test.images[:10].clone().requires_grad_())
    assert not found.probabilities.requires_grad
    assert (found.labels.device.type, found.labels.dtype) == ("cpu", torch.int64)
    assert np.allclose(found.probabilities.sum(1), 1)


def test_a_stream_gives_the_answers_of_predict_image_by_image(defense, mixed):
    expected = defense.predict(mixed, generator=torch.Generator().manual_seed(1))
    found = list(tp.stream(defense, mixed, generator=torch.Generator().manual_seed(1)))
    assert [one.label for one in found] == expected.labels.tolist()
    assert [one.adversarial for one in found] == expected.adversarial.tolist()
    assert torch.equal(torch.stack([one.probabilities for one in found]), expected.probabilities)


def test_a_stream_without_an_end_is_answered_as_it_comes(defense, digits):
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield digits.test.images[read % 200]

    found = tp.stream(defense, endless(), batch_size=20)
    assert [next(found).label for _ in range(30)] == defense.predict(digits.test.images[1:31], batch_size=20).labels.tolist()
    assert read <= 80  # two batches, and what was read at a time


def test_a_stream_answers_what_came_before_a_mistake(defense, older, digits):
    images = digits.test.images[:100]
    found = tp.stream(defense, iter([*images.split(20), images[:20, :, :7]]), batch_size=20)
    assert len([next(found) for _ in range(60)]) == 60
    with pytest.raises(InputError, match=r"from image 100 on: .*got \(1, 7, 8\)"):
        list(found)
    with pytest.raises(InputError, match="batch_size: expected 2 or more"):
        tp.stream(older, images, batch_size=1)  # at the call, not at the first answer
    with pytest.raises(InputError, match="at least one image"):
        next(tp.stream(defense, iter([])))


def test_a_stream_can_be_closed_and_lets_go_of_its_source(defense, digits):
    ended = []

    def endless():
        try:
            while True:
                yield from digits.test.images[:200]
        finally:
            ended.append(True)

    found = tp.stream(defense, endless(), batch_size=20)
    next(found)
    assert not ended
    found.close()
    assert ended
    assert list(found) == []
