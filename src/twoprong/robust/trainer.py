"""A robust training made fast: images stay on the GPU, the attacker is recorded, the network compiled, weights averaged."""

import time
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from twoprong.attacks.losses import margin
from twoprong.config import AttackConfig
from twoprong.data.tensors import Labelled
from twoprong.models.fast import Compiler, Replayed, fast
from twoprong.models.layout import channels_last
from twoprong.models.precision import Precision, computing
from twoprong.models.zoo import build
from twoprong.robust.attack import InnerAttack, view
from twoprong.robust.augment import AUGMENTATIONS
from twoprong.robust.average import Average
from twoprong.robust.losses import AWP, Method, kept
from twoprong.robust.settings import RobustConfig
from twoprong.seeds import generator, initialised

Gradients = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


class Trainer:
    """One training, step by step. `average.model` is its result, `state` what a checkpoint has to hold beside `optimiser`.

    A function of the arguments up to the rounding of the device. `helper` is the accurate network that HAT needs; `start`
    gives the weights to begin with. With a compiler on a GPU the attack and the gradients are one CUDA graph each.
    """

    def __init__(
        self,
        config: RobustConfig,
        data: Labelled,
        classes: int,
        seed: int,
        helper: nn.Module | None = None,
        precision: Precision = "fp32",
        compiler: Compiler | None = None,
        start: nn.Module | None = None,
    ) -> None:
        self.config, self.data, self.precision = config, data, precision
        self.device = data.images.device
        self.recorded = compiler is not None and self.device.type == "cuda"
        self.size = min(config.batch_size, len(data))
        self.per_epoch = len(data) // self.size
        with initialised(seed, "robust"):
            model = build(config.model, classes, data.images.shape[1])
        if start is not None:
            model.load_state_dict(start.state_dict())
        self.model = channels_last(model.to(self.device)).train()
        self.forward = self.model if compiler is None else cast(nn.Module, compiler(self.model, dynamic=False))
        self.view = view(self.model, compiler)
        self.optimiser = torch.optim.SGD(
            self.model.parameters(),
            lr=config.lr,
            momentum=0.9,
            nesterov=True,
            weight_decay=config.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.average = Average(self.model, config.ema)
        self.state = nn.ModuleDict({"model": self.model, "average": self.average.model})
        self.helper = helper if helper is None or precision == "fp32" else fast(helper, compiler)
        self.draw = generator(seed, "robust order", device=self.device)
        self.augment = AUGMENTATIONS[config.augment]
        self._attacks: dict[AttackConfig, InnerAttack] = {}
        self._gradients: dict[bool, Gradients] = {}

    def epoch(self, number: int) -> float:
        """The epoch of that number, from 0; returns its mean loss."""
        order = torch.randperm(len(self.data), generator=self.draw, device=self.device)
        total = torch.zeros((), device=self.device)
        for step in range(self.per_epoch):
            done = (number + step / self.per_epoch) / self.config.epochs
            total += self.step(order[step * self.size : (step + 1) * self.size], done)
            self.average.update(number * self.per_epoch + step + 1)
        return total.item() / self.per_epoch

    def step(self, index: Tensor, done: float) -> Tensor:
        """One step of the optimiser on these images, at a share `done` of the training."""
        images, labels = self.augment(self.data.images[index], self.draw), self.data.labels[index]
        method = self.config.objective(self.helper, done)
        attacked = self._attack(self.config.attacker(done))(images, labels, self.draw) if method.attacked else images
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.rate(done)
        loss, *gradients = self._gradients_of(method)(images, attacked, labels)
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss

    def _gradients_of(self, method: Method) -> Gradients:
        """The loss and its gradients as a function of a batch; one launch where it is recorded, as the attack is."""
        kind = isinstance(method, AWP)
        if kind not in self._gradients:

            def gradients(images: Tensor, attacked: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
                with computing(self.precision, self.device):
                    return method.gradients(self.forward, images, attacked, labels)

            self._gradients[kind] = Replayed(gradients) if self.recorded else gradients
        return self._gradients[kind]

    def _attack(self, settings: AttackConfig) -> InnerAttack:
        if settings not in self._attacks:
            inner = self.config.objective(self.helper, 0.0).inner
            self._attacks[settings] = InnerAttack(self.view, inner, settings, self.precision, self.recorded)
        return self._attacks[settings]

    def rehearse(self, done: float, steps: int = 20) -> float:
        """Seconds per step at a share `done` of the training, compilation not counted; everything is put back afterwards."""
        order = torch.randperm(len(self.data), device=self.device)[: self.size]
        kept_draw = self.draw.get_state()
        with kept([*self.state.parameters(), *self.state.buffers()]):
            for number in range(3 + steps):
                if number == 3:
                    began = self._clock()
                self.step(order, done)
                self.average.update(1)
            seconds = (self._clock() - began) / steps
        for slots in self.optimiser.state.values():
            slots["momentum_buffer"].zero_()
        self.draw.set_state(kept_draw)
        return seconds

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class Exam:
    """Accuracy of one network (also while it changes) on held-out images, clean and under PGD-20 on the margin.

    Without `attack` only clean, and 0 for the other. Batches are of one size, the last one filled up with images that do not
    count, so that nothing is compiled twice.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Labelled,
        attack: AttackConfig | None,
        size: int,
        precision: Precision = "fp32",
        compiler: Compiler | None = None,
    ) -> None:
        self.model, self.data, self.size, self.attack = model, data, size, None
        if attack is not None:
            settings = attack.model_copy(update={"steps": 20, "step": attack.eps / 4})
            recorded = compiler is not None and data.images.is_cuda
            self.attack = InnerAttack(view(model, compiler), _margin, settings, precision, recorded)

    def __call__(self, draw: torch.Generator) -> tuple[float, float]:
        """Shares (clean, under attack), scored in float32."""
        count = len(self.data)
        numbers = torch.arange(-(-count // self.size) * self.size, device=self.data.labels.device)
        hits = torch.zeros(2, device=self.data.images.device)
        for chunk in numbers.split(self.size):
            batch, counted = self.data[chunk % count], chunk < count
            hits[0] += self._right(batch.images, batch.labels, counted)
            if self.attack is not None:
                hits[1] += self._right(self.attack(batch.images, batch.labels, draw), batch.labels, counted)
        clean, robust = (hits / count).tolist()
        return clean, robust

    @torch.no_grad()
    def _right(self, images: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        return ((self.model(images).argmax(1) == labels) & counted).sum()


def _margin(adversarial: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
    return margin(adversarial, labels)
