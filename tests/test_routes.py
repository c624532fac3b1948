"""Routes by themselves, and a third kind of route through a whole evaluation without a line of attacks/ or evaluation/."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import twoprong as tp
from twoprong.data.splits import split
from twoprong.defense import Defense
from twoprong.errors import BundleError
from twoprong.models.features import Features
from twoprong.recipe import paper_defense, sample, train_named
from twoprong.routes import ROUTES, Denoised, Direct, Gated, Robust
from twoprong.seeds import generator


class Blurred(Direct):
    """A route of another kind: a blur of random strength, then the mean of two classifiers."""

    kind = "blurred"

    def __init__(self, classifier, second, most):
        super().__init__(classifier)
        self.second, self.most = second, most

    @property
    def random(self):
        return True

    def disturb(self, images, draws=1, generator=None):
        many = images.repeat(draws, 1, 1, 1)
        strength = self.most * torch.rand(len(many), 1, 1, 1, generator=generator, device=images.device)
        return torch.lerp(many, F.avg_pool2d(many, 3, 1, 1), strength)

    def classify(self, seen, known=()):
        return (self.classifier(seen) + self.second(seen)) / 2

    def settings(self):
        return {"most": self.most}


@pytest.fixture(scope="module")
def blurred(defense, classifier):
    return Defense(**vars(replace(defense.parts, flagged=Blurred(classifier, classifier, 0.5))))


def test_a_new_kind_of_route_is_one_class(blurred, digits, monkeypatch):
    """By `quick`, every attack and every check meets it; the flagged route alone is a baseline under its kind's name."""
    monkeypatch.setattr("twoprong.evaluation.protocols.HIDING", {"steps": 20, "penalties": (1.0, 10.0)})
    found = tp.evaluate(blurred, digits.test[:100], batch_size=20, count=20)
    results = found.results if isinstance(found.results, dict) else found.results.model_dump(mode="json")
    assert found.reliable, [check for check in results["sanity"] if check["status"] == "failed"]
    assert {"defense", "bare", "blurred", "reject"} <= set(results["worst_case"])
    attacks = {attack["name"]: attack["subjects"] for attack in results["attacks"]}
    assert "pgd-eot on the blurred" in attacks
    assert attacks["route"]["defense"]["flagged"] == 1
    status = {check["name"]: check["status"] for check in results["sanity"]}
    assert (status["gradients"], status["broken pipeline"]) == ("passed", "not applicable")  # it has no broken form


