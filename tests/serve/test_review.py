import io

import numpy as np
import pytest
from PIL import Image

from twoprong.serve.review import Review
from twoprong.serve.worker import BatchFacts


def facts(number, count=3):
    draw = np.random.default_rng(number)
    images = list(draw.random((count, 3, 8, 8), dtype=np.float32))
    seen = draw.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
    yes = (True,) * count
    return BatchFacts(count, ("a",) * count, yes, yes, ("a",), True, True, 0.2, 0.1, 0.01, images, tuple(range(count)), seen)


def test_a_batch_is_kept_as_sent_as_seen_and_as_the_difference(tmp_path):
    review, batch = Review(tmp_path / "kept", 10**6), facts(1)
    review.keep(batch)
    (said,) = review.newest()
    assert (said["size"], said["keys"], said["statistic"]) == (3, ["a"] * 3, 0.2)
    pixels = np.array(Image.open(io.BytesIO(review.picture(said["name"]))))
    assert pixels.shape == (24, 24, 3)
    assert np.array_equal(pixels[:8, 8:16], (batch.images[1] * 255).round().transpose(1, 2, 0))
    assert np.array_equal(pixels[8:16, :8], batch.seen[0].transpose(1, 2, 0))


def test_the_oldest_make_room_for_the_newest(tmp_path):
    review = Review(tmp_path, 10**6)
    review.keep(facts(0))
    size = sum(path.stat().st_size for path in tmp_path.glob("*.png"))
    review.max_bytes = 3 * size + 20
    for number in range(1, 10):
        review.keep(facts(number))
    assert len(review.newest()) == 3
    assert len(list(tmp_path.iterdir())) == 6
    assert [int(one["name"].split("-")[1]) for one in review.newest()] == [9, 8, 7]


@pytest.mark.parametrize("name", ["../secret", "1234567890-0/..", "x", "", "1234567890-0"])
def test_nothing_but_kept_pictures_is_given(tmp_path, name):
    (tmp_path / "secret.png").write_bytes(b"x")
    assert Review(tmp_path / "kept", 10**6).picture(name) is None


def test_a_full_disk_is_logged_and_not_the_clients_business(tmp_path, caplog):
    review = Review(tmp_path, 10)
    review.keep(facts(1))
    assert "could not be kept" in caplog.text
    assert review.newest() == []
