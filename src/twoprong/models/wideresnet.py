"""Wide residual networks, the usual architecture of robustness benchmarks.

Source: Zagoruyko, Komodakis, "Wide Residual Networks" (2016), built from the pre-activation blocks of He, Zhang, Ren,
Sun, "Identity Mappings in Deep Residual Networks" (2016). No dropout, except in the variant that DAD's authors train.
"""

from torch import Tensor, nn

from twoprong.errors import InputError
from twoprong.models.featured import Featured
from twoprong.models.normalise import Normalise

STEM = 16


class PreActivation(nn.Module):
    """x + branch(relu(bn(x))), or shortcut(a) + branch(a) with a = relu(bn(x)) where the shape changes.

    The 1x1 shortcut reads the activated input, the identity the raw one: so the two can share one normalisation and
    the identity path stays free of it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, bias: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=bias),
            *([nn.Dropout(dropout)] if dropout else []),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias),
        )
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = None if same_shape else nn.Conv2d(inputs, outputs, 1, stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activate(x)
        carried = x if self.shortcut is None else self.shortcut(activated)
        return carried + self.branch(activated)


class WideResNet(Featured):
    """WRN-depth-width: images (N, channels, H, W) in [0, 1], any side from 8 up, to logits (N, classes).

    Three groups of (depth - 4) / 6 blocks, 16, 32 and 64 times `width` wide, the later two each halving the
    resolution; a last norm and ReLU, a global average (the features, 64 * width wide), one linear layer. `authors` is what
    the authors of DAD train: biases in convolutions, a dropout of 0.3 between those of a block, images as they come.
    Raises InputError for a depth that does not divide into such groups.
    """

    def __init__(self, classes: int, channels: int, depth: int, width: int, authors: bool = False) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6 != 0 or width < 1:
            raise InputError(
                f"wrn-{depth}-{width}: expected wrn-DEPTH-WIDTH with DEPTH of the form 6n+4 (10, 16, 22, 28, 34, 40, "
                "...) and WIDTH of 1 or more; wrn-28-10 is the usual choice"
            )
        self.normalise = Normalise(channels, 0.0, 1.0) if authors else Normalise(channels)
        self.stem = nn.Conv2d(channels, STEM, 3, padding=1, bias=authors)
        blocks: list[nn.Module] = []
        inputs = STEM
        for group in range(3):
            outputs = STEM * width * 2**group
            for position in range((depth - 4) // 6):
                stride = 2 if group > 0 and position == 0 else 1
                blocks.append(PreActivation(inputs, outputs, stride, authors, 0.3 * authors))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # the identity path is never normalised, so the scale of a branch counts
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        return self.pool(self.blocks(self.stem(self.normalise(images))))
