import pytest
import torch
from torch import nn

from twoprong.checks import check_accuracy, check_classifier, check_held_out, check_test, overlap
from twoprong.data.tensors import Labelled
from twoprong.errors import InputError
from twoprong.models.features import Features


class Told(nn.Module):
    """Answers what the first pixel says, in 256ths, after an order of its own."""

    def __init__(self, order):
        super().__init__()
        self.head = nn.Linear(1, 1)  # features come from the input of a Linear layer
        self.order = torch.tensor(list(order))

    def forward(self, images):
        answers = self.order[(images[:, 0, 0, 0] * 255).round().long()]
        return nn.functional.one_hot(answers, len(self.order)).float() + 0 * self.head(images[:, 0, 0, :1])


def images_of(labels):
    labels = torch.as_tensor(labels)
    return Labelled((labels / 255).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous(), labels)


FOUR = images_of([0, 1, 2, 3] * 50)


def test_a_classifier_that_is_right_passes():
    check_accuracy(Features(Told([0, 1, 2, 3])), FOUR)


@pytest.mark.parametrize("order", [[1, 2, 3, 0], [0, 0, 0, 0], [0, 2, 3, 1]])
def test_one_that_is_no_better_than_one_answer_for_all_is_refused(order):
    with pytest.raises(InputError, match=r"not clearly more than the 25\.00% .*--classes.*--force"):
        check_accuracy(Features(Told(order)), FOUR)


def test_a_swapped_pair_is_named():
    with pytest.raises(InputError, match=r"0% of class 1 \(b\), which it calls class 2 \(c\) 100% of .*; 0% of class 2"):
        check_accuracy(Features(Told([0, 2, 1, 3])), FOUR, "abcd")


def test_a_hard_class_is_not_a_swapped_one():
    data = images_of([0, 1, 2, 3] * 50)
    hard = torch.where((data.labels == 3) & (torch.arange(200) % 3 > 0), 2, data.labels)  # a third of class 3 is right
    check_accuracy(Features(Told([0, 1, 2, 3])), Labelled(images_of(hard).images, data.labels))


def test_few_images_of_a_class_prove_nothing():
    check_accuracy(Features(Told([0, 1, 2, 2])), images_of([0, 1, 2] * 50 + [3] * 5))


@pytest.mark.parametrize(("count", "each"), [(4, 10), (10, 10), (20, 12)])
def test_a_swapped_pair_is_found_in_a_small_folder(count, each):
    order = [1, 0, *range(2, count)]
    data = images_of(list(range(count)) * each)
    check_accuracy(Features(Told(range(count))), data)
    with pytest.raises(InputError, match="0% of class 0, which it calls class 1 100% of the time; 0% of class 1"):
        check_accuracy(Features(Told(order)), data)


@pytest.mark.parametrize("accuracy", [0.4, 0.8])
def test_a_class_that_is_as_hard_as_the_others_is_hardly_ever_refused_in_a_small_folder(accuracy):
    """All ten classes have this accuracy. Five in a hundred such sets is what the limit allows at half of it."""
    draw, refused = torch.Generator().manual_seed(0), 0
    for _ in range(100):
        labels = torch.arange(10).repeat(10)
        shown = torch.where(torch.rand(100, generator=draw) < accuracy, labels, (labels + 1) % 10)
        try:
            check_accuracy(Features(Told(range(10))), Labelled(images_of(shown).images, labels))
        except InputError:
            refused += 1
    assert refused <= 5


def test_force_is_a_warning(caplog):
    check_accuracy(Features(Told([1, 2, 3, 0])), FOUR, force=True)
    assert "classifies 0.00% of 200" in caplog.text


@pytest.mark.parametrize("names", [["a", "b", "c"], ["a", "b", "c", "c"]])
def test_names_are_as_many_as_outputs_and_different(names):
    with pytest.raises(InputError, match=f"expected 4 different names.*got {len(names)}"):
        check_classifier(Features(Told([0, 1, 2, 3])), FOUR, names)


def test_an_output_with_logits_gets_the_way_to_wrap_it():
    class Wrapped(Told):
        def forward(self, images):
            return {"logits": super().forward(images)}

    with pytest.raises(InputError, match=r"got dict; .*twoprong\.models\.adapters\.Adapted"):
        check_classifier(Features(Wrapped([0, 1, 2, 3])), FOUR)


def distinct(first, count):
    pixels = torch.arange(first, first + count).view(-1, 1, 1, 1)
    images = torch.cat([pixels % 256, pixels // 256], 3) / 255
    return Labelled(images, torch.zeros(count, dtype=torch.long))


def test_held_out_images_that_are_learned_too_are_refused(caplog):
    learned = distinct(0, 600)
    check_held_out(learned, distinct(600, 300))
    assert caplog.text == ""
    assert overlap(distinct(590, 300), learned) == 10
    with pytest.raises(InputError, match="10 of 300 images are among the images to learn from"):
        check_held_out(learned, distinct(590, 300))
    for unseen, force in ((distinct(597, 300), False), (distinct(590, 300), True)):  # a few copies happen
        caplog.clear()
        check_held_out(learned, unseen, force)
        assert "are not held out" in caplog.text


def test_held_out_images_have_the_others_size():
    with pytest.raises(InputError, match="like the others"):
        check_held_out(FOUR, distinct(0, 50))


def test_test_images_of_another_part_are_refused(caplog):
    learned, unseen = distinct(0, 600), distinct(600, 300)
    assert check_test(distinct(900, 300), learned, unseen) == 0
    assert caplog.text == ""
    for first, count in ((590, 310), (890, 10)):  # both parts, and the held-out one alone
        with pytest.raises(InputError, match=f"test: {count} of 310 images are among the images to learn from or the held"):
            check_test(distinct(first, 310), learned, unseen)
    for first, force, count in ((897, False, 3), (590, True, 310)):  # a few copies happen
        caplog.clear()
        assert check_test(distinct(first, 310), learned, unseen, force) == count
        assert f"test: {count} of 310" in caplog.text
    with pytest.raises(InputError, match="test: expected images of"):
        check_test(FOUR, learned)
