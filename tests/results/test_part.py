import pytest
from pydantic import ValidationError

from twoprong.results.detector import NotStudied
from twoprong.results.part import Interval, Number, Part, Text


class Example(Part):
    name: Text
    share: Number
    interval: Interval
    later: Text | None = None


def test_keys_are_written_in_the_order_given_and_without_those_not_given():
    given = {"share": 1, "interval": [0, 0.5], "name": "a"}
    written = Example.model_validate(given).as_dict()
    assert list(written) == list(given)
    assert written["interval"] == (0, 0.5)
    assert type(written["share"]) is int  # 1 and 1.0 are two texts
    assert list(Example(interval=(0.0, 1.0), name="a", later=None, share=0.5).as_dict()) == [
        "interval",
        "name",
        "later",
        "share",
    ]


def test_the_order_is_no_difference():
    assert Example(name="a", share=1, interval=(0, 1)) == Example(interval=(0, 1), share=1, name="a")


def test_a_copy_writes_what_was_changed():
    changed = Example(name="a", share=1, interval=(0, 1)).model_copy(update={"later": "b"})
    assert changed.as_dict() == {"name": "a", "share": 1, "interval": (0, 1), "later": "b"}


def test_parts_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Example(name="a", share=1, interval=(0, 1)).name = "b"


def test_what_was_not_studied_is_an_empty_object():
    assert NotStudied().as_dict() == {}
