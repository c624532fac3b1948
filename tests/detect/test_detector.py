import copy
import math
import pickle

import pytest
import torch
from torch.autograd import gradcheck

from twoprong.config import DetectorConfig
from twoprong.data.tensors import image_digests
from twoprong.detect.calibrate import LEVELS
from twoprong.detect.checks import check_settings
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.verdict import UNTESTED
from twoprong.errors import InputError, StateError

BUFFERS = ("reference_pixels", "reference_features", "sizes", "upper", "central")
OLDER = ("calibrated_on", "null")  # bundles that were written before there were these are read still


def new(draw_sample):
    """A detector with a reference of 60, not calibrated."""
    reference = draw_sample(60, "reference")
    return Detector(DeepKernel.from_median(reference).requires_grad_(False), reference, permutations=50)


@pytest.fixture
def bare(draw_sample):
    return new(draw_sample)


@pytest.fixture(scope="module")
def once(draw_sample):
    return new(draw_sample).calibrate(draw_sample(200, "pool"), DetectorConfig(min_batch_size=3, max_batch_size=20), seed=0)


@pytest.fixture
def detector(once):
    return copy.deepcopy(once)


def loop_statistic(detector, batch):
    """MMD²_u with the full cross mean, in float64, from kernel values one by one."""
    x, z = detector.reference, batch
    sigma_s, sigma_q, beta0 = (
        float(value) for value in (detector.kernel.feature_bandwidth, detector.kernel.pixel_bandwidth, detector.kernel.beta0)
    )

    def k(a, i, b, j):
        s = math.exp(-float((a.features[i].double() - b.features[j].double()).square().sum()) / (2 * sigma_s**2))
        q = math.exp(-float((a.pixels[i].double() - b.pixels[j].double()).square().sum()) / (2 * sigma_q**2))
        return ((1 - beta0) * s + beta0) * q

    def within(a):
        return sum(k(a, i, a, j) for i in range(len(a)) for j in range(len(a)) if i != j) / (len(a) * (len(a) - 1))

    cross = sum(k(x, i, z, j) for i in range(len(x)) for j in range(len(z))) / (len(x) * len(z))
    return within(x) + within(z) - 2 * cross


@pytest.mark.parametrize("n", [2, 9, 60])
def test_statistic_agrees_with_a_loop_at_every_size(bare, draw_sample, n):
    """At the reference's own size too: the cross mean is the full one, so that sizes belong to one curve."""
    batch = draw_sample(n, "batch", shift=0.4)
    assert bare.statistic(batch).item() == pytest.approx(loop_statistic(bare, batch), abs=1e-6)


def test_the_reference_as_a_batch_counts_its_copies_in_the_cross_mean(bare):
    """Pairing would leave them out, and measure a batch of the reference's size by another rule than its neighbours."""
    k = bare.k_reference
    mean = (k.sum() - k.trace()) / (60 * 59)
    assert bare.statistic(bare.reference).item() == pytest.approx(2 * (mean - k.mean()).item(), abs=1e-6)
    assert bare.statistic(bare.reference).item() < -1e-3


def test_statistic_is_differentiable_in_images_and_features(draw_sample):
    reference, batch = (draw_sample(n, n, dtype=torch.float64) for n in (6, 4))
    detector = Detector(DeepKernel(1.0, 1.5, 0.2), reference).double()
    inputs = [part.clone().requires_grad_() for part in batch]
    assert gradcheck(lambda pixels, features: detector.statistic(Sample(pixels, features)), inputs)


def test_ascending_the_gradient_raises_the_statistic(bare, draw_sample):
    batch = draw_sample(8, "batch")
    pixels, features = batch.pixels.requires_grad_(), batch.features.requires_grad_()
    before = bare.statistic(Sample(pixels, features))
    before.backward()
    assert pixels.grad.abs().sum() > 0
    moved = Sample((pixels + 0.1 * pixels.grad).detach(), (features + 0.1 * features.grad).detach())
    assert bare.statistic(moved) > before
    assert all(parameter.grad is None for parameter in bare.parameters())


