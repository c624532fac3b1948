import asyncio
import io

import numpy as np
import pytest

from twoprong.serve import wire


def test_a_message_comes_out_as_it_went_in_at_both_ends():
    images = [np.arange(12, dtype=np.uint8).reshape(3, 2, 2), np.full((3, 2, 2), 0.25, np.float32)]
    message = wire.pack({"kinds": wire.kinds(images)}, b"".join(image.tobytes() for image in images))

    async def main():
        stream = asyncio.StreamReader()
        stream.feed_data(message)
        return await wire.receive(stream)

    for head, body in (wire.read(io.BytesIO(message)), asyncio.run(main())):
        first, second = wire.arrays(body, head["kinds"], (3, 2, 2))
        assert np.array_equal(first, images[0].astype(np.float32) / 255)
        assert np.array_equal(second, images[1])


@pytest.mark.parametrize("cut", [0, 3, 8, 10, -1])
def test_a_message_that_is_cut_off_is_none(cut):
    assert wire.read(io.BytesIO(wire.pack({"a": 1}, b"body")[:cut])) is None


def test_pixels_of_another_kind_are_an_error():
    with pytest.raises(KeyError):
        wire.kinds([np.zeros(3, np.float64)])
