import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import twoprong as tp
from twoprong.data.splits import split
from twoprong.data.tensors import image_digests
from twoprong.errors import InputError
from twoprong.recipe import train_named
from twoprong.storage import fingerprint

pytestmark = pytest.mark.usefixtures("rough")


@pytest.fixture(scope="module")
def fitted(classifier, few, tiny_config):
    return tp.fit(classifier, few, config=tiny_config)


def same(a: tp.Defense, b: tp.Defense) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_same_seed_gives_the_same_defence_and_another_seed_another(classifier, few, tiny_config, fitted):
    torch.manual_seed(5)  # the global stream has no say
    again = tp.fit(classifier, few, config=tiny_config)
    assert same(again, fitted)
    other = tp.fit(classifier, few, config=tiny_config.model_copy(update={"seed": 1}))
    assert not same(other, fitted)


def test_tensors_a_dataset_and_a_loader_give_the_same_defence(classifier, few, tiny_config, fitted):
    images, labels = few.images, few.labels
    dataset = TensorDataset(images, labels)
    assert same(tp.fit(classifier, images, labels, tiny_config), fitted)
    assert same(tp.fit(classifier, dataset, config=tiny_config), fitted)
    assert same(tp.fit(classifier, DataLoader(dataset, batch_size=64), config=tiny_config), fitted)


def test_the_classifier_comes_back_with_its_own_weights_in_eval_mode(classifier, few, tiny_config):
    model = nn.Sequential(classifier, nn.Identity()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tp.fit(model, few, config=tiny_config, held_out="none")
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_each_part_of_the_images_is_used_for_what_it_is_called(fitted, few, tiny_config):
    parts = split(few, tiny_config.splits, tiny_config.seed)
    assert torch.equal(fitted.reference_images(), parts.reference.images)
    assert torch.equal(fitted.detector.calibrated_on, image_digests(parts.calibration.images))


def test_held_out_images_become_reference_and_calibration(classifier, digits, few, tiny_config):
    unlimited = {"reference": 200, "calibration": 400}
    settings = tiny_config.model_copy(update={"splits": tiny_config.splits.model_copy(update=unlimited)})
    found = tp.fit(classifier, few, config=settings, held_out=digits.test)
    unseen = {image.numpy().tobytes() for image in digits.test.images}
    assert all(image.numpy().tobytes() in unseen for image in found.detector.reference_pixels)
    assert found.about["split_sizes"]["reference"] + found.about["split_sizes"]["calibration"] == len(digits.test)


def guided_by(config, guide, **kernel):
    changed = {
        "kernel": config.kernel.model_copy(update=kernel),
        "denoiser": config.denoiser.model_copy(update={"guide": guide, "epochs": 1}),
    }
    return config.model_copy(update=changed)


def test_the_denoiser_is_guided_by_the_kernel_as_it_starts_or_by_the_detectors(classifier, digits, tiny_config):
    enough = tiny_config.model_copy(update={"splits": tiny_config.splits.model_copy(update={"kernel": 250})})

    def fitted(guide, **kernel):
        return tp.fit(classifier, digits.train, config=guided_by(enough, guide, **kernel), measure=False)

    learned = [fitted(guide, epochs=20) for guide in ("median", "detector")]
    assert fingerprint(learned[0].detector) == fingerprint(learned[1].detector)
    assert fingerprint(learned[0].flagged.denoiser) != fingerprint(learned[1].flagged.denoiser)
    unlearned = fitted("detector", epochs=0, projections=(0,))
    assert fingerprint(unlearned.flagged.denoiser) == fingerprint(learned[0].flagged.denoiser)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_run_stopped_in_the_denoiser_resumes_to_the_same_defence(classifier, few, tiny_config, fitted, tmp_path, epoch):
    def stop(stage, done, total, note=""):
        if stage == "denoiser" and done == epoch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tp.fit(classifier, few, config=tiny_config, work=tmp_path, progress=stop)
    seen = []
    resumed = tp.fit(
        classifier,
        few,
        config=tiny_config,
        work=tmp_path,
        resume=True,
        progress=lambda stage, done, *_: seen.append((stage, done)),
    )
    assert ("denoiser", epoch) not in seen
    assert ("denoiser", epoch + 1) in seen
    assert same(resumed, fitted)


def test_a_checkpoint_of_other_settings_is_not_resumed(classifier, few, tiny_config, tmp_path):
    tp.fit(classifier, few, config=tiny_config, work=tmp_path)
    other = tiny_config.model_copy(update={"denoiser": tiny_config.denoiser.model_copy(update={"alpha": 0.5})})
    resumed = tp.fit(classifier, few, config=other, work=tmp_path, resume=True)
    assert same(resumed, tp.fit(classifier, few, config=other))


class TooFewClasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        return self.head(x.flatten(1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), "Linear layer"),
        (TooFewClasses(), "labels: expected 0 to 3, the classifier's classes, got 9"),
        (nn.Sequential(nn.Flatten(), nn.Linear(99, 10)), r"classifier: cannot take images of .* = \(1, 8, 8\)"),
        (nn.Sequential(nn.Linear(8, 10)), r"expected logits \(images, classes\), got shape"),
    ],
)
def test_a_classifier_that_does_not_fit_is_refused_before_the_work(digits, model, message):
    with pytest.raises(InputError, match=message):
        tp.fit(model, digits.train)