def test_verdict_has_the_statistic_its_threshold_and_their_comparison(detector, draw_sample):
    said = set()
    for n in (3, 8, 20):
        for shift in (0.0, 1.5):
            batch = draw_sample(n, "batch", n, shift=shift)
            verdict = detector(batch)
            assert verdict.statistic == detector.statistic(batch).item()
            assert verdict.threshold == detector.thresholds.at(n)
            assert verdict.adversarial is (verdict.statistic >= verdict.threshold)
            assert 0 < verdict.p_value <= 1
            if verdict.adversarial:
                assert verdict.p_value <= DetectorConfig().false_alarm_rate
            said.add((shift > 0, verdict.adversarial))
    assert said == {(False, False), (True, True)}


def test_a_statistic_that_just_reaches_the_threshold_is_adversarial(bare, draw_sample):
    batch = draw_sample(5, "batch")
    value = bare.statistic(batch).item()
    at = DetectorConfig(threshold=value)
    above = DetectorConfig(threshold=math.nextafter(value, math.inf))
    assert bare.calibrate(batch, at, seed=0)(batch).adversarial
    assert not bare.calibrate(batch, above, seed=0)(batch).adversarial


def test_p_value_is_small_for_another_law_and_not_for_the_same(detector, draw_sample):
    assert detector(draw_sample(20, "far", shift=2.0)).p_value == 1 / (LEVELS + 1)
    assert sum(detector(draw_sample(20, "same", number)).p_value for number in range(20)) / 20 > 0.25


def test_relabelled_samples_that_tie_with_the_batch_count_against_an_alarm(draw_sample):
    """To the kernel all images are one: every relabelling gives the same statistic, so the batch is most ordinary."""
    pixels, features = (part.expand(12, *part.shape[1:]) for part in draw_sample(1, "one"))
    alike = Sample(pixels + 1e-7 * torch.arange(12)[:, None, None, None], features)
    detector = Detector(DeepKernel(pixel_bandwidth=1e9).requires_grad_(False), alike, permutations=20)
    verdict = detector.calibrate(alike, DetectorConfig(threshold=0.5), seed=0)(alike.rows(slice(5)))
    assert (verdict.statistic, verdict.p_value) == (0, 1)


def test_judging_twice_gives_one_verdict(detector, draw_sample):
    batch = draw_sample(7, "batch")
    first = detector(batch)
    torch.rand(3)
    assert detector(batch) == first


def test_a_constant_threshold_holds_for_all_sizes(bare, draw_sample):
    config = DetectorConfig(threshold=0.5, min_batch_size=2, max_batch_size=30)
    bare.calibrate(draw_sample(1, "none needed"), config, seed=0)
    assert list(bare.batch_sizes) == list(range(2, 31))
    assert {bare.thresholds.at(n) for n in range(2, 31)} == {0.5}
    assert bare(draw_sample(11, "batch")).threshold == 0.5


def test_calibration_keeps_settings_and_seed(bare, draw_sample):
    pool = draw_sample(200, "pool")
    config = DetectorConfig(min_batch_size=4, max_batch_size=12, false_alarm_rate=0.1)
    tables = [bare.calibrate(pool, config, seed=seed).thresholds for seed in (1, 1, 2)]
    assert bare.batch_sizes == range(4, 13)
    assert torch.equal(tables[0].upper, tables[1].upper)
    assert not torch.equal(tables[0].upper, tables[2].upper)
    strict = bare.calibrate(pool, config.model_copy(update={"false_alarm_rate": 0.01}), seed=1).thresholds
    assert (strict.upper > tables[0].upper).all()


def test_before_calibration_the_next_call_is_named(bare, draw_sample):
    with pytest.raises(StateError, match=r"Detector has no threshold: call calibrate\("):
        bare(draw_sample(5, "batch"))
    with pytest.raises(StateError, match="calibrate"):
        _ = bare.batch_sizes
    assert bare.statistic(draw_sample(5, "batch")).isfinite()  # needs no threshold


@pytest.mark.parametrize("n", [1, 2, 21, 50])
def test_sizes_outside_the_range_are_refused_with_the_range(detector, draw_sample, n):
    with pytest.raises(InputError, match=rf"batch of {n} images?: expected 3 to 20"):
        detector(draw_sample(n, "batch"))


