import base64
import io

import torch
from PIL import Image

from twoprong.report.pictures import SHOWN, strips


def test_every_image_comes_in_all_its_forms_with_the_classifiers_word(defense, digits):
    clean = digits.test[:20]
    attacked = (clean.images + 0.1).clamp(0, 1)
    found = strips(defense, clean, {"shifted": attacked, "untouched": clean.images[:3]}, 0)
    assert [entry.attack for entry in found] == ["shifted"] * SHOWN + ["untouched"] * 3
    assert [entry.label for entry in found[:SHOWN]] == clean.labels[:SHOWN].tolist()
    says = [entry.says["clean"] for entry in found[:SHOWN]]
    assert says == defense.classifier(clean.images[:SHOWN]).argmax(1).tolist()
    for entry in found:
        assert set(entry.images) == {"clean", "adversarial", "difference", "denoised"}
        assert set(entry.says) == {"clean", "adversarial", "denoised"}
    assert found[-1].images["clean"] == found[-1].images["adversarial"]
    grey = Image.open(io.BytesIO(base64.b64decode(found[-1].images["difference"].split(",")[1])))
    assert grey.getextrema() == (128, 128)  # no difference
    assert torch.equal(clean.images, digits.test[:20].images)
