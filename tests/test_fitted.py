import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import twoprong as tp
from twoprong.attacks import ATTACKS
from twoprong.fitted import ATTACKED, measure_fit, measure_layers
from twoprong.measure import wilson
from twoprong.routes import Denoised


def harmless(part):
    return part.images


def test_every_number_is_what_the_defence_does_on_the_images(defense, digits):
    attack = ATTACKS["pgd"](eps=0.2, steps=5, random_start=False)

    def craft(part):
        return attack(defense.classifier, part.images, part.labels).images

    fitted = measure_fit(defense, digits.test, "test images", craft, 0)
    count = len(digits.test)
    assert fitted.images == f"{count} test images"
    assert fitted.clean_batches * fitted.batch_size <= count < (fitted.clean_batches + 1) * fitted.batch_size
    assert fitted.attacked_batches == min(count, ATTACKED) // fitted.batch_size
    found = (defense.classifier(digits.test.images).argmax(1) == digits.test.labels).double().mean().item()
    assert fitted.clean_bare == pytest.approx(found)
    left = (defense.classifier(craft(digits.test)).argmax(1) == digits.test.labels).double().mean().item()
    assert fitted.attacked_bare == pytest.approx(left)
    assert fitted.found > fitted.false_alarms
    if fitted.found == fitted.attacked_batches:  # then the defence is the denoiser's route, up to the draw of its noise
        assert fitted.attacked_defended == pytest.approx(fitted.attacked_denoised, abs=0.1)
    assert fitted == measure_fit(defense, digits.test, "test images", craft, 0)


def test_images_that_nobody_attacked_are_found_as_often_as_clean_ones(defense, digits):
    fitted = measure_fit(defense, digits.test, "test images", harmless, 0)
    assert fitted.attacked_bare == fitted.clean_bare
    assert abs(fitted.found - fitted.false_alarms) <= 2
    facts, values = fitted.facts(), fitted.as_dict()
    low, high = wilson(fitted.false_alarms, fitted.clean_batches)
    (rate,) = (text for name, text in facts.items() if name.startswith("false alarms"))
    assert f"({low:.1%} to {high:.1%})" in rate
    assert values["false_alarm_interval"] == [low, high]


def test_images_sorted_by_class_are_mixed_before_some_are_taken(defense, digits, monkeypatch):
    monkeypatch.setattr("twoprong.fitted.ATTACKED", 100)
    monkeypatch.setattr("twoprong.fitted.KNOWING", 100)
    by_class, taken = digits.test[digits.test.labels.argsort()], []

    def craft(part):
        taken.append(part.labels)
        return part.images

    def attack(subject, images, labels, draw):
        taken.append(labels)
        return SimpleNamespace(accuracy=0.0)

    fitted = measure_fit(defense, by_class, "test images", craft, 0)
    assert fitted.found <= fitted.attacked_batches / 2  # nobody attacked; batches of one class would all be flagged
    monkeypatch.setattr("twoprong.fitted.Gate", lambda **_: attack)
    measure_layers(defense, by_class, 0)
    assert [len(labels) for labels in taken] == [100] * 3
    assert all(labels.unique().tolist() == list(range(10)) for labels in taken)  # the first 100 are of three classes


def test_a_denoiser_that_does_harm_is_said(defense, digits, caplog):
    noisy = Denoised(defense.classifier, defense.flagged.denoiser, 1.0)
    worse = tp.Defense(**vars(replace(defense.parts, flagged=noisy)))
    fitted = measure_fit(worse, digits.test, "test images", harmless, 0)  # nothing to repair, and noise costs accuracy
    assert fitted.harmful
    assert "more harm than good" in caplog.text
    assert "more harm than good" in fitted.facts()["warning"]
    better = replace(fitted, attacked_denoised=1.0, found=1)
    assert not better.harmful
    assert "warning" not in better.facts()


def test_a_test_that_finds_nothing_is_said(defense, digits, caplog):
    blind = copy.deepcopy(defense)
    blind.detector.upper.fill_(0.9)
    fitted = measure_fit(blind, digits.test, "test images", lambda part: part.images.rot90(1, (2, 3)), 0)
    assert fitted.found == 0
    assert "the test found none of" in caplog.text
    assert "the test found none of" in fitted.facts()["warning"]


def test_too_few_images_for_a_batch_give_nothing(older, digits):
    assert measure_fit(older, digits.test[:1], "test images", harmless, 0) is None


def test_fewer_images_make_smaller_batches_not_fewer(defense, digits):
    assert measure_fit(defense, digits.test[: torch.tensor(100)], "test images", harmless, 0).clean_batches == 10
