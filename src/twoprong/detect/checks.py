"""What a detector must be made of: finite numbers, tensors that fit together, and a kernel that can raise an alarm."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twoprong.config import DetectorConfig, Statistic
from twoprong.detect.blame import Blame
from twoprong.detect.calibrate import Thresholds
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import off_diagonal_mean
from twoprong.errors import InputError

if TYPE_CHECKING:
    from twoprong.detect.detector import Detector

FAR = 100  # standard deviations by which every feature of an obviously different image is off
LARGEST = 1000  # times as long as those of half of the reference may one image's features be
SLACK = {"unseen": 2, "kernel": 20}  # how far above its bound a threshold may be, by what the reference is


def check_finite(sample: Sample, what: str) -> None:
    """Refuse images that cannot be judged: to the test they would be neither clean nor adversarial."""
    for name, values in zip(Sample._fields, sample, strict=True):
        wrong = ~values.detach().flatten(1).isfinite().all(1)
        if wrong.any():
            first = int(wrong.nonzero()[0, 0])
            raise InputError(
                f"{what}: expected {name} of finite numbers, got others first in image {first} of {len(sample)} "
                f"({int(wrong.sum())} in all); leave such images out, or use another layer's features"
            )


def check_spread(features: Tensor) -> None:
    """Refuse a reference of which one image's features are so much larger than the others' that they lose their digits."""
    lengths = features.double().norm(dim=1)
    most, usual = lengths.max().item(), lengths.median().item()
    if not most <= LARGEST * usual:  # NaN is refused too
        raise InputError(
            f"reference: the features of image {int(lengths.argmax())} have length {most:.4g}, those of half the images "
            f"of {usual:.4g} or less; leave such images out, or use another layer's features"
        )


def check_sizes(kind: Statistic, sizes: Tensor, count: int) -> None:
    """Refuse sizes of batches for which the reference has too few images, where the statistic needs as many."""
    if kind != "full" and len(sizes) and int(sizes[-1]) > count:
        raise InputError(
            f"detector: batches of up to {int(sizes[-1])} images, but a reference of {count}; the statistic {kind!r} needs "
            "as many"
        )


def check_alarm(kernel: DeepKernel, reference: Sample, table: Thresholds, null: Tensor) -> None:
    """Refuse thresholds that are out of reach: a detector that never flags anything.

    Where the law of clean batches is known, thresholds are high quantiles of it: further above its highest value than that
    is above its lowest, they were never calibrated.

    Two like images of the reference are set against the same two with all features far off, and must be told apart:
    2·(k(a, b) - k(a, b far)) reaches every threshold, for the median image and its most similar other one. A kernel that is
    blind to features (a bandwidth of nothing or without end, features that are infinitely far apart already) gives zero.
    """
    several = table.upper[table.sizes > 1]
    if not len(several):
        return
    if len(null):
        lowest, most = null[:, 0].double(), null[:, -1].double()
        beyond = ~(table.upper <= 2 * most - lowest)  # NaN is refused too
        if beyond.any():
            row = int(beyond.nonzero()[0, 0])
            raise InputError(
                f"detector: a threshold of {table.upper[row].item():.4g} for batches of {int(table.sizes[row])} is never "
                f"reached: clean ones give at most {most[row].item():.4g}; fit again"
            )
    features = reference.features
    far = Sample(reference.pixels, features + FAR * features.std(0) + 1)
    with torch.no_grad():
        gain = (kernel(reference, reference) - kernel(reference, far)).fill_diagonal_(-torch.inf)
    reach, highest = 2 * gain.amax(1).median().item(), several.max().item()
    if not highest < reach:  # NaN is refused too
        raise InputError(
            f"detector: a threshold of {highest:.4g} is never reached: with this kernel and reference, images whose "
            f"features are all {FAR} standard deviations off give {reach:.4g}; fit again, or lower detector.threshold"
        )


def check_blame(blame: Blame | None, scores: Tensor | None, table: Thresholds) -> None:
    """Refuse a score, or thresholds of it, with which no image would ever be blamed or found.

    `scores` are the reference's. They are clean images' and the thresholds are high quantiles of such: further above the
    highest than that is above the lowest, they are out of reach. Single images need a score.
    """
    alone = table.upper[table.sizes == 1]
    if blame is None or scores is None:
        if len(alone):
            raise InputError("not a detector's tensors: a threshold for single images, but no score for them")
        return
    low, high = scores.min().item(), scores.max().item()
    highest = max([blame.limit.item(), *alone.tolist()])
    if not (low < high and highest <= 2 * high - low):  # NaN is refused too
        raise InputError(
            f"detector: a limit of {highest:.4g} is never reached by scores like the reference's, {low:.4g} to {high:.4g}; "
            "fit again"
        )


def check_settings(detector: "Detector", config: DetectorConfig) -> None:
    """Refuse thresholds that are not what the settings say: for other sizes, of another kind, or no calibration's."""
    table = detector.thresholds
    several = Thresholds(*(column[table.sizes > 1] for column in table))
    sizes = several.sizes.tolist()
    smallest, largest = max(2, config.min_batch_size), max(2, config.max_batch_size)
    if not sizes or sizes[0] > smallest or sizes[-1] > largest:
        raise InputError(
            f"detector: thresholds for batches of {sizes[:1]} to {sizes[-1:]}, but settings for {smallest} to {largest}"
        )
    if config.threshold is not None:
        if not bool((several.upper == config.threshold).all()):
            raise InputError(f"detector: other thresholds than the constant one of the settings, {config.threshold}")
        return
    if detector.kind != "full":
        raise InputError(f"detector: the statistic {detector.kind!r} has no calibrated thresholds")
    check_calibrated(detector.k_reference, several, config, len(detector.calibrated_on))
    if detector.blame is not None:
        scores = detector.scores(detector.reference)
        check_rate(scores, detector.blame.limit.item(), config.false_blame_rate)
        for alone in table.upper[table.sizes == 1].tolist():
            check_rate(scores, alone, config.false_alarm_rate)


