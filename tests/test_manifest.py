import sys
from dataclasses import replace
from pathlib import Path

import pytest

import twoprong as tp
from twoprong.errors import BundleError
from twoprong.manifest import deepest

sys.path.insert(0, str(Path(__file__).parent))
from forgeries import Forged


@pytest.fixture(scope="module")
def original(defense, tmp_path_factory) -> Forged:
    path = tmp_path_factory.mktemp("original") / "bundle"
    defense.save(path)
    return Forged.of(path)


@pytest.mark.parametrize("named", [[], 3, [["hidden"]], ["hidden", 3]])
def test_features_that_are_no_names_are_refused(original, named, tmp_path):
    forged = original.copied()
    forged.manifest["parts"]["extractor"]["features"] = named
    with pytest.raises(BundleError, match=r"parts\.extractor\.features: expected a layer's name or a list of names"):
        tp.load(forged.write(tmp_path / "forged"))


def test_what_could_not_be_read_is_not_written(defense, tmp_path):
    odd = tp.Defense(**vars(replace(defense.parts, about={"split_sizes": {"kernel": 0.5}})))
    with pytest.raises(BundleError, match=r"manifest\.json: about\.split_sizes\.kernel: expected a valid integer"):
        odd.save(tmp_path / "bundle")
    many = defense.config.model_copy(update={"detector": defense.config.detector.model_copy(update={"permutations": 10**6})})
    with pytest.raises(BundleError, match="1,000,000 permutations"):
        tp.Defense(**vars(replace(defense.parts, config=many))).save(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_names_that_no_terminal_should_see_are_kept_and_written_as_escapes(defense, tmp_path):
    about = {"classes": ["\x1b[31mred", "\udcff"]}
    tp.Defense(**vars(replace(defense.parts, about=about))).save(tmp_path / "bundle")
    assert "\\x1b[31mred, \\udcff" in (tmp_path / "bundle" / "README.md").read_text()
    assert tp.load(tmp_path / "bundle").about == about


@pytest.mark.parametrize(
    ("text", "depth"),
    [("1", 0), ("[]", 1), ('{"a": [1, {}]}', 3), ('"[[["', 0), (r'["\\\"[["]', 1), ("[[[", 3), ("]][", 0)],
)
def test_depth_is_counted_outside_strings(text, depth):
    assert deepest(text.encode()) == max(depth, 0)
