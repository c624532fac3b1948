import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from twoprong.serve import wire
from twoprong.serve.loaded import LoadedModel
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
    assert pixels.shape == (27, 27, 3)
    assert np.array_equal(pixels[:8, 9:17], (batch.images[1] * 255).round().transpose(1, 2, 0))
    assert np.array_equal(pixels[9:17, :8], batch.seen[0].transpose(1, 2, 0))


def test_the_oldest_make_room_for_the_newest(tmp_path):
    review = Review(tmp_path, 10**6)
    review.keep(facts(0))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    review.max_bytes = 3 * size + 200
    for number in range(1, 10):
        review.keep(facts(number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= review.max_bytes
    assert len(review.newest()) == 3
    assert len(list(tmp_path.iterdir())) == 3
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


def test_threads_that_keep_at_once_lose_no_batch_and_keep_the_bound(tmp_path, caplog):
    review = Review(tmp_path, 10**6)
    review.keep(facts(0))
    review.max_bytes = 2 * sum(path.stat().st_size for path in tmp_path.iterdir()) + 200
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(review.keep, [facts(number) for number in range(1, 81)]))
    assert caplog.text == ""
    assert len(list(tmp_path.iterdir())) == len(review.newest()) == 2


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    Review(tmp_path, 10**6).keep(facts(0))
    (tmp_path / ".1234567890-0.png.0123abcd.partial").write_bytes(b"half")
    assert len(Review(tmp_path, 10**6).newest()) == len(list(tmp_path.iterdir())) == 1


def test_only_tested_batches_are_kept(older, digits, tmp_path):
    older.save(tmp_path / "digits")
    settings = {"bundle": str(tmp_path / "digits"), "device": "cpu", "on_small_batch": "denoise", "allow": (),
                "threads": 1, "review": True, "demo": False}  # fmt: skip
    loaded, noise = LoadedModel(settings), np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)

    def shown(images):
        head = {"numbers": list(range(len(images))), "keys": ["a"] * len(images), "watched": [], "kinds": wire.kinds(images)}
        found, _ = loaded.answer(head, b"".join(image.tobytes() for image in images))
        return found["adversarial"], found["tested"], len(found["shown"])

    assert shown(noise) == (True, True, 20)
    assert shown(noise[:1]) == (True, False, 0)
    assert shown(digits.test.images[:20].numpy()) == (False, True, 0)
