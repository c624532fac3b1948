"""Sound defences pass; every planted error is caught."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from twoprong.attacks.evade import Evade
from twoprong.attacks.noise import Noise
from twoprong.attacks.pgd import PGD
from twoprong.attacks.route import RouteAttack
from twoprong.defense import Defense
from twoprong.evaluation.protocols import Item
from twoprong.evaluation.run import evaluate
from twoprong.evaluation.sanity import numbers, probes
from twoprong.models.features import Features
from twoprong.recipe import paper_defense, sample
from twoprong.results.detector import DetectorStudy, SizeRate
from twoprong.results.evaluation import AttackedBatch, AttackEntry, CurvePoint
from twoprong.results.scores import Accuracy
from twoprong.routes import Denoised

EPS = 0.2


def protocol(steps=20):
    return [
        Item("noise", "noise", Noise(eps=EPS), "bare"),
        Item("pgd", "bare", PGD(eps=EPS, steps=steps), "bare", curve="pgd", keep=True),
        Item("pgd half", "bare", PGD(eps=EPS / 2, steps=steps), "bare", curve="pgd", keep=True),
        Item("evade", "adaptive", Evade(eps=EPS, steps=steps, penalties=(1.0, 100.0))),
    ]


SHORT = [Item("noise", "noise", Noise(eps=EPS), "bare"), Item("pgd", "bare", PGD(eps=EPS), "bare")]  # without the study


def checks(defense, digits, items):
    """The statuses of a small evaluation, by check, and whether it is called reliable."""
    evaluation = evaluate(defense, digits.test[:120], protocol=items, batch_size=40, count=40)
    found = {check.name: check.status for check in evaluation.results.sanity}
    assert evaluation.reliable == ("failed" not in found.values())
    return found


def like(defense, kind):
    """The same parts in a defence of another class."""
    return kind(**vars(copy.deepcopy(defense).parts))


def around(defense, classifier):
    """The same defence around another classifier."""
    denoiser = copy.deepcopy(defense.flagged.denoiser)
    return paper_defense(classifier, Features(classifier), copy.deepcopy(defense.detector), denoiser, defense.config)


def test_a_sound_defence_passes_every_check(defense, digits):
    found = checks(defense, digits, protocol(steps=10))
    assert len(found) == 12
    assert set(found.values()) <= {"passed", "not converged"}
    assert "convergence" in found
    assert found["gradients"] == found["large budget"] == found["broken pipeline"] == "passed"


def test_gradients_cut_by_detach_are_caught(defense, digits):
    class Cut(Denoised):
        def disturb(self, images, draws=1, generator=None):
            return super().disturb(images.detach(), draws, generator)

    cut = like(defense, Defense)
    cut.flagged = Cut(**cut.flagged.networks(), **cut.flagged.settings())
    found = checks(cut, digits, [*SHORT, Item("route", "adaptive", RouteAttack(eps=EPS, steps=2))])
    assert found["gradients"] == "failed"


def test_a_classifier_without_gradients_is_caught_and_the_rest_goes_on(defense, digits):
    """Then nothing that needs a gradient can run, the study of the detector neither: a report is made all the same."""

    class Cut(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, images):
            return self.inner(images.detach())

    classifier = Cut(copy.deepcopy(defense.classifier))
    broken = around(defense, classifier)
    evaluation = evaluate(broken, digits.test[:80], protocol=protocol(), batch_size=40, count=40)
    assert not evaluation.reliable
    assert {entry.name for entry in evaluation.results.not_run} == {"pgd", "pgd half", "evade"}
    assert evaluation.results.study is None
    assert evaluation.results.as_dict()["detector"] == {}


def test_an_attack_that_fails_for_another_reason_is_not_left_out(defense, digits):
    class Failing(Evade):
        def perturb(self, target, images, labels, generator):
            raise RuntimeError("expected grad_output to have another layout")

    with pytest.raises(RuntimeError, match="another layout"):
        evaluate(defense, digits.test[:80], protocol=[*SHORT, Item("evade", "adaptive", Failing())], batch_size=40, count=40)


def test_a_quantising_step_is_caught(defense, digits):
    class Quantised(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, images):
            return self.inner((images * 8).round() / 8)

    classifier = Quantised(copy.deepcopy(defense.classifier))
    found = checks(around(defense, classifier), digits, SHORT)
    assert found["gradients"] == "failed"


def test_a_defence_that_reads_the_label_is_caught(defense, digits):
    """It looks up the true label of whatever it is shown by its place in the batch, and answers with that."""

    class Reader(Defense):
        def forward(self, images, generator=None):
            decision = super().forward(images, generator)
            truth = torch.nn.functional.one_hot(self.labels[: len(images)], 10).float()
            return replace(decision, logits=truth)

        decide = forward

    reader = like(defense, Reader)
    batch = digits.test[:40]
    reader.labels = batch.labels
    assert probes.swapped(defense, batch, 0).status == "passed"
    assert probes.swapped(reader, batch, 0).status == "failed"
    assert probes.large_budget(reader, batch, 0).status == "failed"
    one_class = digits.test[digits.test.labels == 3]
    assert probes.swapped(defense, one_class, 0).status == "not applicable"


def test_a_defence_that_knows_the_test_images_is_caught(defense, digits):
    """It finds the nearest of the test images and answers with its label: what is deployed is not what is attacked."""

    class Memory(Defense):
        def forward(self, images, generator=None):
            decision = super().forward(images, generator)
            nearest = torch.cdist(images.flatten(1), digits.test.images.flatten(1)).argmin(1)
            return replace(decision, logits=torch.nn.functional.one_hot(digits.test.labels[nearest], 10).float())

        decide = forward

    batch = digits.test[:40]
    attacked = PGD(eps=EPS)(defense.classifier, batch.images, batch.labels).images
    assert probes.consistent(defense, [batch.images, attacked], 0).status == "passed"
    assert probes.consistent(like(defense, Memory), [batch.images, attacked], 0).status == "failed"


@pytest.mark.parametrize(("hidden", "words"), [(False, "at 2x the budget"), (True, "could not run")])
def test_a_broken_pipeline_that_does_not_break_is_caught(defense, digits, hidden, words):
    """The classifier answers as before and hides its gradient: an attack that leaves this standing says nothing."""
    batch = digits.test[:20]
    masked = copy.deepcopy(defense)
    masked.classifier.register_forward_pre_hook(lambda _, given: given[0].detach() + (0 if hidden else 0 * given[0]))
    assert probes.broken(defense, batch, EPS, "linf", 0, bare=0.0).status == "passed"
    found = probes.broken(masked, batch, EPS, "linf", 0, bare=0.0)
    assert found.status == "failed"
    assert words in found.detail
    assert probes.broken(masked, batch, EPS, "linf", 0, bare=0.5).status == "not applicable"


def test_an_attack_of_one_step_is_caught(defense, digits):
    """At a budget at which one step of the full size is not nearly as good as two; a sound one (above) is not caught."""
    items = [Item("evade", "adaptive", Evade(eps=0.13, steps=1, penalties=(1.0, 100.0)))]
    results = evaluate(defense, digits.test[:50], protocol=items, batch_size=50, eps=0.13).results
    assert [check.status for check in results.sanity if check.name == "convergence"] == ["failed"]


def test_a_detector_calibrated_on_its_own_test_batches_is_caught(defense, digits):
    broken = like(defense, Defense)
    broken.detector.calibrate(sample(broken.extractor, digits.test.images), broken.config.detector, 0)
    found = checks(broken, digits, SHORT)
    assert found["unseen images"] == "failed"
    assert probes.unseen(defense, digits.test).status == "passed"


def test_a_bundle_that_does_not_say_what_it_was_calibrated_on_does_not_pass(defense, digits):
    older = like(defense, Defense)
    older.detector.calibrated_on = older.detector.calibrated_on[:0]
    assert probes.unseen(older, digits.test).status == "not applicable"


def test_a_reference_of_test_images_is_caught(defense, digits):
    data = replace(digits.test[:100], images=defense.reference_images()[:100])
    assert probes.unseen(defense, data).status == "failed"


def test_images_outside_the_ball_are_caught():
    def status(**change):
        batch = AttackedBatch.model_construct(**{"distance": 0.1, "lowest": 0.0, "highest": 1.0} | change)
        return numbers.in_ball([AttackEntry.model_construct(name="a", eps=0.1, batches=[batch])]).status

    assert status() == "passed"
    for change in ({"distance": 0.11}, {"lowest": -0.01}, {"highest": 1.01}):
        assert status(**change) == "failed"


@pytest.mark.parametrize(
    ("left", "status"),
    [
        ({"noise": 0.9, "bare": 0.5, "paper": 0.6, "adaptive": 0.1}, "passed"),  # paper and adaptive know the same
        ({"noise": 0.9, "bare": 0.5, "paper": 0.7}, "failed"),
        ({"transfer": 0.3, "bare": 0.5, "adaptive": 0.4}, "failed"),
        ({"transfer": 0.3, "bare": 0.5, "adaptive": 0.2}, "passed"),  # neither of the two knows the defence
        ({"bare": 0.90, "adaptive": 0.91}, "passed"),  # chance
        ({"noise": 0.3, "bare": 0.5}, "not applicable"),
    ],
)
def test_who_knows_more_must_not_do_worse(left, status):
    assert numbers.ordered(left, 400).status == status


def test_accuracy_that_rises_with_the_budget_is_caught():
    def curve(*values, attack="a", subject="d"):
        return [
            CurvePoint(
                eps=eps,
                attack=attack,
                threat_model="bare",
                subjects={name: Accuracy(accuracy=value, interval=(0.0, 1.0)) for name in ("d", subject)},
                batches=[],
            )
            for eps, value in zip((0.0, 0.1, 0.2), values, strict=True)
        ]

    falls, rises = curve(0.9, 0.5, 0.1), curve(0.9, 0.1, 0.5)
    assert numbers.monotone(falls, {"a": "d"}, 400).status == "passed"
    assert numbers.monotone(rises, {"a": "d"}, 400).status == "failed"
    # An attack may be erratic where another one is not, but not where both are, and not if the other attacks someone else.
    better, worse = curve(0.9, 0.1, 0.1, attack="b"), curve(0.9, 0.2, 0.4, attack="b")
    covered = numbers.monotone([*rises, *better], {"a": "d", "b": "d"}, 400)
    assert (covered.status, covered.detail) == ("not converged", "a: 10.0% at 0.1, 50.0% at 0.2")
    both = numbers.monotone([*rises, *worse], {"a": "d", "b": "d"}, 400)
    assert both.status == "failed"
    assert both.detail.startswith("d: 10.0% at 0.1, 40.0% at 0.2; a: ")
    other = curve(0.9, 0.1, 0.1, attack="b", subject="e")
    assert numbers.monotone([*rises, *other], {"a": "d", "b": "e"}, 400).status == "failed"


def test_noise_that_does_much_to_the_classifier_is_caught():
    clean = {"bare": 0.95, "defense": 0.95}
    # The denoiser has its price: what noise does to the defence is not judged.
    assert numbers.harmless_noise(clean, {"bare": 0.9, "defense": 0.7}, 0.9).status == "passed"
    assert numbers.harmless_noise(clean, {"bare": 0.7, "defense": 0.9}, 0.0).status == "failed"
    assert numbers.harmless_noise(clean, {"bare": 0.8, "defense": 0.9}, 0.0).status == "passed"  # attacks do far more
    assert numbers.harmless_noise(clean, {"bare": 0.8, "defense": 0.9}, 0.3).status == "failed"


@pytest.mark.parametrize(
    ("images", "after", "status"),
    [
        (1000, 300, "passed"),
        (1000, 295, "passed"),
        (1000, 270, "not converged"),
        (1000, 200, "failed"),
        (1000, 400, "failed"),  # more effort that helps the defence is a bug
        (20, 4, "not converged"),  # two images of twenty: far, but that is chance
    ],
)
def test_twice_the_effort_must_change_little(images, after, status):
    item = Item("pgd", "bare", PGD(eps=EPS, steps=10))
    before = round(0.3 * images)

    def score(attack):
        right = before if attack == item.attack else after
        return [1.0] * right + [0.0] * (images - right)

    found = numbers.converged(item, score)
    assert found.status == status
    assert set(found.values["after"]) == {"20 steps", "2 draws", "2 restarts"}


def test_where_nothing_is_left_more_effort_has_nothing_to_find():
    item = Item("pgd", "bare", PGD(eps=EPS, steps=10))
    asked = []
    found = numbers.converged(item, lambda attack: asked.append(attack) or [0.0] * 50)
    assert (found.status, asked) == ("passed", [item.attack])


def test_false_alarms_above_what_was_asked_for_are_caught():
    def detector(interval):
        row = SizeRate(size=10, rate=0.1, interval=interval, batches=100, independent=10)
        return DetectorStudy.model_construct(false_alarm_rate=0.05, false_alarms=[row])

    assert numbers.false_alarms(detector([0.03, 0.2]), True).status == "passed"
    assert numbers.false_alarms(detector([0.06, 0.2]), True).status == "failed"
    assert numbers.false_alarms(detector([0.06, 0.2]), False).status == "not applicable"  # a constant promises nothing
