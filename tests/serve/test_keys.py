from hashlib import sha256

import pytest
from starlette.datastructures import Headers

from twoprong.serve.keys import Bucket, Keys
from twoprong.serve.problems import Problem
from twoprong.serve.settings import KeySettings


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


def test_a_bucket_takes_the_rest_of_what_was_begun():
    bucket = Bucket(rate=1.0, burst=4, clock=lambda: 0.0)
    bucket.take(1)
    bucket.take(4, taken=1)
    bucket = Bucket(rate=1.0, burst=4, clock=lambda: 0.0)
    bucket.take(1)
    with pytest.raises(Problem, match="at most 4 images at once") as caught:
        bucket.take(5, taken=1)
    assert caught.value.status == 413
    bucket.take(2)
    bucket.take(1)
    with pytest.raises(Problem) as caught:
        bucket.take(3, taken=1)
    assert caught.value.retry_after == 3  # for all of it: it will be sent again


@pytest.mark.parametrize("key", ["secret", "schlüssel", "voilà", "鍵"])  # the last byte of à is a space in latin-1
def test_keys_are_known_by_their_bytes(key):
    keys = Keys({"alice": KeySettings(sha256=sha256(key.encode()).hexdigest())})
    for header in ((b"x-api-key", key.encode()), (b"authorization", b"Bearer  " + key.encode())):
        assert keys.name(Headers(raw=[header])) == "alice"
