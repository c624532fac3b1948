"""Residual networks for small images.

Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (2016). The stem is the one used for
CIFAR, a 3x3 convolution at full resolution without max-pooling: the original stem would leave 8x8 of a 32x32 image.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from twoprong.models.featured import Featured
from twoprong.models.normalise import Normalise

STEM = 64
Activation = Callable[[], nn.Module]


class Residual(nn.Module):
    """activation(branch(x) + shortcut(x)); the shortcut is the identity, or a 1x1 convolution where the shape changes."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int, activation: Activation = nn.ReLU) -> None:
        super().__init__()
        self.branch = branch
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else nn.Sequential(*_conv(inputs, outputs, 1, stride))
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.branch(x) + self.shortcut(x))


class ResNet(Featured):
    """Images (N, channels, H, W) in [0, 1], any side from 8 up, to logits (N, classes).

    A stage per entry of `depths`, each twice as wide as the one before (from `stem`) and at half its resolution; then a
    global average, whose output (512 wide after four stages, 2048 with bottlenecks) is the features, and one linear layer.
    """

    def __init__(
        self,
        classes: int,
        channels: int,
        depths: Sequence[int],
        bottleneck: bool,
        activation: Activation = nn.ReLU,
        stem: int = STEM,
    ) -> None:
        super().__init__()
        block = _bottleneck if bottleneck else _basic
        expansion = 4 if bottleneck else 1
        self.normalise = Normalise(channels)
        self.stem = nn.Sequential(*_conv(channels, stem, 3), activation())
        blocks: list[nn.Module] = []
        inputs = stem
        for stage, depth in enumerate(depths):
            width = stem * 2**stage
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(inputs, width, stride, activation))
                inputs = width * expansion
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, classes)

    def features(self, images: Tensor) -> Tensor:
        return self.pool(self.blocks(self.stem(self.normalise(images))))


def resnet18(classes: int, channels: int) -> ResNet:
    """ResNet-18: 11,173,962 parameters for 10 classes and 3 channels."""
    return ResNet(classes, channels, depths=(2, 2, 2, 2), bottleneck=False)


def resnet18_silu(classes: int, channels: int) -> ResNet:
    """ResNet-18 with x·sigmoid(x) in place of relu.

    Smooth activations gain robustness in adversarial training, at the same number of parameters (Xie et al. 2020, "Smooth
    adversarial training"; Gowal et al. 2020, "Uncovering the limits").
    """
    return ResNet(classes, channels, depths=(2, 2, 2, 2), bottleneck=False, activation=nn.SiLU)


def resnet18_thin(classes: int, channels: int) -> ResNet:
    """What the authors of DAD call a ResNet-18: 16 to 64 channels and three stages of two blocks, 64 features."""
    return ResNet(classes, channels, depths=(2, 2, 2), bottleneck=False, stem=16)


def resnet50(classes: int, channels: int) -> ResNet:
    """ResNet-50: 23,520,842 parameters for 10 classes and 3 channels."""
    return ResNet(classes, channels, depths=(3, 4, 6, 3), bottleneck=True)


def _basic(inputs: int, width: int, stride: int, activation: Activation) -> Residual:
    branch = nn.Sequential(*_conv(inputs, width, 3, stride), activation(), *_conv(width, width, 3))
    return Residual(branch, inputs, width, stride, activation)


def _bottleneck(inputs: int, width: int, stride: int, activation: Activation) -> Residual:
    # The stride sits on the 3x3 convolution: on the first 1x1 it would skip three quarters of the positions unread.
    branch = nn.Sequential(
        *_conv(inputs, width, 1),
        activation(),
        *_conv(width, width, 3, stride),
        activation(),
        *_conv(width, 4 * width, 1),
    )
    return Residual(branch, inputs, 4 * width, stride, activation)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
