"""Networks: classifiers by name, the denoiser, and features read off any classifier."""

from twoprong.models.dunet import DUNet
from twoprong.models.features import Features
from twoprong.models.zoo import MODELS, ModelSpec, build

__all__ = ["MODELS", "DUNet", "Features", "ModelSpec", "build"]