def test_a_threshold_that_is_never_reached_is_refused_before_the_denoiser_learns(classifier, few, tiny_config):
    heard = []
    detector = tiny_config.detector.model_copy(update={"threshold": 5.0})
    with pytest.raises(InputError, match="a threshold of 5 is never reached"):
        tp.fit(
            classifier,
            few,
            config=tiny_config.model_copy(update={"detector": detector}),
            progress=lambda stage, *_: heard.append(stage),
        )
    assert "craft for the kernel" in heard
    assert not [stage for stage in heard if "denoiser" in stage]


def test_bad_images_and_labels_are_refused(classifier, digits):
    images, labels = digits.train.images, digits.train.labels
    with pytest.raises(InputError, match="divide by 255"):
        tp.fit(classifier, images * 255, labels)
    with pytest.raises(InputError, match="labels"):
        tp.fit(classifier, images, labels[:-1])
    with pytest.raises(InputError, match=r"labels.*-1"):
        tp.fit(classifier, images, labels - 1)
    with pytest.raises(InputError, match="too few"):
        tp.fit(classifier, images[:60], labels[:60])
    with pytest.raises(InputError, match="no layer 'nowhere'"):
        tp.fit(classifier, images, labels, features="nowhere")


def test_names_of_classes_are_kept_and_counted(classifier, digits, few, tiny_config, fitted):
    named = tp.fit(classifier, few, config=tiny_config, classes=digits.classes, test=digits.test)
    assert named.about["classes"] == list("0123456789")
    assert named.about["measured_values"]["images"] == f"{len(digits.test)} test images"
    assert "which the thresholds were set on" in fitted.about["measured"]["measured on"]
    assert same(named, fitted)  # to measure changes nothing
    with pytest.raises(InputError, match="expected 10 different names"):
        tp.fit(classifier, few, config=tiny_config, classes=["cat", "dog"])


def test_test_images_that_are_in_another_part_are_refused_or_called_so(classifier, digits, few, tiny_config):
    half = digits.test[: len(digits.test) // 2]
    for given in ({"test": few}, {"test": half, "held_out": digits.test}):
        with pytest.raises(InputError, match=f"test: {len(given['test'])} of .* the held-out ones, too"):
            tp.fit(classifier, few, config=tiny_config, **given)
    forced = tp.fit(classifier, few, config=tiny_config, held_out=digits.test, test=half, force=True)
    words = f"{len(half)} test images, of which {len(half)} are not new to the defence"
    assert forced.about["measured"]["measured on"] == words


def test_labels_in_another_order_are_refused_before_the_work(classifier, digits, small_config):
    images, labels = digits.train.images, digits.train.labels
    for wrong in (labels.flip(0), (labels + 1) % 10, torch.where(labels < 2, 1 - labels, labels)):
        with pytest.raises(InputError, match=r"classes=\[\.\.\.\]"):
            tp.fit(classifier, images, wrong, small_config)


def test_no_held_out_images_for_a_classifier_from_elsewhere_is_a_choice(classifier, digits, small_config, caplog):
    foreign = nn.Sequential(classifier)

    def stop(*_):
        raise KeyboardInterrupt  # what comes after the checks is of no interest here

    with pytest.raises(KeyboardInterrupt):
        tp.fit(foreign, digits.train, config=small_config, held_out="none", progress=stop)
    assert "held_out" not in caplog.text
    with pytest.raises(InputError, match="not held out"):
        tp.fit(foreign, digits.train, config=small_config, held_out=digits.train, progress=stop)
    with pytest.raises(InputError, match="held_out: expected one of none, got 'val'"):
        tp.fit(foreign, digits.train, config=small_config, held_out="val", progress=stop)
    with pytest.raises(InputError, match=r'held_out: expected a choice.*held_out="none".*force=True'):
        tp.fit(foreign, digits.train, config=small_config, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        tp.fit(foreign, digits.train, config=small_config, force=True, progress=stop)
    assert "held_out: expected a choice" in caplog.text


def test_a_classifier_trained_against_a_tiny_attacker_withstands_more_of_it(classifier, digits, small_config, tmp_path):
    eps = 0.1
    course = small_config.classifier.model_copy(update={"eps": eps, "epochs": 12})
    config = small_config.model_copy(update={"classifier": course})
    said = []
    made = train_named("cnn", digits.train, 10, config, tmp_path, progress=lambda stage, *_: said.append(stage))
    attack, test = tp.attacks.ATTACKS["pgd"](eps=eps, steps=10), digits.test[:200]
    held = {
        net: attack(net, test.images, test.labels, torch.Generator().manual_seed(0)).accuracy for net in (classifier, made)
    }
    assert held[made] > held[classifier] + 0.1
    assert (made(test.images).argmax(1) == test.labels).double().mean() > 0.9
    assert set(said) == {"classifier"}
    again = train_named("cnn", digits.train, 10, config, tmp_path, resume=True)
    assert fingerprint(again) == fingerprint(made)
