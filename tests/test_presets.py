"""Settings by name. `paper` is compared, field by field, with a table typed from the paper's LaTeX source."""

import runpy
from pathlib import Path

import pytest
import torch

import twoprong as tp
from twoprong import names
from twoprong.config import FitConfig
from twoprong.errors import ConfigError
from twoprong.presets import PRESETS, as_config, preset

ROOT = Path(__file__).parents[1]

# Line of dad_paper.tex (the LaTeX of arXiv's version) that says so; 0: the paper says nothing, see twoprong/presets.py.
SAID = {
    "attack.norm": (738, "linf"),
    "attack.eps": (738, 8 / 255),
    "attack.step": (738, 2 / 255),
    "attack.steps": (0, 10),
    "attack.targets": (0, 3),
    "attack.batch_size": (738, 500),
    "kernel.ascent": (293, "paper"),  # Algorithm 1: one minibatch an epoch
    "kernel.projections": (283, (0,)),  # eq. 3 has none
    "kernel.epochs": (738, 200),
    "kernel.lr": (738, 2e-4),
    "kernel.batch_size": (738, 500),  # "the training batch size"
    "kernel.beta0": (0, 5e-11),
    "kernel.pixel_bandwidth": (0, 32.0),
    "kernel.regularisation": (291, 1e-8),
    "splits.kernel": (0, 500),
    "splits.reference": (375, 500),  # "a batch", not seen in training; the first as many as the test batch has are used
    "splits.calibration": (0, 2500),  # there is none; the denoiser learns the same images as by our settings
    "detector.features": (285, None),  # the second last layer
    "detector.extractor": (285, None),  # of the protected classifier
    "detector.statistic": (278, "paired"),  # eq. 2
    "detector.reference": (375, "unseen"),
    "detector.threshold": (586, 0.5),
    "detector.false_alarm_rate": (0, 0.05),  # not used with a constant threshold, like the next one
    "detector.confidence": (0, 0.9),
    "detector.false_blame_rate": (0, 0.1),  # nobody is blamed
    "detector.min_batch_size": (0, 2),
    "detector.max_batch_size": (0, 200),
    "detector.permutations": (0, 200),
    "denoiser.width": (355, 1.0),  # DUNET
    "denoiser.epochs": (738, 60),
    "denoiser.batch_size": (738, 500),
    "denoiser.lr": (738, 1e-3),
    "denoiser.milestones": (738, (44 / 60, 59 / 60)),  # "at the 45th epoch and 60th epoch", the first being epoch 1
    "denoiser.alpha": (338, 1e-2),
    "denoiser.sigma": (338, 0.25),
    "denoiser.noise": (343, "unclamped"),  # S_noise = S_A + n
    "denoiser.estimator": (330, "u"),  # eq. 6 by eq. 2
    "denoiser.guide": (337, "detector"),  # the optimised kernel: one stone, two birds
    "denoiser.clean_share": (343, 0.0),  # S_noise = S_A + n
    "denoiser.clamp": (362, False),  # S_denoised = g(S_noise)
}


def test_every_field_of_the_paper_preset_is_what_the_paper_says():
    ours = ("classifier", "robust")  # "pre-trained": not described; and what only the hardened mode has
    assert PRESETS["paper"].mode == "paper"
    dumped = PRESETS["paper"].model_dump()
    sections = {name: values for name, values in dumped.items() if isinstance(values, dict) and name not in ours}
    fields = {f"{name}.{key}": value for name, values in sections.items() for key, value in values.items()}
    assert fields == {name: value for name, (_, value) in SAID.items()}
    assert [dumped[name] for name in ours] == [FitConfig().model_dump()[name] for name in ours]


def test_for_imagenet_four_things_differ():
    paper, imagenet = PRESETS["paper"], PRESETS["paper-imagenet"]
    assert (imagenet.attack.eps, imagenet.attack.step) == (4 / 255, 1 / 255)
    assert imagenet.detector.threshold == 0.02
    assert imagenet.denoiser.batch_size == imagenet.kernel.batch_size == imagenet.attack.batch_size == 128
    back = {"attack": paper.attack, "detector": paper.detector, "denoiser": paper.denoiser, "kernel": paper.kernel}
    assert imagenet.model_copy(update=back) == paper


def test_presets_have_the_names_that_help_shows_and_can_be_given_by_name():
    assert tuple(PRESETS) == names.PRESETS
    assert as_config("paper") is preset("paper") is PRESETS["paper"]
    assert preset(None) is None
    with pytest.raises(ConfigError, match=r"--preset: expected one of .*paper.*, got 'papr'; did you mean 'paper'\?"):
        preset("papr")
    with pytest.raises(
        ConfigError, match=r"config: expected a TOML file or one of .*, got 'authors.tml'; did you mean 'authors'"
    ):
        as_config("authors.tml")


def test_the_settings_file_of_the_paper_is_up_to_date():
    written = runpy.run_path(str(ROOT / "tools/presets.py"))["as_toml"]("paper")
    assert (ROOT / "configs/paper.toml").read_text() == written, "run python tools/presets.py"
    assert as_config(ROOT / "configs/paper.toml") == PRESETS["paper"]


SPEED = {"denoiser": {"width": 0.1, "epochs": 1}, "classifier": {"epochs": 2}, "kernel": {"epochs": 20}}


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_a_defence_by_the_paper_or_its_authors_is_fitted_decides_and_comes_back_from_disk(
    name, tmp_path, digits, classifier
):
    config = PRESETS[name]
    for section, values in SPEED.items():
        config = config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
    defense = tp.fit(classifier, digits.train, config=config, measure=False, force=True)
    assert defense.detector.batch_sizes == range(2, 201)
    assert {defense.threshold(size) for size in (2, 50, 200)} == {config.detector.threshold}
    assert len(defense.detector.reference) == len(digits.train) // 5
    defense.save(tmp_path / "bundle")
    again, batch = tp.load(tmp_path / "bundle"), digits.test.images[:100]
    assert again.config == config
    assert again(batch).statistic == pytest.approx(defense(batch).statistic, rel=1e-5)
    seen, reference = again.extractor(batch)[1], again.detector.reference.rows(slice(100))
    kernel, sample = again.detector.kernel, tp.Sample(batch, seen)
    h = kernel(reference, reference) + kernel(sample, sample) - kernel(reference, sample) - kernel(sample, reference)
    paired = (h.sum() - h.diagonal().sum()) / (100 * 99)  # the paper's eq. 2
    expected = paired if name == "paper" else h.mean()
    assert again(batch).statistic == pytest.approx(expected.item(), abs=1e-5)
    denoised = again.restored(batch, "flagged", 1, torch.Generator().manual_seed(0))
    assert not again.flagged.clamp
    assert bool((denoised > 1).any() or (denoised < 0).any())  # nothing is clamped


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_the_denoiser_learns_the_same_images_as_by_our_settings(name):
    """So a classifier that was trained by our settings has not seen the reference of these, and crafted examples serve."""
    ours, theirs = (PRESETS[one].splits for one in ("cifar10", name))
    assert sum(ours.model_dump().values()) == sum(theirs.model_dump().values())
