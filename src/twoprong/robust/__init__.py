"""Adversarial training: classifiers that are robust by themselves, with or without the defence around them."""

from twoprong.robust.losses import METHODS
from twoprong.robust.train import train_robust

__all__ = ["METHODS", "train_robust"]
