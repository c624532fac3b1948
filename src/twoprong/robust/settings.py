"""Settings of a robust training."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from twoprong.config import AttackConfig, Count, Number, Positive, Settings, Share
from twoprong.errors import InputError
from twoprong.robust.losses import AT, AWP, HAT, MART, TRADES, Method, Natural

Part = Annotated[Number, Field(ge=0, le=1)]


class RobustConfig(Settings):
    """One network, trained with or without an attacker inside; defaults for a ResNet-18 on CIFAR-10 at 8/255.

    SGD with Nesterov momentum; the rate rises during the first `warmup` of the training and falls to zero as a cosine. Up to
    `early_until` of the training the attacker takes `early_steps`, later `attack.steps`; a step is 2.5·ε / steps. Weights
    are perturbed (AWP) from `awp_from` on. `ema` is the decay of the weights' running average, which is what is kept.
    """

    model: str = "resnet18-silu"
    method: Literal["natural", "at", "trades", "mart", "hat"] = "hat"
    beta: Positive | None = None  # None: the method's own
    gamma: Annotated[Number, Field(ge=0)] = 0.5  # weight of the helper examples (HAT)
    awp: Annotated[Number, Field(ge=0)] = 5e-3  # 0: weights are not perturbed
    awp_from: Part = 0.1
    epochs: Count = 120
    batch_size: Count = 256
    lr: Positive = 0.2
    weight_decay: Annotated[Number, Field(ge=0)] = 5e-4
    warmup: Share = 0.1
    ema: Share = 0.999
    augment: Literal["none", "crop", "strong"] = "strong"
    attack: AttackConfig = AttackConfig()
    early_steps: Count = 5
    early_until: Part = 0.5

    def objective(self, helper: nn.Module | None, done: float) -> Method:
        """The method at a share `done` of the training. Raises InputError where HAT has no helper."""
        if self.method == "hat" and helper is None:
            raise InputError("helper: expected an accurate network for the method hat, got none; train one first")
        beta = {} if self.beta is None else {"beta": self.beta}
        methods: dict[str, Callable[[], Method]] = {
            "natural": Natural,
            "at": AT,
            "trades": lambda: TRADES(**beta),
            "mart": lambda: MART(**beta),
            "hat": lambda: HAT(helper, gamma=self.gamma, **beta),  # type: ignore[arg-type]  # checked above
        }
        method = methods[self.method]()
        return AWP(method, self.awp) if self.awp > 0 and done >= self.awp_from else method

    def attacker(self, done: float) -> AttackConfig:
        """The attacker's settings at a share `done` of the training."""
        steps = self.attack.steps if done >= self.early_until else min(self.early_steps, self.attack.steps)
        return self.attack.model_copy(update={"steps": steps, "step": 2.5 * self.attack.eps / steps})

    def rate(self, done: float) -> float:
        """The learning rate at a share `done` of the training."""
        rising = done / self.warmup
        falling = 0.5 * (1 + math.cos(math.pi * max(0.0, done - self.warmup) / (1 - self.warmup)))
        return self.lr * max(min(rising, falling), 1e-3 if done < self.warmup else 0.0)
