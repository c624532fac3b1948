import itertools
import re

import pytest
import torch

from twoprong.config import SplitConfig
from twoprong.data.splits import Splits, split
from twoprong.data.tensors import Labelled
from twoprong.errors import InputError

PARTS = ("denoiser", "kernel", "reference", "calibration")


def numbered(count, first=0):
    """Images that carry their number, and labels that follow from it."""
    numbers = torch.arange(first, first + count)
    return Labelled((numbers / 100_000).float().view(count, 1, 1, 1).expand(count, 3, 2, 2).clone(), numbers % 10)


def numbers(part):
    found = (part.images[:, 0, 0, 0] * 100_000).round().long()
    assert torch.equal(part.labels, found % 10)  # labels stay with their images
    return found.tolist()


def sizes(parts):
    return {name: len(getattr(parts, name)) for name in PARTS}


@pytest.mark.parametrize("count", [100, 101, 500, 4000, 12_345])
def test_parts_are_disjoint_and_cover_everything(count):
    parts = split(numbered(count), SplitConfig(), seed=0)
    together = [number for name in PARTS for number in numbers(getattr(parts, name))]
    assert sorted(together) == list(range(count))


@pytest.mark.parametrize(
    ("count", "config", "expected"),
    [
        (100, SplitConfig(), (20, 20, 20)),  # a fifth of all
        (104, SplitConfig(), (20, 20, 20)),  # rounded down
        (5000, SplitConfig(), (1000, 500, 1000)),  # 1000, 500, and a fifth instead of 2000
        (50_000, SplitConfig(), (1000, 500, 2000)),
        (1000, SplitConfig(kernel=30, reference=40, calibration=50), (30, 40, 50)),
        (1000, SplitConfig(kernel=200, reference=201, calibration=199), (200, 200, 199)),
    ],
)
def test_a_part_has_its_count_but_at_most_a_fifth(count, config, expected):
    found = sizes(split(numbered(count), config, seed=0))
    assert (found["kernel"], found["reference"], found["calibration"]) == expected
    assert found["denoiser"] == count - sum(expected)


def test_the_seed_and_the_number_of_images_decide():
    first = split(numbered(200), SplitConfig(), seed=1)
    torch.manual_seed(5)
    again = split(numbered(200), SplitConfig(), seed=1)
    shifted = split(numbered(200, first=1000), SplitConfig(), seed=1)
    other = split(numbered(200), SplitConfig(), seed=2)
    for name in PARTS:
        assert numbers(getattr(again, name)) == numbers(getattr(first, name))
        assert numbers(getattr(shifted, name)) == [number + 1000 for number in numbers(getattr(first, name))]
        assert sorted(numbers(getattr(other, name))) != sorted(numbers(getattr(first, name)))


def test_parts_are_drawn_at_random_from_all_over_the_data():
    parts = split(numbered(1000), SplitConfig(), seed=0)
    # 200 of 1000 numbers: their mean has a standard deviation of 289 / sqrt(200) * sqrt(0.8) = 18; five of them are 91.
    for name in ("kernel", "reference", "calibration"):
        assert abs(sum(numbers(getattr(parts, name))) / 200 - 499.5) < 91


def test_hashes_name_the_images_of_each_part():
    data = numbered(200)
    parts = split(data, SplitConfig(), seed=0)
    hashes = parts.hashes()
    assert tuple(hashes) == PARTS
    assert len(set(hashes.values())) == len(PARTS)
    assert split(data, SplitConfig(), seed=0).hashes() == hashes
    for name in PARTS:
        changed = Labelled(data.images.clone(), data.labels.clone())
        changed.images[numbers(getattr(parts, name))[0], 2, 1, 1] += 1e-3
        now = split(changed, SplitConfig(), seed=0).hashes()
        assert [part for part in PARTS if now[part] != hashes[part]] == [name]
        relabelled = Labelled(data.images, data.labels.clone())
        relabelled.labels[numbers(getattr(parts, name))[0]] += 1
        now = split(relabelled, SplitConfig(), seed=0).hashes()
        assert [part for part in PARTS if now[part] != hashes[part]] == [name]


def test_hashes_see_the_order():
    part = numbered(20)
    turned = part[torch.arange(19, -1, -1)]
    assert Splits(part, part, part, part).hashes()["kernel"] != Splits(part, turned, part, part).hashes()["kernel"]


@pytest.mark.parametrize("unseen", [40, 41, 300, 5000])
def test_held_out_images_are_for_reference_and_calibration_only(unseen):
    count = 1000
    config = SplitConfig(kernel=100, reference=60, calibration=90)
    parts = split(numbered(count), config, seed=0, held_out=numbered(unseen, first=count))
    learned = numbers(parts.denoiser) + numbers(parts.kernel)
    judged = numbers(parts.reference) + numbers(parts.calibration)
    assert sorted(learned) == list(range(count))
    assert len(set(judged)) == len(judged)
    assert set(judged) <= set(range(count, count + unseen))
    assert len(parts.kernel) == 100
    assert len(parts.reference) == min(60, unseen // 2)
    assert len(parts.calibration) == min(90, unseen - len(parts.reference))


def test_the_draw_from_held_out_images_follows_the_seed():
    config = SplitConfig(kernel=50, reference=50, calibration=50)
    first, again, other = (split(numbered(300), config, seed, numbered(200, first=300)) for seed in (1, 1, 2))
    for name in PARTS:
        assert numbers(getattr(first, name)) == numbers(getattr(again, name))
        assert numbers(getattr(first, name)) != numbers(getattr(other, name))


@pytest.mark.parametrize("count", [1, 4, 50, 99])
def test_too_few_images_are_refused_with_the_number_needed(count):
    with pytest.raises(InputError, match=r"too few.*kernel.*at least 100 images") as caught:
        split(numbered(count), SplitConfig(), seed=0)
    assert str(caught.value).startswith(f"images: {count} ")


def test_a_part_set_too_small_is_named():
    with pytest.raises(InputError, match=r"too small: reference 19\).*raise splits") as caught:
        split(numbered(1000), SplitConfig(reference=19), seed=0)
    assert not re.search("kernel|calibration", str(caught.value))


@pytest.mark.parametrize("unseen", [1, 10, 39])
def test_too_few_held_out_images_are_refused(unseen):
    with pytest.raises(InputError, match=r"too small: reference.*at least 40 images") as caught:
        split(numbered(1000), SplitConfig(), seed=0, held_out=numbered(unseen, first=1000))
    assert str(caught.value).startswith(f"held_out: {unseen} ")  # not the 1,000, which are enough


def test_held_out_images_do_not_make_up_for_too_few_others():
    with pytest.raises(InputError, match=r"too small: kernel 10\)") as caught:
        split(numbered(50), SplitConfig(), seed=0, held_out=numbered(400, first=50))
    assert str(caught.value).startswith("images: 50 ")


def test_every_pair_of_parts_is_disjoint_for_many_seeds():
    for seed in range(20):
        parts = split(numbered(130), SplitConfig(), seed)
        for one, other in itertools.combinations(PARTS, 2):
            assert not set(numbers(getattr(parts, one))) & set(numbers(getattr(parts, other)))
