import base64
import io

import pytest
import torch
from PIL import Image

from twoprong.attacks import PGD
from twoprong.report.suspects import COLUMNS, LARGEST, blamed_batch, drawn, figure, shown, told
from twoprong.seeds import generator


def opened(batch):
    return Image.open(io.BytesIO(base64.b64decode(batch.picture.split(",")[1])))


@pytest.mark.parametrize(("shape", "side"), [((3, 32, 32), 32), ((1, 8, 8), 8), ((3, 100, 100), LARGEST)])
def test_the_grid_has_every_image_in_its_place(shape, side):
    shades = torch.arange(13) / 12
    batch = blamed_batch(shades[:, None, None, None].expand(-1, *shape), shades < 0.3, shades > 0.9)
    grid = opened(batch).convert("L")
    assert grid.size == (COLUMNS * side, 2 * side)
    for number, shade in enumerate(shades.tolist()):
        middle = (number % COLUMNS * side + side // 2, number // COLUMNS * side + side // 2)
        assert grid.getpixel(middle) == pytest.approx(255 * shade, abs=3)
    assert (batch.width, batch.height) == (side, side)


def test_frames_say_who_was_attacked_and_who_is_blamed():
    attacked, suspects = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    batch = blamed_batch(torch.rand(4, 1, 8, 8, generator=generator(0, "x")), attacked, suspects)
    assert told(batch) == (
        "A flagged batch of 4 images: 1 attacked and blamed; 1 clean, blamed by mistake; 1 attacked, not blamed."
    )
    svg = drawn(batch)
    assert svg.count("<rect") == 3 + 3, "an innocent image has none; three are in the key"


def test_a_forged_picture_does_not_leave_its_attribute():
    batch = blamed_batch(torch.zeros(1, 1, 8, 8), torch.tensor([True]), torch.tensor([True]))
    forged = batch.model_copy(update={"picture": 'x"/><script>alert(1)</script>'})
    assert "<script>" not in figure(forged)


def test_only_a_flagged_batch_of_a_defence_that_can_name_suspects_is_shown(defense, older, digits):
    images, draw = digits.test.images[:100], generator(0, "shown")
    attacked = PGD(eps=0.3, step=0.04)(defense.classifier, images[:50], digits.test.labels[:50], draw).images
    found = shown(defense, attacked, images[50:], draw)
    assert found.attacked == [True] * 50 + [False] * 50
    assert found.suspects == defense(torch.cat([attacked, images[50:]])).suspects.tolist()
    assert shown(older, attacked, images[50:], draw) is None
    assert shown(defense, images[:50], images[50:], draw) is None, "a clean batch"
    assert figure(None) is None