def test_too_few_images_are_refused(bare, draw_sample):
    with pytest.raises(InputError, match="2 or more images, got 1"):
        Detector(DeepKernel(), draw_sample(1, "one"))
    with pytest.raises(InputError, match="10 or more clean images, got 9"):
        bare.calibrate(draw_sample(9, "few"), DetectorConfig(), seed=0)
    bare.calibrate(draw_sample(10, "enough"), DetectorConfig(max_batch_size=5), seed=0)
    assert bare.upper.isfinite().all()


def test_reference_and_thresholds_are_state_and_move(detector):
    state = detector.state_dict()
    assert set(state) == {
        *BUFFERS,
        *OLDER,
        "kernel.log_feature_bandwidth",
        "kernel.log_pixel_bandwidth",
        "kernel.logit_beta0",
    }
    moved = detector.to("meta")
    assert all(buffer.is_meta for _, buffer in moved.named_buffers())
    assert all(parameter.is_meta for parameter in moved.parameters())


def test_the_images_of_the_calibration_are_remembered(detector, draw_sample):
    clean = draw_sample(30, "calibration images")
    detector.calibrate(clean, DetectorConfig(max_batch_size=5), 0)
    state = detector.state_dict()
    again = Detector.from_state(state, 20)
    assert torch.equal(again.calibrated_on, image_digests(clean.pixels))
    older = {name: value for name, value in state.items() if name != "calibrated_on"}
    assert len(Detector.from_state(older, 20).calibrated_on) == 0
    with pytest.raises(InputError, match="digests"):
        Detector.from_state({**state, "calibrated_on": torch.zeros(2, 2)}, 20)


def test_double_precision_changes_nothing_but_digits(detector, draw_sample):
    batch = draw_sample(6, "batch")
    before = detector(batch)
    after = detector.double()(Sample(batch.pixels.double(), batch.features.double()))
    assert detector.reference_pixels.dtype == torch.float64
    assert detector.sizes.dtype == torch.int64
    assert after.statistic == pytest.approx(before.statistic, abs=1e-6)
    assert after.threshold == before.threshold


def test_the_reference_is_a_copy(draw_sample):
    reference = draw_sample(10, "reference")
    detector = Detector(DeepKernel().requires_grad_(False), reference)
    before = detector.statistic(draw_sample(4, "batch"))
    reference.pixels.zero_()
    reference.features.zero_()
    assert torch.equal(detector.statistic(draw_sample(4, "batch")), before)
    assert detector.reference_pixels.any()


def test_round_trip_through_the_state_gives_the_same_verdicts(detector, draw_sample):
    again = Detector.from_state(detector.state_dict(), detector.permutations)
    assert again.batch_sizes == detector.batch_sizes
    assert not any(parameter.requires_grad for parameter in again.parameters())
    for n, shift in ((3, 0.0), (11, 0.3), (20, 1.5)):
        batch = draw_sample(n, "batch", shift=shift)
        assert again(batch) == detector(batch)


def test_the_state_before_calibration_comes_back_uncalibrated(bare, draw_sample):
    again = Detector.from_state(bare.state_dict(), 10)
    with pytest.raises(StateError):
        again(draw_sample(5, "batch"))
    assert torch.equal(again.statistic(draw_sample(5, "batch")), bare.statistic(draw_sample(5, "batch")))


@pytest.mark.parametrize("name", [*BUFFERS, "kernel.log_feature_bandwidth", "kernel.logit_beta0"])
def test_a_missing_tensor_is_refused(detector, name):
    state = {key: value for key, value in detector.state_dict().items() if key != name}
    with pytest.raises(InputError, match=f"not a detector's tensors.*{name.removeprefix('kernel.')}"):
        Detector.from_state(state, 10)


