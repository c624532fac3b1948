"""Every published results.json against the models, and against the schema by an independent validator."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from twoprong.errors import DataError
from twoprong.results import EvaluationResults, ReproductionResults, read_results, schema
from twoprong.results.files import KINDS

RESULTS = Path(__file__).parents[2] / "results"
PUBLISHED = sorted(RESULTS.glob("*/results.json"))
MODELS = {"evaluation": EvaluationResults, "reproduction": ReproductionResults}


def valid(content):
    """What another library says of a content, by the schema that comes with the package."""
    return Draft202012Validator(schema(content["kind"])).is_valid(content)


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.parent.name)
def test_a_published_file_is_read_by_its_kind_and_written_back_to_the_byte(file):
    text = file.read_text(encoding="utf-8")
    results = read_results(file)
    assert type(results) is MODELS[json.loads(text)["kind"]]
    assert json.dumps(results.as_dict(), separators=(",", ":"), ensure_ascii=False) + "\n" == text
    assert valid(json.loads(text))


def test_both_kinds_are_published():
    assert {read_results(file).kind for file in PUBLISHED} == KINDS.keys() == MODELS.keys()


BROKEN = {
    "a key is missing": lambda part, key: part.pop(key),
    "a key too many": lambda part, key: part.update(colour="red"),
    "a text for a number": lambda part, key: part.update({key: "12"}),
    "true for a number": lambda part, key: part.update({key: True}),
    "null for a number": lambda part, key: part.update({key: None}),
}
PLACES = {
    "evaluation, top": ("digits-quick", lambda results: results["run"], "seed"),
    "evaluation, deep": ("digits-quick", lambda results: results["worst_case"]["defense"], "per_batch"),
    "evaluation, study": ("digits-quick", lambda results: results["detector"]["power"]["by_eps"][1], "rate"),
    "reproduction, deep": ("transfer", lambda results: results["rows"][0]["cells"][0], "ours"),
}


@pytest.mark.parametrize("edit", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize(("run", "place", "key"), PLACES.values(), ids=PLACES.keys())
def test_a_broken_file_is_refused_by_both(run, place, key, edit, tmp_path):
    content = json.loads((RESULTS / run / "results.json").read_text(encoding="utf-8"))
    edit(place(content), key)
    file = tmp_path / "results.json"
    file.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        read_results(file)
    assert str(file) in str(caught.value)
    assert {"colour", key} & set(str(caught.value).replace(":", " ").replace(".", " ").split())
    assert not valid(content)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no readable JSON"),
        ('{"kind": "evaluation", "format": NaN}', "NaN is not JSON"),
        ('{"kind": "demo"}', "expected results of kind evaluation or reproduction, got kind 'demo'"),
        ("[]", "got kind None"),
        ('{"kind": "evaluation", "format": 2}', "format: input should be 1"),
    ],
)
def test_what_is_no_results_file_is_refused_with_its_name(text, words, tmp_path):
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        read_results(file)
    assert str(file) in str(caught.value)
    with pytest.raises(DataError, match=r"missing\.json"):
        read_results(tmp_path / "missing.json")
