"""The schema that is shipped and the page that explains the format are what the models say."""

import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from twoprong.results import schema
from twoprong.results.files import KINDS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import schema as tool  # noqa: E402


def test_schema_and_page_are_up_to_date(capsys):
    assert tool.main(["--check"], ROOT) == 0, capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_schema_is_a_schema_in_which_every_key_is_described(kind):
    shipped = schema(kind)
    Draft202012Validator.check_schema(shipped)
    assert shipped == tool.schemas()[kind]
    for part in (shipped, *shipped["$defs"].values()):
        assert part["description"]
        assert part["additionalProperties"] is False
        for key, field in part["properties"].items():
            assert "description" in field or "$ref" in field, key


def test_a_file_that_differs_is_named_and_mended(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "src/twoprong/results").mkdir(parents=True)
    assert tool.main(["--check"], tmp_path) == 1
    assert "docs/results-format.md: differs" in capsys.readouterr().out
    assert not (tmp_path / "docs/results-format.md").exists()
    assert tool.main([], tmp_path) == 0
    assert tool.main(["--check"], tmp_path) == 0
    (tmp_path / "docs/results-format.md").write_text("something else")
    assert tool.main(["--check"], tmp_path) == 1


def test_the_page_names_every_part_once_and_links_to_it():
    page = tool.page(tool.schemas())
    parts = {shipped["title"] for shipped in tool.schemas().values()}
    parts |= {name for shipped in tool.schemas().values() for name in shipped["$defs"]}
    headings = [line.split()[1] for line in page.splitlines() if line.startswith(("## ", "### "))]
    assert sorted(headings) == sorted(parts)
    for kind in tool.schemas().values():
        for name in kind["$defs"]:
            assert f"](#{name.lower()})" in page