@pytest.mark.parametrize("name", ["surplus", "kernel.surplus", "k_reference"])
def test_an_extra_tensor_is_refused(detector, name):
    with pytest.raises(InputError, match=f"not a detector's tensors.*{name.removeprefix('kernel.')}"):
        Detector.from_state({**detector.state_dict(), name: torch.zeros(60, 60)}, 10)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("reference_pixels", lambda tensor: tensor[:-1]),
        ("reference_pixels", lambda tensor: tensor[0, 0, 0, 0]),
        ("reference_features", lambda tensor: tensor[:1]),
        ("reference_features", lambda tensor: tensor[:, 0]),
        ("kernel.logit_beta0", lambda tensor: tensor.expand(2)),
        ("sizes", lambda tensor: tensor[:-1]),
        ("sizes", lambda tensor: tensor.flip(0)),
        ("sizes", lambda tensor: tensor.double()),
        ("sizes", lambda tensor: tensor[0]),
        ("upper", lambda tensor: tensor[:1]),
        ("upper", lambda tensor: tensor[:, None]),
        ("upper", lambda tensor: tensor * math.nan),
        ("central", lambda tensor: tensor.repeat(2)),
        ("null", lambda tensor: tensor[:-1]),
        ("null", lambda tensor: tensor.flip(1)),
        ("null", lambda tensor: tensor * math.nan),
        ("null", lambda tensor: tensor[0]),
    ],
)
def test_a_misshapen_tensor_is_refused(detector, name, damage):
    state = detector.state_dict()
    with pytest.raises(InputError, match="not a detector's tensors"):
        Detector.from_state({**state, name: damage(state[name])}, 10)


def test_the_verdict_of_the_untested_is_clean_and_says_nothing_else():
    assert UNTESTED.adversarial is False
    assert all(math.isnan(value) for value in (UNTESTED.statistic, UNTESTED.threshold, UNTESTED.p_value))


def test_thresholds_follow_every_way_of_setting_them(detector, draw_sample):
    first = detector.thresholds.at(5)
    detector.calibrate(draw_sample(40, "other images"), DetectorConfig(max_batch_size=20, false_alarm_rate=0.5), 1)
    second = detector.thresholds.at(5)
    assert second != first
    detector.upper.add_(1.0)
    assert detector.thresholds.at(5) == pytest.approx(second + 1)
    detector.upper = detector.upper + 1.0
    assert detector.threshold(5) == detector.thresholds.at(5) == pytest.approx(second + 2)


def test_the_references_gram_matrix_follows_reference_and_kernel(detector, draw_sample):
    """A detector whose state is replaced judges as one that was made of it."""
    batch, first = draw_sample(8, "batch"), detector.k_reference
    assert detector.k_reference is first  # computed once
    other = Detector(DeepKernel(0.5, 2.0).requires_grad_(False), draw_sample(len(detector.reference), "another reference"))
    other._set_thresholds(detector.thresholds, detector.null)
    detector.load_state_dict(other.state_dict() | {"calibrated_on": detector.calibrated_on})
    other.permutations = detector.permutations
    assert torch.equal(detector.k_reference, other.k_reference)
    assert detector(batch).statistic == other(batch).statistic
    with torch.no_grad():
        detector.kernel.log_pixel_bandwidth.add_(1.0)
    assert not torch.equal(detector.k_reference, other.k_reference)


@pytest.mark.parametrize(
    "projection",
    [torch.zeros(4), torch.zeros(2, 3, 4), torch.ones(99, 2), torch.zeros(5, 0), torch.full((5, 2), torch.nan)],
    ids=["flat", "deep", "other features", "no width", "nan"],
)
def test_a_projection_that_cannot_be_is_refused(draw_sample, projection):
    """A statistic of NaN would flag nothing, ever."""
    fitted = Detector(DeepKernel().requires_grad_(False), draw_sample(20, "reference"))
    fitted.calibrate(draw_sample(40, "clean"), DetectorConfig(max_batch_size=10), 0)
    good = Detector.from_state(fitted.state_dict() | {"kernel.projection": torch.eye(5)}, 20)
    assert good.kernel.projection.shape == (5, 5)
    with pytest.raises(InputError, match="not a detector's tensors"):
        Detector.from_state(fitted.state_dict() | {"kernel.projection": projection}, 20)


