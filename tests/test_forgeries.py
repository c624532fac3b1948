"""Forged bundles with digests that fit: refused in one line, quickly and without memory, or the same defence as before."""

import json
import math
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch

import twoprong as tp
from twoprong.errors import BundleError

sys.path.insert(0, str(Path(__file__).parent))
from forgeries import DETECTOR, ESCAPE, KINDS, Forged, forgeries

SECONDS, MEGABYTES = 2, 500


@pytest.fixture(scope="module")
def original(defense, tmp_path_factory) -> Forged:
    path = tmp_path_factory.mktemp("forgeries") / "original"
    defense.save(path)
    return Forged.of(path)


@pytest.fixture(scope="module")
def batches(digits):
    noise = torch.rand(digits.test.images[:50].shape, generator=torch.Generator().manual_seed(0))
    return digits.test.images[:50], noise


def verdicts(defense, batches):
    return [(one.adversarial, one.statistic, one.threshold) for one in map(defense, batches)]


def peak() -> float:
    """Megabytes of memory at the most since `forget_peak`."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1000


def forget_peak() -> float:
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def outcome(place: Path, batches) -> list | str:
    """What becomes of a forgery: verdicts, or the message. Too much time or memory, or another error, fails the test."""
    before, start = forget_peak(), time.process_time()
    try:
        found = verdicts(tp.load(place), batches)
    except BundleError as error:
        found = str(error)
        assert place.name in found
        assert "\n" not in found
        assert found.isprintable()
        assert "allocate" not in found
    assert time.process_time() - start < SECONDS
    assert peak() - before < MEGABYTES
    return found


def test_there_are_five_hundred():
    assert sum(count for _, count in KINDS.values()) >= 500


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgery_is_refused_in_one_line_or_changes_no_verdict(kind, original, defense, batches, tmp_path):
    expected, refused = verdicts(defense, batches), 0
    for name, place in forgeries(original, kind, tmp_path):
        try:
            found = outcome(place, batches)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        assert isinstance(found, str) or found == expected, name
        refused += isinstance(found, str)
        shutil.rmtree(place)
    assert refused > KINDS[kind][1] / 4


def set_in(*path, to):
    def forge(forged):
        target = forged.manifest
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = to

    return forge


def widened(name, *shape):
    """The reference repeated to another shape, and the manifest's to match."""

    def forge(forged):
        def edit(found):
            found[name] = torch.zeros(shape, dtype=found[name].dtype)
            if name == "reference_pixels":
                found["reference_features"] = torch.zeros(shape[0], found["reference_features"].shape[1])
                image = dict(zip(("channels", "height", "width"), shape[1:], strict=True))
                forged.manifest["preprocessing"] |= image

        forged.change(DETECTOR, edit)

    return forge


