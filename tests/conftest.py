"""What tests share: a defence small enough to fit in seconds, and a real browser."""

import copy
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from twoprong.config import FitConfig, parse_config
from twoprong.data.digits import load_digits
from twoprong.data.tensors import ImageData, Labelled
from twoprong.defense import Defense
from twoprong.detect import calibrate
from twoprong.detect.calibrate import BATCHES, Thresholds
from twoprong.models.features import Features
from twoprong.recipe import fit, train_named
from twoprong.routes import Denoised

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL = {
    "attack": {"eps": 0.2, "step": 0.05},
    "kernel": {"epochs": 20},
    "detector": {"max_batch_size": 120, "permutations": 50},
    "denoiser": {"width": 0.1, "epochs": 4, "batch_size": 100, "sigma": 0.1},
    "classifier": {"epochs": 8, "batch_size": 64, "augment": False},
}

TINY = {
    "splits": {"kernel": 60, "reference": 50, "calibration": 60},
    "attack": {"eps": 0.2, "step": 0.1, "steps": 2, "targets": 1},
    "kernel": {"epochs": 3},
    "detector": {"max_batch_size": 20, "permutations": 10},
    "denoiser": {"width": 0.1, "epochs": 4, "batch_size": 100, "sigma": 0.1},
}


@pytest.fixture(scope="session")
def tiny_config() -> FitConfig:
    """For `few` images, a fit in a second: enough where only the steps matter, not how good the defence is."""
    return parse_config(TINY)


@pytest.fixture(scope="session")
def few(digits: ImageData) -> Labelled:
    return digits.train[:400]


@pytest.fixture(scope="session")
def small_config() -> FitConfig:
    return parse_config(SMALL)


@pytest.fixture(scope="session")
def digits() -> ImageData:
    return load_digits()


@pytest.fixture(scope="session")
def classifier(digits: ImageData, small_config: FitConfig) -> nn.Module:
    return train_named("cnn", digits.train, 10, small_config)


@pytest.fixture(scope="session")
def defense(classifier: nn.Module, digits: ImageData, small_config: FitConfig) -> Defense:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "BATCHES", BATCHES)  # whichever module asks for it first
        return fit(classifier, digits.train, config=small_config)


@pytest.fixture(scope="module")
def rough():
    """For modules with many fits whose thresholds no test looks at closely: a tenth of the batches is drawn for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "BATCHES", BATCHES // 10)
        yield


@pytest.fixture(scope="session")
def older(defense: Defense) -> Defense:
    """The same as defences were before single images could be judged: batches from 2 images up, and no suspects."""
    detector = copy.deepcopy(defense.detector)
    detector.blame = None
    detector._set_thresholds(Thresholds(*(column[1:] for column in detector.thresholds)), detector.null[1:])
    config = defense.config.model_copy(update={"rescue": "batch"})
    return Defense(**vars(replace(defense.parts, detector=detector, config=config)))


QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


class Standardising(nn.Module):
    """A classifier that divides each image by its own deviation: an image of one colour becomes NaN."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, inner.head

    def forward(self, images: Tensor) -> Tensor:
        spread = images.std((1, 2, 3), keepdim=True)
        return self.inner(images * spread / spread)


class Swelling(nn.Module):
    """A classifier whose features of nearly white images are `factor` times as large."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner, self.head, self.factor = inner, inner.head, factor

    def forward(self, images: Tensor) -> Tensor:
        white = images.mean((1, 2, 3), keepdim=True) > 0.99
        return self.inner(images * torch.where(white, self.factor, 1.0))


def around(wrapped: nn.Module, older: Defense) -> Defense:
    """A defence with another classifier in it."""
    flagged = Denoised(wrapped, older.flagged.denoiser, older.flagged.sigma)
    parts = replace(older.parts, extractor=Features(wrapped), passing=type(older.passing)(wrapped), flagged=flagged)
    return Defense(**vars(parts))


@pytest.fixture
def fragile(older: Defense, classifier: nn.Module) -> Defense:
    """The defence around a classifier for which black images have features that are no numbers."""
    return around(Standardising(classifier).eval(), older)


@pytest.fixture
def swelling(older: Defense, classifier: nn.Module) -> Callable[[float], Defense]:
    """The defence around a classifier for which white images have features that are far too large."""
    return lambda factor: around(Swelling(classifier, factor).eval(), older)


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        message = "chromium is not installed (apt-get install chromium), so the report cannot be looked at"
        if os.environ.get("CI") or os.environ.get("TWOPRONG_CI"):
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """Opens a file; gives the page and the list of everything that went wrong: errors, and requests beyond the file."""
    contexts = []

    def open_file(path, size="desk", scheme="light"):
        context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
        contexts.append(context)
        page, wrong = context.new_page(), []
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        allowed = (path.as_uri(), "data:")
        page.on("request", lambda request: None if request.url.startswith(allowed) else wrong.append(request.url))
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
        return page, wrong

    yield open_file
    for context in contexts:
        context.close()