def check_calibrated(k_reference: Tensor, table: Thresholds, config: DetectorConfig, images: int) -> None:
    """Refuse thresholds that calibration on so many images does not give with these settings, whatever a null law beside
    them says.

    Of n clean images against the reference's m, the statistic has the variance 2v (1/n(n-1) + 1/m(m-1) + 2/mn), v being the
    mean square of the centred kernel. By Cantelli's inequality a law's quantile at 1 - α is at most √(1/α - 1) standard
    deviations above its mean. The mean is zero, and of N images known with √(n/N) of the deviation, for which the confidence
    asks for another quantile. It is higher where the classifier has learned the reference.
    """
    k, m, n = k_reference.cpu().double(), len(k_reference), table.sizes.double()
    centred = k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()
    square = off_diagonal_mean(centred.square())
    deviations = (2 * square * (1 / (n * (n - 1)) + 1 / (m * (m - 1)) + 2 / (m * n))).sqrt()
    sure = _cantelli(1 - config.confidence) * (n / images).sqrt() if images else 0.0  # older bundles do not say; many
    most = SLACK[config.reference] * (_cantelli(config.false_alarm_rate) + sure) * deviations
    beyond = ~(table.upper <= most)  # NaN is refused too
    if beyond.any():
        row = int(beyond.nonzero()[0, 0])
        raise InputError(
            f"detector: a threshold of {table.upper[row].item():.4g} for batches of {int(n[row])} was not calibrated for a "
            f"rate of false alarms of {config.false_alarm_rate:.1%}, which gives {most[row].item():.4g} at most; fit again"
        )


def _cantelli(rate: float) -> float:
    """How many standard deviations above its mean a law's quantile at 1 - rate is at most."""
    return (1 / rate - 1) ** 0.5


def check_rate(scores: Tensor, limit: float, rate: float) -> None:
    """Refuse a limit of scores that far more clean images reach than they should: the score is another, or upside down."""
    share, most = (scores >= limit).double().mean().item(), 2 * rate + 3 * (rate / len(scores)) ** 0.5
    if not share <= most:
        raise InputError(
            f"detector: {share:.0%} of the reference have a score of {limit:.4g} or more, which should be rare among clean "
            f"images ({rate:.1%}); fit again"
        )


def check_kernel(kernel: DeepKernel, features: Tensor) -> None:
    """A kernel that gives numbers on these features."""
    projection = kernel.projection
    if projection is not None and (projection.ndim != 2 or len(projection) != features.shape[-1] or not projection.shape[1]):
        raise InputError(f"not a detector's tensors: a projection of {tuple(projection.shape)} on {tuple(features.shape)}")
    if not all(bool(value.isfinite().all()) for value in kernel.parameters()):
        raise InputError("not a detector's tensors: expected a kernel of finite numbers")


def check_shapes(reference: Sample, table: Thresholds, null: Tensor) -> None:
    """What `load_state_dict` cannot know: that tensors of any length have the same one, and thresholds are numbers."""
    pixels, features = reference
    if pixels.ndim < 2 or features.ndim != 2 or len(pixels) != len(features):
        raise InputError(f"not a detector's tensors: a reference of {tuple(pixels.shape)} and {tuple(features.shape)}")
    lengths = [tuple(column.shape) for column in table]
    rising = table.sizes.ndim == 1 and not table.sizes.is_floating_point() and bool((table.sizes.diff() > 0).all())
    if not rising or len(set(lengths)) > 1 or not all(bool(column.isfinite().all()) for column in table):
        raise InputError(f"not a detector's tensors: thresholds of {lengths}, expected rising sizes and finite numbers")
    fits = null.ndim == 2 and null.is_floating_point() and len(null) in (0, len(table.sizes) * (null.shape[-1] > 0))
    if not fits or not bool(null.isfinite().all()) or not bool((null.diff(dim=1) >= 0).all()):
        raise InputError(f"not a detector's tensors: a null law of {tuple(null.shape)}, expected rising rows, one per size")


def refuse_half(fn: Callable[[Tensor], Tensor]) -> None:
    """Raise InputError where `fn`, which a module is about to apply to its tensors, would make them half precision."""
    dtype = fn(torch.zeros(0)).dtype
    if dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"detector: expected float32 or float64, got {dtype}: thresholds and statistics would lose their digits; leave "
            "the defence in float32 and put only a classifier of your own into half precision"
        )
