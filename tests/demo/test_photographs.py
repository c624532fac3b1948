import json
from dataclasses import replace

import pytest
import torch

from twoprong.demo import photographs as module
from twoprong.demo.photographs import BATCH_SIZE, BATCHES, SHOWN, packaged, photographs
from twoprong.results.demo import DemoPhotographs


@pytest.fixture(autouse=True)
def budget(monkeypatch):
    """The digits are attacked at a budget made for them."""
    monkeypatch.setattr(module, "ATTACK", replace(module.ATTACK, eps=0.2, step=0.05))


@pytest.fixture
def made(defense, digits):
    return photographs(defense, digits, seed=0)


def test_five_clean_batches_then_attacked_ones_of_other_images(made, digits):
    rows = made.results.batches
    assert [row.attacked for row in rows] == [False] * BATCHES + [True] * (len(digits.test) // BATCH_SIZE - BATCHES)
    assert min(row.bare for row in rows[:BATCHES]) > 0.8
    assert max(row.bare for row in rows[BATCHES:]) < 0.5
    for row in rows:
        assert row.flagged == (row.statistic >= row.threshold)
        assert row.flagged or row.defended == row.bare


def test_no_image_is_in_two_batches(defense, digits, monkeypatch):
    seen = []
    judged = type(defense).forward

    def listening(self, images, generator=None):
        seen.append(images)
        return judged(self, images, generator)

    monkeypatch.setattr(type(defense), "forward", listening)
    monkeypatch.setattr(module, "ATTACK", replace(module.ATTACK, eps=1e-7, step=1e-7, steps=1))
    found = photographs(defense, digits, seed=0)
    batches = torch.cat(seen[: len(found.results.batches)]).mul(16).round().flatten(1)
    assert sorted(batches.tolist()) == sorted(digits.test.images.mul(16).flatten(1).tolist())


def test_the_first_attacked_batch_is_shown_with_what_became_of_it(made, defense):
    assert list(made.shown.rows) == ["clean", "attacked", "as classified"]
    clean, attacked, seen = made.shown.rows.values()
    assert len(clean) == len(attacked) == len(seen) == len(made.shown.labels) == SHOWN
    assert 0 < (attacked - clean).abs().max() <= 0.2 + 1e-6
    assert torch.equal(seen, attacked) == (not made.results.batches[BATCHES].flagged)
    assert (defense.logits(clean, "passing")[0].argmax(1) == made.shown.labels).float().mean() > 0.5


def test_the_seed_decides_every_number(made, defense, digits):
    again, other = photographs(defense, digits, seed=0), photographs(defense, digits, seed=1)
    assert again.results == made.results
    assert other.results.batches != made.results.batches
    assert DemoPhotographs.model_validate(json.loads(json.dumps(made.results.as_dict()))) == made.results


def test_it_says_how_far_it_is(defense, digits):
    said = []
    photographs(defense, digits, 0, lambda *step: said.append(step))
    count = len(digits.test) // BATCH_SIZE
    assert said == [("photographs", done, count) for done in range(1, count + 1)]


def test_a_package_without_its_bundle_has_no_photographs(tmp_path, monkeypatch):
    monkeypatch.setattr("twoprong.shipped.HOME", tmp_path)
    assert packaged(0) is None
