"""Settings of a robust training, complete, and how they change in its course."""

import math
from collections.abc import Callable

from torch import nn

from twoprong.config import AttackConfig, RobustTraining
from twoprong.errors import InputError
from twoprong.robust.losses import AT, AWP, HAT, MART, TRADES, Method, Natural


class RobustConfig(RobustTraining):
    """The settings of a training with its model and its attacker, and what follows from them in its course."""

    model: str = "resnet18-silu"
    attack: AttackConfig = AttackConfig()

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
