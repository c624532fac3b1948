import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import twoprong as tp
from twoprong.bundle import BLANK, _digest
from twoprong.cli import app
from twoprong.errors import BundleError

ESCAPE = "\x1b]0;owned\x07"


@pytest.fixture(scope="module")
def bundle(defense, tmp_path_factory):
    path = tmp_path_factory.mktemp("inspect") / "bundle"
    tp.Defense(**vars(replace(defense.parts, about={"classes": ["cat", "dog"], "measured": {"speed": 3}}))).save(path)
    return path


def signed(bundle, change) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    text = json.dumps(manifest | {"digest": BLANK})
    (bundle / "manifest.json").write_text(text.replace(BLANK, _digest(text.encode())))


def test_it_shows_the_thresholds_in_force_without_a_network(bundle, defense, monkeypatch):
    monkeypatch.setattr("twoprong.rebuild.NETWORKS", {})
    shown = CliRunner().invoke(app, ["inspect", str(bundle)], catch_exceptions=False)
    assert shown.exit_code == 0
    for size, upper in zip(*(column.tolist() for column in defense.detector.thresholds[:2]), strict=True):
        (row,) = [line.split() for line in shown.stdout.splitlines() if line.split()[1:2] == [str(size)]]
        assert row[3] == f"{upper:.6f}"


def test_other_thresholds_in_the_manifest_are_refused(bundle):
    path = bundle.with_name("other")
    tp.load(bundle).save(path)
    signed(path, lambda manifest: manifest["thresholds"][0].update(threshold=123.0))
    with pytest.raises(BundleError, match="other thresholds than those in force"):
        CliRunner().invoke(app, ["inspect", str(path)], catch_exceptions=False)


def test_nothing_in_a_bundle_speaks_to_the_terminal(bundle):
    path = bundle.with_name("escapes")
    tp.load(bundle).save(path)

    def change(manifest):
        manifest["about"] |= {
            "classes": [ESCAPE, "\ud800"],
            "data": ESCAPE,
            "fitted": [ESCAPE],
            "measured": {ESCAPE: ESCAPE},
        }
        manifest["versions"][ESCAPE] = "\u202e" + ESCAPE

    signed(path, change)
    for more in ((), ("--json",)):
        shown = CliRunner().invoke(app, ["inspect", str(path), *more], catch_exceptions=False)
        assert shown.exit_code == 0
        assert "owned" in shown.stdout
        assert all(letter.isprintable() or letter == "\n" for letter in shown.stdout)