CLASSIFIER, DENOISER = ("parts", "networks", "classifier", "spec"), ("parts", "networks", "denoiser", "spec")
STRANGER = {"kind": "given", "type": ESCAPE, "spec": None, "fingerprint": "0" * 64}
BOMBS = {
    "a wide network": set_in(*CLASSIFIER, "name", to="wrn-1000-100"),
    "a wider one": set_in(*CLASSIFIER, "name", to="wrn-10-1000000000"),
    "a deep one": set_in(*CLASSIFIER, "name", to="wrn-9999994-1"),
    "a deeper one": set_in(*CLASSIFIER, "name", to="wrn-" + "9" * 90 + "4-1"),
    "another of ours": set_in(*CLASSIFIER, "name", to="swin-t"),
    "none of ours": set_in(*CLASSIFIER, "name", to=ESCAPE),
    "many classes": set_in(*CLASSIFIER, "classes", to=10**9),
    "more classes": set_in(*CLASSIFIER, "classes", to=10**30),
    "colours": set_in(*CLASSIFIER, "channels", to=3),
    "a wide denoiser": set_in(*DENOISER, "width", to=8),
    "a wider denoiser": set_in(*DENOISER, "width", to=1000.0),
    "many permutations": set_in("config", "detector", "permutations", to=10**6),
    "more permutations": set_in("config", "detector", "permutations", to=10**18),
    "a long reference": widened("reference_pixels", 20_000, 1, 8, 8),
    "wide features": widened("reference_features", 280, 4000),
    "a network that nobody names": set_in("parts", "networks", "x", to=STRANGER),
    "a denoiser for a classifier": set_in("parts", "passing", "networks", "classifier", to="denoiser"),
    "a classifier for a denoiser": set_in("parts", "flagged", "networks", "denoiser", to="classifier"),
    "an unknown route": set_in("parts", "passing", "kind", to="x\ud800"),
    "no noise law": set_in("parts", "flagged", "settings", "noise", to="pink"),
    "endless noise": set_in("parts", "flagged", "settings", "sigma", to=float("inf")),
    "a layer that is not there": set_in("parts", "extractor", "features", to="../x"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_a_bundle_asks_for_is_bounded_by_what_it_brings(bomb, original, batches, tmp_path):
    forged = original.copied()
    BOMBS[bomb](forged)
    assert isinstance(outcome(forged.write(tmp_path / "forged"), batches), str)


def rewritten(**columns):
    """Columns of the detector's tensors made anew, and the manifest's table to match."""

    def forge(forged):
        def edit(found):
            for name, change in columns.items():
                found[name] = change(found[name]).contiguous()
            table = zip(*(found[name].tolist() for name in ("sizes", "upper", "central")), strict=True)
            keys = ("batch_size", "threshold", "central")
            forged.manifest["thresholds"] = [dict(zip(keys, row, strict=True)) for row in table]

        forged.change(DETECTOR, edit)

    return forge


def raised(value):
    """Thresholds of several images that only gross changes reach, and a null law that has them among its values."""

    def law(null):
        null = null.clone()
        null[1:, -1] = value
        return null

    return rewritten(upper=lambda old: torch.cat([old[:1], torch.full_like(old[1:], value)]), null=law)


BLIND = {
    "sizes that nobody sends": rewritten(
        sizes=lambda old: old[-1:] * 0 + 10**9, **dict.fromkeys(("upper", "central", "null"), lambda old: old[-1:])
    ),
    "high thresholds": raised(1.0),
    "thresholds between clean and attacked": raised(0.05),
    "a constant threshold beside a table": set_in("config", "detector", "threshold", to=0.5),
    "another statistic": set_in("config", "detector", "statistic", to="paired"),
    "one huge image in the reference": rewritten(reference_features=lambda old: torch.cat([old[:1] * 1e9, old[1:]])),
    "scores the wrong way round": rewritten(**{"blame.weights": torch.neg}),
    "a null law of no values": rewritten(null=lambda old: old[:, :0]),
}


@pytest.mark.parametrize("how", BLIND)
def test_a_forgery_that_would_not_flag_is_refused(how, original, batches, tmp_path):
    forged = original.copied()
    BLIND[how](forged)
    assert isinstance(outcome(forged.write(tmp_path / "forged"), batches), str)


def test_large_images_are_not_sent_through_the_networks(original, tmp_path):
    forged = original.copied()
    widened("reference_pixels", 3, 1, 2000, 2000)(forged)  # two images in eight bits, and a row of their powers of two
    rewritten(**dict.fromkeys(("sizes", "upper", "central", "null"), lambda old: old[1:]))(forged)  # no single images

    def likely(found):
        """Features with which the kernel of the two images is 1/2, and no scores: a reference that nothing is wrong with."""
        found["reference_features"] = torch.ones(2, 4000)
        found["reference_features"][1] += found["kernel.log_feature_bandwidth"].exp() * (2 * math.log(2) / 4000) ** 0.5
        for name in [name for name in found if name.startswith("blame.")]:
            del found[name]

    forged.change(DETECTOR, likely)
    before = forget_peak()
    with pytest.raises(BundleError, match=r"manifest\.json: features of width \d+, but the reference .* 4000"):
        tp.load(forged.write(tmp_path / "forged"))
    assert peak() - before < MEGABYTES


def test_a_manifest_too_large_to_be_one_is_not_read(original, batches, tmp_path):
    forged = original.copied()
    forged.manifest["about"]["x"] = "x" * 20_000_000
    assert "bytes, a manifest has at most" in outcome(forged.write(tmp_path / "forged"), batches)


def test_signing_alone_changes_nothing(original, defense, batches, tmp_path):
    assert outcome(original.copied().write(tmp_path / "forged"), batches) == verdicts(defense, batches)
    assert json.loads((tmp_path / "forged" / "manifest.json").read_text())["format"] == 3
