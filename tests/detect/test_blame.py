import pytest
import torch

from twoprong.config import DetectorConfig
from twoprong.detect.blame import STRENGTHS, Batch, Examples, blamed, learn_score, weaker
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import mmd2
from twoprong.errors import InputError, StateError
from twoprong.seeds import generator

SIZES = range(2, 101)


def images(count, *name, attacked=False):
    """Smooth images of 8×8; attacked ones have a faint grain and shifted features."""
    draw = generator(0, *name)
    x = torch.linspace(0, 3, 8)
    slope = torch.rand(count, 2, 1, 1, generator=draw)
    pixels = (0.5 + 0.3 * torch.sin(6 * slope[:, :1] + slope[:, :1] * x[:, None] + slope[:, 1:] * x[None, :])).contiguous()
    grain = torch.randn(pixels.shape, generator=draw)
    pixels = pixels + (0.01 + 0.02 * attacked) * grain
    features = torch.randn(count, 4, generator=draw) + 3.0 * attacked
    return Sample(pixels.clamp(0, 1), features)


@pytest.fixture(scope="module")
def detector():
    reference = images(100, "reference")
    clean, bad = images(300, "kernel"), images(300, "bad", attacked=True)
    made = Detector(DeepKernel.from_median(reference), reference)
    return made.calibrate(images(400, "pool"), DetectorConfig(max_batch_size=100), 0, examples=Examples(clean, bad))


def mixture(size, many, *name):
    clean, bad = images(size - many, "clean", *name), images(many, "attacked", *name, attacked=True)
    return Sample(torch.cat([clean.pixels, bad.pixels]), torch.cat([clean.features, bad.features]))


@pytest.mark.parametrize("size", [25, 50, 100])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_the_attacked_are_found_and_few_clean_images_are_blamed(detector, size, share):
    """Over 20 batches; 10 % of clean images may be blamed: above 13 % a right limit would be by chance in one of 1,000."""
    many, found, wrong, flagged = round(share * size), 0, 0, 0
    for number in range(20):
        batch = mixture(size, many, number)
        if detector(batch).adversarial:
            suspects, scores = detector.suspects(batch)
            flagged += 1
            found += int(suspects[size - many :].sum())
            wrong += int(suspects[: size - many].sum())
            assert scores.shape == (size,)
    assert flagged >= 5
    assert found >= 0.9 * many * flagged
    assert wrong <= 0.13 * (size - many) * flagged


def test_who_is_not_blamed_would_pass_the_test_alone(detector):
    for number in range(10):
        batch = mixture(50, 25, "rest", number)
        suspects = detector.suspects(batch)[0]
        rest = batch.rows(~suspects)
        assert not suspects[:25].all()
        assert not detector(rest).adversarial


def test_where_scores_say_nothing_the_largest_witness_is_blamed_until_the_rest_passes(detector):
    batch = mixture(60, 20, "silent")
    kernel, reference = detector.kernel, detector.reference
    k_xy, k = kernel(reference, batch), kernel(batch, batch)
    within = detector._within
    silent = Batch(torch.zeros(60), k_xy.mean(0), k, within)
    found = blamed(silent, 1.0, detector.flags, SIZES)
    assert 0 < found.sum() < 60
    assert found[40:].double().mean() > found[:40].double().mean()
    order = (k.double().fill_diagonal_(0).mean(1) - k_xy.double().mean(0)).argsort()
    for count in range(60, int((~found).sum()) - 1, -1):
        rest = order[:count]
        value = mmd2(detector.k_reference, k[rest][:, rest], k_xy[:, rest], paired=False).item()
        assert detector.flags(value, count) == (count > (~found).sum())
    assert torch.equal((~found).nonzero().squeeze(1), order[: int((~found).sum())].sort().values)


def test_what_cannot_be_judged_is_blamed(detector):
    near, k = torch.ones(5), torch.eye(5)
    broken = Batch(torch.tensor([0.0, torch.nan, 0.0, torch.inf, 0.0]), near, k, torch.tensor(1.0))
    assert blamed(broken, 1.0, lambda value, size: False, SIZES).tolist() == [False, True, False, True, False]
    assert blamed(broken, 1.0, lambda value, size: True, SIZES).all(), "no rest passes"
    assert blamed(broken, 1.0, lambda value, size: False, range(4, 9)).all(), "a rest of 3 cannot be judged"


def test_where_two_thirds_are_blamed_all_are():
    scores, pass_all = torch.arange(9.0), lambda value, size: False
    batch = Batch(scores, torch.ones(9), torch.eye(9), torch.tensor(1.0))
    assert blamed(batch, 3.0, pass_all, SIZES).sum() == 6
    assert blamed(batch, 2.0, pass_all, SIZES).all()


def test_single_images_are_judged_by_their_score(detector):
    clean, bad = images(1000, "alone"), images(200, "alone, bad", attacked=True)
    alarms = sum(detector(clean.rows(slice(i, i + 1))).adversarial for i in range(1000))
    found = sum(detector(bad.rows(slice(i, i + 1))).adversarial for i in range(200))
    assert detector.batch_sizes[0] == 1
    assert 15 <= alarms <= 85  # 5 % asked; four sigma, and the luck of 400 calibration images
    assert found > 180
    one = clean.rows(slice(0, 1))
    assert detector(one).statistic == pytest.approx(detector.scores(one).item(), abs=1e-5)


def test_the_score_is_a_logistic_regression_of_texture_and_mean_kernel():
    clean, bad = images(200, "a"), images(200, "b", attacked=True)
    near = torch.rand(200, generator=generator(0, "near"))
    filters, weights = learn_score(clean.pixels, near, bad.pixels, near - 0.5)
    assert weights.shape == (len(filters) + 2,)
    assert weights[-2] < 0, "who is nearer to the reference is less suspicious"


def test_parts_of_a_change_come_strength_by_strength():
    clean, attacked = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    assert weaker(clean, attacked)[:, 0, 0, 0].tolist() == [strength for strength in STRENGTHS for _ in range(2)]


def test_without_examples_all_are_blamed_and_nobody_is_judged_alone(detector):
    bare = Detector(detector.kernel, detector.reference).calibrate(images(400, "pool"), DetectorConfig(max_batch_size=50), 0)
    assert bare.batch_sizes[0] == 2
    suspects, scores = bare.suspects(mixture(20, 5))
    assert suspects.all()
    assert scores is None
    with pytest.raises(StateError, match="examples"):
        bare.scores(images(3, "x"))


@pytest.mark.parametrize("name", ["blame.limit", "upper"])
def test_a_limit_that_no_image_reaches_is_refused(detector, name):
    state = {key: value.clone() for key, value in detector.state_dict().items()}
    state[name].view(-1)[0] = 1e6
    with pytest.raises(InputError, match="never reached"):
        Detector.from_state(state, 10)
    del state["blame.filters"]
    with pytest.raises(InputError, match="not a detector's tensors"):
        Detector.from_state(state, 10)


def test_a_batch_that_was_flagged_has_a_suspect_whatever_rounding_says():
    calm = Batch(torch.zeros(5), torch.full((5,), 0.5), torch.full((5, 5), 0.5), torch.tensor(0.5))
    assert blamed(calm, 1.0, lambda value, size: False, range(2, 10)).all()