def test_without_the_null_law_the_p_value_is_the_permutation_tests(detector, draw_sample):
    """As in bundles that were written before the law was kept; their verdicts are the same."""
    state = {name: value for name, value in detector.state_dict().items() if name != "null"}
    older = Detector.from_state(state, detector.permutations)
    for shift in (0.0, 2.0):
        batch = draw_sample(20, "batch", shift=shift)
        then, now = older(batch), detector(batch)
        assert (then.adversarial, then.statistic, then.threshold) == (now.adversarial, now.statistic, now.threshold)
        steps = then.p_value * (detector.permutations + 1)
        assert steps == pytest.approx(round(steps), abs=1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_statistic_that_is_no_number_is_flagged(detector, value):
    verdict = detector.verdict(value, 0, 5)
    assert verdict.adversarial
    assert math.isnan(verdict.p_value)


def test_one_image_that_cannot_be_judged_has_its_batch_flagged(detector, draw_sample):
    batch = draw_sample(10, "batch")
    assert not detector(batch).adversarial
    for damage in (math.nan, math.inf):
        features = batch.features.clone()
        features[3, 1] = damage
        assert detector(Sample(batch.pixels, features)).adversarial


def test_references_and_calibration_images_that_are_not_finite_are_refused(bare, draw_sample):
    for part in (0, 1):
        sample = list(draw_sample(30, "sample"))
        sample[part] = sample[part].clone()
        sample[part].flatten(1)[7, 2] = math.nan
        with pytest.raises(InputError, match="finite numbers, got others first in image 7 of 30"):
            Detector(DeepKernel(), Sample(*sample))
        with pytest.raises(InputError, match="finite numbers, got others first in image 7 of 30"):
            bare.calibrate(Sample(*sample), DetectorConfig(), 0)


BLIND = {
    "tiny features": ("kernel.log_feature_bandwidth", lambda value: value * 0 - 60),
    "tiny pixels": ("kernel.log_pixel_bandwidth", lambda value: value * 0 - 60),
    "endless features": ("kernel.log_feature_bandwidth", lambda value: value * 0 + 60),
    "pixels only": ("kernel.logit_beta0", lambda value: value * 0 + 60),
    "huge reference": ("reference_features", lambda value: value * 1e10),
    "huger reference": ("reference_features", lambda value: value * 1e30),
    "one huge image": ("reference_features", lambda value: torch.cat([value[:1] * 1e9, value[1:]])),
    "infinite": ("reference_features", lambda value: value * math.inf),
    "far thresholds": ("upper", lambda value: value + 2),
    "thresholds that only gross changes reach": ("upper", lambda value: value * 0 + 0.5),
    "no number": ("upper", lambda value: value * math.nan),
}


@pytest.mark.parametrize("name", BLIND)
def test_a_detector_that_can_never_flag_is_refused(detector, name):
    tensor, change = BLIND[name]
    state = detector.state_dict()
    with pytest.raises(InputError):
        Detector.from_state({**state, tensor: change(state[tensor])}, 20)


@pytest.mark.parametrize("name", BLIND)
def test_tensors_that_are_loaded_or_changed_before_a_bundle_is_saved_are_checked(detector, defense, tmp_path, name):
    tensor, change = BLIND[name]
    with pytest.raises(InputError):
        copy.deepcopy(detector).load_state_dict({**detector.state_dict(), tensor: change(detector.state_dict()[tensor])})
    broken = copy.deepcopy(defense)
    state = broken.detector.state_dict()
    state[tensor].copy_(change(state[tensor]))
    with pytest.raises(InputError):
        broken.save(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_what_is_refused_is_not_kept(detector, draw_sample):
    before, batch = detector.state_dict(), draw_sample(20, "batch", shift=1.5)
    state, verdict = {name: value.clone() for name, value in before.items()}, detector(batch)
    for name, (tensor, change) in BLIND.items():
        with pytest.raises(InputError):
            detector.load_state_dict({**state, tensor: change(state[tensor])})
        assert all(torch.equal(value, state[key]) for key, value in detector.state_dict().items()), name
    assert detector(batch) == verdict


def test_a_detector_can_be_pickled(detector, draw_sample):
    batch = draw_sample(20, "batch")
    again = pickle.loads(pickle.dumps(detector))  # noqa: S301
    assert again(batch) == detector(batch)
    with pytest.raises(InputError):
        again.load_state_dict({**again.state_dict(), "upper": again.upper + 2})


def test_thresholds_that_no_calibration_gives_are_refused(detector):
    settings, thresholds = DetectorConfig(min_batch_size=3, max_batch_size=20), detector.upper.clone()
    check_settings(detector, settings)
    for factor, changed in ((20, {}), (4, {"false_alarm_rate": 0.5, "confidence": 0.5})):
        detector.upper.copy_(factor * thresholds)
        with pytest.raises(InputError, match=r"was not calibrated for a rate of false alarms"):
            check_settings(detector, settings.model_copy(update=changed))


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.999])
@pytest.mark.parametrize(("reference", "pool"), [(20, 10), (40, 20), (60, 200)])
def test_no_calibration_is_refused_however_few_images_it_has(draw_sample, reference, pool, confidence):
    for rate in (0.01, 0.05, 0.5, 0.8):
        seen = draw_sample(reference, "reference")
        settings = DetectorConfig(max_batch_size=min(50, reference), false_alarm_rate=rate, confidence=confidence)
        kernel = DeepKernel.from_median(seen).requires_grad_(False)
        Detector(kernel, seen).calibrate(draw_sample(pool, "pool"), settings, 0)


