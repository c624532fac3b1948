import pytest

from twoprong.serve.keys import Bucket
from twoprong.serve.problems import Problem


def test_a_bucket_gives_its_rate_and_its_burst():
    now = 0.0
    bucket = Bucket(rate=2.0, burst=4, clock=lambda: now)
    bucket.take(4)
    with pytest.raises(Problem) as caught:
        bucket.take(3)
    assert (caught.value.status, caught.value.retry_after) == (429, 2)
    now = 1.5
    bucket.take(3)
    now = 100.0  # no more than the burst is saved up
    bucket.take(4)
    with pytest.raises(Problem):
        bucket.take(1)
    with pytest.raises(Problem, match="at most 4 images at once"):
        bucket.take(5)
