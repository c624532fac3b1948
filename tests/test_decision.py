import math
from dataclasses import replace

import pytest
import torch

from twoprong.decision import Decision, class_names

LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 3.0], [0.0, 5.0, 0.0]])
CLASSES = ("cat", "dog", "emu")


def decision(adversarial=False, classes=CLASSES, tested=True, logits=LOGITS):
    numbers = (0.0123, 0.045, 0.25) if tested else (math.nan,) * 3
    suspects = torch.arange(len(logits)) % 3 == 1 if adversarial else torch.zeros(len(logits), dtype=torch.bool)
    images = torch.zeros(len(logits), 1, 2, 2)
    return Decision(logits, images, adversarial, *numbers, suspects=suspects, tested=tested, classes=classes)


def test_each_image_has_a_label_a_name_and_probabilities():
    made = decision(adversarial=True)
    assert made.labels.tolist() == [0, 2, 1]
    assert made.names == ["cat", "emu", "dog"]
    assert len(made) == 3
    one = made[1]
    assert (one.label, one.name, one.adversarial, one.suspect) == (2, "emu", True, True)
    assert [image.suspect for image in made] == [False, True, False]
    assert one.probability == pytest.approx(math.exp(3) / (1 + math.e + math.exp(3)))
    assert one.probabilities.sum() == pytest.approx(1)
    assert made[-1].label == made[2].label == 1
    assert [image.name for image in made] == made.names
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"image {index} of 3"):
            made[index]


def test_a_refused_image_has_no_label_and_no_name():
    made = decision(adversarial=True)
    refused = replace(made, rejected=made.suspects, logits=LOGITS.masked_fill(made.suspects[:, None], math.nan))
    assert refused.labels.tolist() == [0, -1, 1]
    assert refused.names == ["cat", None, "dog"]
    assert (refused[1].label, refused[1].name) == (-1, None)
    assert math.isnan(refused[1].probability)
    assert repr(refused).endswith("3 images: cat, refused, dog)")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_answer_that_is_no_number_is_none(value):
    logits = LOGITS.clone()
    logits[1, 0] = value
    assert decision(logits=logits).labels.tolist() == [0, -1, 1]
    assert decision(logits=logits).names == ["cat", None, "dog"]


def test_rows_keep_what_belongs_to_each_image():
    made = replace(decision(adversarial=True), scores=torch.tensor([1.0, 2.0, 3.0]))
    rows = made.rows(torch.tensor([1, 1, 0]))
    assert (rows.labels.tolist(), rows.suspects.tolist()) == ([2, 2, 0], [True, True, False])
    assert (rows.scores.tolist(), rows.rejected, rows.statistic) == ([2, 2, 1], None, made.statistic)


def test_without_names_there_are_numbers():
    made = decision(classes=None)
    assert made.names is None
    assert made[0].name is None
    assert "3 images: 0, 2, 1)" in repr(made)


def test_a_repr_is_one_short_line():
    assert repr(decision()) == "Decision(passed, statistic 0.0123 / threshold 0.045, p 0.25, 3 images: cat, emu, dog)"
    assert repr(decision(adversarial=True)).startswith("Decision(flagged, 1 suspect, statistic")
    assert repr(decision(tested=False, logits=LOGITS[:1])) == "Decision(passed, not tested, 1 image: cat)"
    long = repr(decision(logits=LOGITS.repeat(40, 1)))
    assert long.endswith("120 images: cat, emu, dog, cat, emu, ...)")
    assert len(long) < 125


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"classes": ["a", "b"]}, ("a", "b")),
        ({"classes": (1, 2)}, ("1", "2")),
        ({"classes": ["a", "b", "c"]}, None),
        ({"classes": "ab"}, None),
        ({"classes": 2}, None),
        ({}, None),
    ],
)
def test_names_of_classes_are_taken_where_there_is_one_for_each(about, expected):
    assert class_names(about, 2) == expected
