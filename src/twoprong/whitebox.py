"""The defence as an attacker who knows everything sees it: both routes and the test, differentiable. A `Target`."""

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor, nn

from twoprong.attacks.target import ROLES, Hurdle, Plain, PlainOutcome, Role
from twoprong.config import Estimator, FitConfig
from twoprong.detect.copies import copies, distinct
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import Sample
from twoprong.detect.mmd import mmd2
from twoprong.models.features import Features
from twoprong.routes import Denoised, Direct, Route

AVERAGED = 8  # draws of the noise at most


def averaged(route: Route, taking: int, size: int) -> int:
    """How many draws of a route's noise are averaged for each of the `taking` images of a batch: no more than cost what the
    whole batch with one draw would."""
    return min(AVERAGED, size // taking) if route.random else 1


def padded(index: Tensor, size: int) -> Tensor:
    """`size` numbers of images, of which the first are `index`."""
    return torch.cat([index, index.new_zeros(size - len(index))])


class WhiteBox(nn.Module):
    """What attacks may ask of a defence. It decides nothing: `Defense` does."""

    coupled = True  # a batch is judged as one
    routes = ROLES
    extractor: Features
    detector: Detector
    passing: Route
    flagged: Route
    config: FitConfig

    @property
    def layered(self) -> bool:
        """Whether the passing route is more than the classifier, so that it is worth a look by itself."""
        return self.passing.kind != Direct.kind

    def route(self, role: Role) -> Route:
        return self.flagged if role == "flagged" else self.passing

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Logits (draws, N, classes) on a route, or on the ones that the images take; exact gradients in the images.

        A route without noise gives one draw; the draws of another are computed as one batch. Where the images of a batch
        take both routes, each route computes as many images as the batch has: an attacker's batches keep their shape.
        """
        if route is not None:
            return self.route(route).logits(images, draws, generator)
        with torch.no_grad():
            rescued = self._suspects(images, self._rescued)
        roles = self._roles(rescued)
        if len(roles) == 1:
            return self.route(roles[0]).logits(images, draws, generator)
        parts = []
        for way, rows in self._ways(rescued):
            index = rows.repeat(many := averaged(way, len(rows), len(images)))
            logits = way.logits(images[padded(index, len(images))], draws, generator)[:, : len(index)]
            parts.append((rows, logits.unflatten(1, (many, len(rows))).mean(1)))
        back, drawn = torch.cat([rows for rows, _ in parts]).argsort(), max(len(logits) for _, logits in parts)
        return torch.cat([logits.expand(drawn, -1, -1) for _, logits in parts], 1)[:, back]

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        """MMD-OPT of the batch against the deployed reference, as a scalar tensor differentiable in the images.

        Copies of one image count once. Against other images (`reference`) it is the paper's paired form on the same kernel
        (of a detector with the biased statistic, that one); nothing deployed uses that.
        """
        if reference is None:
            return self.detector.statistic(self._sample(distinct(images)))
        batch = self._sample(images)
        other, kernel = self._sample(reference), self.detector.kernel
        estimator: Estimator = "v" if self.detector.kind == "biased" else "u"
        return mmd2(kernel(other, other), kernel(batch, batch), kernel(other, batch), estimator=estimator)

    def in_training(self) -> Route:
        """The flagged route with its denoiser in training mode, as the authors' attack has it; one without any as it is."""
        return self.flagged.in_training() if isinstance(self.flagged, Denoised) else self.flagged

    def threshold(self, size: int) -> float:
        """The statistic at which a batch of `size` is flagged."""
        return self.detector.threshold(size)

    def restored(
        self, images: Tensor, route: Role = "flagged", draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """What a route shows its classifier (draws·N, C, H, W): by the paper's flagged route, denoised images."""
        chosen = self.route(route)
        return chosen.restore(chosen.disturb(images, draws, generator))

    def classified(self, seen: Tensor, route: Role = "flagged") -> Tensor:
        """A route's logits (N, classes) for what it shows its classifier."""
        return self.route(route).classify(seen)

    def hurdles(
        self, images: Tensor, labels: Tensor, route: Role = "passing", generator: torch.Generator | None = None
    ) -> list[Hurdle]:
        """The networks that an attacker has to get past on a route, image by image, in one draw of the noise."""
        return self.route(route).hurdles(self.restored(images, route, 1, generator), labels)

    def embed(self, images: Tensor) -> Tensor:
        """The features (N, d) that the test sees."""
        return self.extractor(images)[1]

    def suspicion(self, images: Tensor) -> Tensor:
        """How far each image's score (N,) is above the limit of blame, differentiable; zero where there are no scores."""
        blame = self.detector.blame
        return (
            0 * images.flatten(1).sum(1)
            if blame is None
            else self.detector.scores(self._sample(images)) - blame.limit.float()
        )

    def suspects(self, images: Tensor) -> Tensor:
        """Which images (N,) would be blamed; none where the batch passes."""
        with torch.no_grad():
            return self._suspects(images)

    def witness(self, images: Tensor, others: Tensor) -> Tensor:
        """How conspicuous each image is among `others`: mean k(others, z) - mean k(reference, z), differentiable.

        The witness function of MMD (Gretton et al. 2012): putting the image z into a batch of n raises the statistic by
        2/n of it, up to terms of second order and what does not depend on z.
        """
        seen, rest, kernel = self._sample(images), self._sample(others), self.detector.kernel
        reference = self.detector.reference.rows(self.detector.opposite(len(others)))
        return kernel(rest, seen).mean(0) - kernel(reference, seen).mean(0)

    def reference_images(self) -> Tensor:
        return self.detector.reference_pixels

    def _sample(self, images: Tensor) -> Sample:
        return Sample(images, self.embed(images))

    def _suspects(self, images: Tensor, then: Callable[[Tensor], Tensor] = torch.clone) -> Tensor:
        """Who is blamed, without the p-value: what an attacker asks at every step. Copies count once, broken images are
        judged apart. `then` is done to the suspects of what is judged as one batch."""
        repeated = copies(images)
        if repeated is not None:
            first, back = repeated
            return self._suspects(images[first], then)[back]
        if len(images) < self.detector.batch_sizes[0]:
            return then(torch.full((len(images),), self.config.on_small_batch == "denoise", device=images.device))
        batch = self._sample(images)
        value = self.detector.statistic(batch).item()
        if not isfinite(value) and (broken := self._broken(batch.features)) is not None:
            found = then(torch.ones_like(broken))
            found[~broken] = self._suspects(images[~broken], then)
            return found
        if not self.detector.flags(value, len(images)):
            return torch.zeros(len(images), dtype=torch.bool, device=images.device)
        return then(self.detector.suspects(batch)[0])

    def _broken(self, features: Tensor) -> Tensor | None:
        """Which images of a batch cannot be judged, because their features are no finite numbers or too large for distances;
        None where too few others are left to be judged without them."""
        broken = ~self.detector.kernel.measurable(features)
        left = len(broken) - int(broken.sum())
        return broken if self.detector.batch_sizes[0] <= left < len(broken) else None

    def _rescued(self, suspects: Tensor) -> Tensor:
        """Who takes the flagged route: by `config.rescue` the suspects, or all images of their batch, or nobody."""
        if self.config.rescue == "suspects":
            return suspects
        return torch.full_like(suspects, self.config.rescue == "batch" and bool(suspects.any()))

    def _ways(self, rescued: Tensor) -> list[tuple[Route, Tensor]]:
        """The routes that are taken, each with its images' numbers."""
        ways = ((self.passing, (~rescued).nonzero()[:, 0]), (self.flagged, rescued.nonzero()[:, 0]))
        return [(route, rows) for route, rows in ways if len(rows)]

    @staticmethod
    def _roles(rescued: Tensor) -> tuple[Role, ...]:
        """The routes that are taken."""
        if bool(rescued.all()):
            return ("flagged",)
        return ROLES if bool(rescued.any()) else ("passing",)


class OneRoute(Plain):
    """Every batch takes one route, nothing is tested; with the flagged one, the second prong without the first."""

    def __init__(self, defense: WhiteBox, role: Role) -> None:
        super().__init__(defense.passing.classifier)
        self.defense, self.role, self.routes = defense, role, (role,)

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.defense.logits(images, self.role, draws, generator)

    @torch.no_grad()
    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> PlainOutcome:
        return PlainOutcome(self.logits(images, None, 1, generator)[0])

    def restored(
        self, images: Tensor, route: Role = "flagged", draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.defense.restored(images, self.role, draws, generator)

    def classified(self, seen: Tensor, route: Role = "flagged") -> Tensor:
        return self.defense.classified(seen, self.role)

    def hurdles(
        self, images: Tensor, labels: Tensor, route: Role = "passing", generator: torch.Generator | None = None
    ) -> list[Hurdle]:
        return self.defense.hurdles(images, labels, self.role, generator)

    def modules(self) -> list[nn.Module]:
        return list(self.defense.modules())
