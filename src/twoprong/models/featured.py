"""The shape that our own classifiers share: features, then one linear layer."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Featured(nn.Module, ABC):
    """A classifier whose penultimate features are a method, so that nobody has to listen for them.

    `features` gives (N, d), `head` the logits from them.
    """

    head: nn.Module

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """What the last layer sees of the images."""

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    def both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features from one pass."""
        features = self.features(images)
        return self.head(features), features
