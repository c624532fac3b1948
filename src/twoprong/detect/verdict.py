"""What the test says of one batch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What the test says of one batch.

    `p_value` is the share of clean batches with such a statistic or a larger one, under the law that the thresholds come
    from: the calibrated null, given the reference. It is uniform on unseen clean batches as far as calibration can tell, and
    at least 1/1000. Detectors without that law (of older bundles, or with a constant threshold) give the permutation test's
    p-value instead, which holds on average over references, not for this one. A statistic that is not finite is flagged, and
    has a p-value of NaN.
    """

    adversarial: bool
    statistic: float
    threshold: float
    p_value: float


UNTESTED = Verdict(adversarial=False, statistic=math.nan, threshold=math.nan, p_value=math.nan)
