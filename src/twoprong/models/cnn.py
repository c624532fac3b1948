"""A small convolutional classifier: for digits, demos and tests, where a run on a CPU should take seconds."""

from torch import Tensor, nn

from twoprong.models.featured import Featured
from twoprong.models.normalise import Normalise

WIDTHS = (32, 64, 128)
FEATURES = 128


class SmallCNN(Featured):
    """Images (N, channels, H, W) in [0, 1] to logits (N, classes); meant for sides of 8 to 64.

    Three convolutions of growing width, two halvings of the resolution (8x8 leaves 2x2), a global average, and one
    hidden layer whose 128 outputs are the features a detector sees.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.normalise = Normalise(channels)
        self.body = nn.Sequential(
            _block(channels, first),
            nn.MaxPool2d(2),
            _block(first, second),
            nn.MaxPool2d(2),
            _block(second, third),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(nn.Linear(third, FEATURES), nn.ReLU())
        self.head = nn.Linear(FEATURES, classes)

    def features(self, images: Tensor) -> Tensor:
        return self.hidden(self.body(self.normalise(images)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    # No bias in the convolution: the batch norm that follows would subtract it again.
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
