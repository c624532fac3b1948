"""Tries the adapters on the real packages: python tools/try_adapters.py

A network with random weights is built by torchvision, timm and transformers (what cannot be imported is skipped), saved as
people save it, and taken up by `--classifier`. Its logits must be the package's own on images normalised by hand. Then
`twoprong fit --force` puts a tiny defence around it, and the bundle, loaded again, must say the same. Nothing is downloaded;
exit code 1 says that an adapter is wrong.
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

import twoprong as tp
from twoprong.cli import app
from twoprong.models.adapters import IMAGENET, adapted
from twoprong.models.weights import load_weights
from twoprong.seeds import generator, initialised

CLASSES, SIZE, EACH = ("a", "b", "c"), 64, 60
OPERATORS = ("nms", "qnms")  # of torchvision, which its import asks for and no classifier calls
ODD = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))  # a normalisation that no package has by itself
TINY = (
    "attack.steps=2", "kernel.epochs=2", "kernel.projections=[0]", "denoiser.width=0.05", "denoiser.epochs=1",
    "detector.max_batch_size=10", "detector.permutations=10",
)  # fmt: skip


def make_importable() -> None:
    """Declare torchvision's operators where they do not load: its wheels are built for a torch with CUDA."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pass
    except RuntimeError:
        for name in OPERATORS:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


def torchvision(folder: Path) -> tuple[str, nn.Module, tuple[Any, Any]]:
    net = importlib.import_module("torchvision.models").resnet18(weights=None, num_classes=len(CLASSES))
    torch.save(net.state_dict(), folder / "torchvision.pt")
    return "torchvision:resnet18", net, IMAGENET


def timm(folder: Path) -> tuple[str, nn.Module, tuple[Any, Any]]:
    net = importlib.import_module("timm").create_model("resnet18", pretrained=False, num_classes=len(CLASSES))
    torch.save(net.state_dict(), folder / "timm.pt")
    return "timm:resnet18", net, (net.pretrained_cfg["mean"], net.pretrained_cfg["std"])


def hf_resnet(folder: Path) -> tuple[str, nn.Module, tuple[Any, Any]]:
    package = importlib.import_module("transformers")
    layers = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    config = package.ResNetConfig(num_labels=len(CLASSES), **layers)
    return _saved(package.ResNetForImageClassification(config), folder / "hf-resnet")


def hf_vit(folder: Path) -> tuple[str, nn.Module, tuple[Any, Any]]:
    package = importlib.import_module("transformers")
    width = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = package.ViTConfig(num_labels=len(CLASSES), image_size=SIZE, patch_size=16, **width)
    return _saved(package.ViTForImageClassification(config), folder / "hf-vit")


def _saved(net: Any, place: Path) -> tuple[str, nn.Module, tuple[Any, Any]]:
    net.save_pretrained(place)
    known = {"image_mean": ODD[0], "image_std": ODD[1]}
    (place / "preprocessor_config.json").write_text(json.dumps(known), encoding="utf-8")
    return f"hf:{place}", net, ODD


KINDS: dict[str, Callable[[Path], tuple[str, nn.Module, tuple[Any, Any]]]] = {
    "torchvision": torchvision, "timm": timm, "hf-resnet": hf_resnet, "hf-vit": hf_vit,
}  # fmt: skip


def pictures(folder: Path) -> Path:
    """Random pictures, sorted into classes."""
    draw = generator(0, "pictures")
    for name in CLASSES:
        (folder / "pictures" / name).mkdir(parents=True)
        for number, pixels in enumerate(torch.randint(256, (EACH, SIZE, SIZE, 3), generator=draw).byte().numpy()):
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{number}.png")
    return folder / "pictures"


@torch.no_grad()
def attempt(kind: str, folder: Path, data: Path) -> float:
    """The largest difference between the package's logits and ours. Raises what goes wrong; AssertionError for logits."""
    with initialised(0, kind):
        name, net, (mean, std) = KINDS[kind](folder)
    images = torch.rand(8, 3, SIZE, SIZE, generator=generator(0, "images"))
    found: Any = net.eval()((images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1))
    expected: Tensor = getattr(found, "logits", found)
    weights = folder / f"{kind}.pt"
    wrapped, trained = adapted(name, len(CLASSES))
    assert trained == (not weights.exists()), "only transformers brings weights along"
    if not trained:
        load_weights(wrapped.network, weights, name)
    differs = (wrapped.eval()(images) - expected).abs().max().item()
    assert differs < 1e-4 * (1 + expected.abs().max().item()), f"logits differ by {differs}"
    bundle = folder / f"bundle-{kind}"
    given = ["--data", data, "--image-size", SIZE, "--classifier", name, "--held-out", "none", "--force", "--out", bundle]
    given += ["--weights", weights] if not trained else []
    with torch.enable_grad():
        app(["fit", *map(str, given), *[f"--set={setting}" for setting in TINY]], standalone_mode=False)
    package = name.partition(":")[0]
    defense = tp.load(bundle, allow=[package]) if not trained else tp.load(bundle, classifier=wrapped)
    left = (defense.logits(images, "passing")[0] - expected).abs().max().item()
    assert left < 1e-4 * (1 + expected.abs().max().item()), f"logits of the loaded bundle differ by {left}"
    assert defense(images).names is not None, "the classes are not in the bundle"
    return max(differs, left)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    wrong = 0
    make_importable()
    with tempfile.TemporaryDirectory() as temporary:
        shown = pictures(Path(temporary))
        for kind in KINDS:
            try:
                print(f"{kind}: fits; logits differ by {attempt(kind, Path(temporary), shown):.1e} at most", flush=True)
            except ModuleNotFoundError as error:
                print(f"{kind}: skipped, {error}", flush=True)
            except Exception as error:
                wrong += 1
                print(f"{kind}: WRONG: {type(error).__name__}: {error}", flush=True)
    sys.exit(wrong > 0)