def test_it_is_saved_once_its_kind_is_known(blurred, digits, tmp_path, monkeypatch):
    with pytest.raises(BundleError, match="'blurred' cannot be saved"):
        blurred.save(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(ROUTES, "blurred", Blurred)
    blurred.save(tmp_path / "bundle")
    loaded, images = tp.load(tmp_path / "bundle"), digits.test.images[:50]
    assert loaded.flagged.most == 0.5
    assert loaded.flagged.second is loaded.classifier  # one network, stored once
    assert not (tmp_path / "bundle" / "second.safetensors").exists()
    draws = [one.logits(images, "flagged", 3, generator(0, "x")) for one in (blurred, loaded)]
    assert torch.equal(*draws)


def test_the_test_may_look_through_another_network(defense, digits, small_config, tmp_path):
    """The extractor is a part of its own: stored and loaded with the bundle, in eval mode, and asked once a batch."""
    other = train_named("cnn", digits.train, 10, small_config.model_copy(update={"seed": 7}))
    parts = split(digits.train, small_config.splits, 0)
    extract = Features(other)
    detector = tp.Detector(
        tp.DeepKernel.from_median(sample(extract, parts.kernel.images)).requires_grad_(False),
        sample(extract, parts.reference.images),
    )
    detector.calibrate(sample(extract, parts.calibration.images), small_config.detector, 0)
    made = paper_defense(defense.classifier, extract, detector, defense.flagged.denoiser, small_config)
    made.save(tmp_path / "bundle")
    loaded, batch = tp.load(tmp_path / "bundle"), digits.test.images[:50]
    assert (tmp_path / "bundle" / "extractor.safetensors").exists()
    assert loaded(batch).statistic == made(batch).statistic != defense(batch).statistic
    assert torch.equal(loaded(batch).logits, defense.classifier(batch))


def test_direct_takes_what_is_known_and_denoised_does_not(classifier, defense, digits):
    images = digits.test.images[:4]
    known = {classifier: torch.full((4, 10), 7.0)}
    assert torch.equal(Direct(classifier).classify(images, known), known[classifier])
    assert torch.equal(Direct(classifier).classify(images), classifier(images))
    decision = defense(images)
    shifted = Defense(**vars(replace(defense.parts, passing=Denoised(classifier, defense.flagged.denoiser, 0.0))))
    if not decision.adversarial:  # what the test has computed belongs to the images, not to what a route makes of them
        assert not torch.equal(shifted(images).logits, decision.logits)


def test_a_random_route_gives_every_draw_its_own_noise(defense, digits):
    images = digits.test.images[:5]
    route = defense.flagged
    assert route.random
    many = route.disturb(images, 3, generator(0, "noise"))
    assert many.shape == (15, *images.shape[1:])
    assert torch.equal(many[:5], route.disturb(images, 3, generator(0, "noise"))[:5])
    assert not torch.equal(many[:5], many[5:10])
    assert route.logits(images, 3).shape == (3, 5, 10)
    assert not Denoised(defense.classifier, route.denoiser, 0.0).random


class Says(torch.nn.Module):
    """Two classes; the first pixel is the first logit, the other is nought."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, images):
        first = self.factor * images[:, 0, 0, 0]
        return torch.stack([first, torch.zeros_like(first)], 1)


def test_a_gate_answers_with_the_robust_network_where_that_leads_and_with_the_classifier_elsewhere():
    accurate, robust = Says(-1.0), Says(1.0)
    tau = (torch.tensor([0.5, 0.0]).softmax(0) @ torch.tensor([1.0, -1.0])).item()  # the lead at a pixel of 0.5
    images = torch.tensor([0.2, 0.4999, 0.5001, 0.9])[:, None, None, None]
    answers = Gated(accurate, robust, tau).classify(images)
    assert torch.equal(answers, torch.cat([accurate(images[:2]), robust(images[2:])]))
    assert torch.equal(Gated(accurate, robust, 0.0).classify(images), Robust(robust).classify(images))
    known = {accurate: torch.full((4, 2), 7.0)}
    assert torch.equal(Gated(accurate, robust, tau).classify(images, known)[:2], known[accurate][:2])


def test_a_lead_that_is_not_a_number_does_not_lead_to_the_classifier():
    class Lost(torch.nn.Module):
        def forward(self, images):
            return torch.full((len(images), 2), torch.nan)

    assert Gated(Says(1.0), Lost(), 0.5).classify(torch.rand(3, 1, 1, 1)).isnan().all()


def test_the_gates_gradient_blends_only_near_its_threshold():
    accurate, robust = Says(-3.0), Says(10.0)
    gate = Gated(accurate, robust, 0.5)
    pixels = torch.tensor([0.0, 0.1097, 0.9]).requires_grad_()  # A answers; the lead is nearly tau; R answers
    images = pixels[:, None, None, None]
    logits = gate.classify(images)
    torch.testing.assert_close(logits, torch.cat([accurate(images[:2]), robust(images[2:])]))
    (slopes,) = torch.autograd.grad(logits[:, 0].sum(), pixels)
    assert slopes[0].item() == pytest.approx(-3, abs=0.01)
    assert slopes[1].item() == pytest.approx(3.5, abs=0.2)  # the mean of the two
    assert slopes[2].item() == pytest.approx(10, abs=0.01)


def test_past_all_hurdles_the_answer_is_wrong():
    """Whatever the networks say: random logits, as embeddings of the image."""
    draw = generator(0, "hurdles")
    images, labels = torch.rand(4000, 1, 1, 6, generator=draw), torch.randint(3, (4000,), generator=draw)

    class Part(torch.nn.Module):
        def __init__(self, first):
            super().__init__()
            self.first = first

        def forward(self, x):
            return 3 * x.flatten(1)[:, self.first : self.first + 3]

    gate = Gated(Part(0), Part(3), 0.3)
    past = torch.stack([hurdle.past for hurdle in gate.hurdles(images, labels)])
    wrong = gate.classify(images).argmax(1) != labels
    assert torch.equal((past > 0).all(0), wrong)
    assert 0.1 < wrong.float().mean() < 0.9