def test_a_constant_threshold_out_of_reach_is_refused(bare, draw_sample):
    with pytest.raises(InputError, match="a threshold of 2 is never reached"):
        bare.calibrate(draw_sample(20, "clean"), DetectorConfig(threshold=2.0), 0)


def test_half_precision_is_refused_and_nothing_changed(detector):
    for convert in (detector.half, detector.bfloat16, lambda: detector.to(torch.float16)):
        with pytest.raises(InputError, match="expected float32 or float64"):
            convert()
        assert detector.reference_features.dtype == torch.float32


def test_copies_count_once(detector, draw_sample):
    batch = draw_sample(8, "batch")
    index = torch.tensor([0, 1, 2, 1, 3, 4, 1, 5, 6, 7, 7])
    assert detector(batch.rows(index)) == detector(batch)
    assert detector.statistic(batch.rows(index)) > detector.statistic(batch)  # the crowd that is not counted
    with pytest.raises(InputError, match="batch of 1 image: expected 3 to 20"):
        detector(batch.rows(torch.zeros(10, dtype=torch.long)))


@pytest.mark.parametrize("kind", ["paired", "biased"])
def test_the_papers_statistics_are_taken_against_as_many_images_as_the_batch_has(draw_sample, kind):
    reference, batch = draw_sample(60, "reference"), draw_sample(20, "batch", shift=0.4)
    detector = Detector(DeepKernel.from_median(reference).requires_grad_(False), reference, 50, kind)
    first, kernel = reference.rows(slice(20)), detector.kernel
    h = kernel(first, first) + kernel(batch, batch) - kernel(first, batch) - kernel(batch, first)
    expected = ((h.sum() - h.diagonal().sum()) / (20 * 19) if kind == "paired" else h.mean()).item()
    assert detector.statistic(batch).item() == pytest.approx(expected, abs=1e-6)
    detector.calibrate(reference, DetectorConfig(statistic=kind, threshold=0.1), seed=0)
    assert detector.batch_sizes == range(2, 61)  # never more than the reference has
    assert detector(batch).statistic == pytest.approx(expected, abs=1e-6)
    again = Detector.from_state(detector.state_dict(), 50, kind)
    assert again(batch) == detector(batch)
    few = {**detector.state_dict(), **{name: getattr(detector, name)[:10] for name in BUFFERS[:2]}}
    with pytest.raises(InputError, match="batches of up to 60 images, but a reference of 10"):
        Detector.from_state(few, 50, kind)


def test_only_the_full_statistic_is_calibrated():
    with pytest.raises(ValueError, match="expected a constant threshold beside statistic 'paired'"):
        DetectorConfig(statistic="paired")
