"""The detector by itself: false alarms on unseen clean batches, power, and clean batches that are not quite as usual."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from twoprong.config import Rescue
from twoprong.data.tensors import Labelled
from twoprong.defense import Defense
from twoprong.evaluation.detector.corruptions import CORRUPTIONS, STRENGTHS
from twoprong.measure import partition, wilson
from twoprong.recipe import sample
from twoprong.results.detector import (
    BlamedBatch,
    BudgetRate,
    DetectorStudy,
    JudgedRate,
    Power,
    Rate,
    Roc,
    ShareRate,
    ShiftedRate,
    SizeRate,
    SkewedRate,
    Statistics,
)
from twoprong.seeds import generator

SIZES = (1, 2, 5, 10, 25, 50, 100, 200)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
CLASSES = (1, 2, 5)
BATCHES = 400  # at most, per point of a curve
ROUNDS = 25  # random partitions of the images, at most
JUDGED = 10  # batches that are also classified, for the accuracies
RESCUES: tuple[Rescue, ...] = ("batch", "suspects")
SHOWN = 0.1  # of the batch whose picture is shown is attacked, or more if that is not flagged
MOST = 10_000  # clean images: all their kernel values are kept


class Pool:
    """Images with all their kernel values, so that the statistic of any batch of them is a sum over a sub-matrix."""

    @torch.no_grad()
    def __init__(self, defense: Defense, images: Tensor) -> None:
        detector, seen = defense.detector, sample(defense.extractor, images)
        self.defense, self.images = defense, images
        self.k_yy, self.k_xy = detector.kernel(seen, seen), detector.kernel(detector.reference, seen)
        self.scores = None if detector.blame is None else detector.scores(seen)

    def __len__(self) -> int:
        return len(self.images)

    def statistic(self, batch: Tensor) -> float:
        if len(batch) == 1 and self.scores is not None:
            return self.scores[batch].item()
        return self.defense.detector.from_grams(self.k_xy[:, batch], self.k_yy[batch][:, batch]).item()


def study(
    defense: Defense, clean: Labelled, chosen: Labelled, attacked: Mapping[float, Tensor], size: int, eps: float, seed: int
) -> DetectorStudy:
    """The detector on clean and on attacked batches.

    `clean` are all unseen images. `chosen` are those that were attacked one by one (PGD on the bare classifier), and
    `attacked` what became of them, in the same order, by budget; `size` and `eps` are the headline's.
    """
    work = Study(defense, seed)
    clean = clean[:MOST]
    everything = Pool(defense, clean.images)
    pools = {budget: Pool(defense, torch.cat([chosen.images, images])) for budget, images in sorted(attacked.items())}
    usual, count = pools[eps], len(chosen)
    offered = defense.detector.batch_sizes
    sizes = sorted({*(n for n in SIZES if n in offered), size})
    clean_statistics = work.statistics(everything, work.partitions(len(clean), size))
    by_eps = {budget: work.statistics(pool, work.mixtures(count, size, 1.0)) for budget, pool in pools.items()}
    labels = chosen.labels.repeat(2)
    return DetectorStudy(
        false_alarm_rate=defense.config.detector.false_alarm_rate,
        rounds=ROUNDS,
        sizes=(offered[0], offered[-1]),
        false_alarms=[
            SizeRate(size=n, **work.rate(everything, work.partitions(len(clean), n), n, len(clean)).as_dict())
            for n in sizes
            if n <= len(clean)
        ],
        power=Power(
            by_size=[
                SizeRate(size=n, **work.rate(usual, work.mixtures(count, n, 1.0), n, count).as_dict())
                for n in sizes
                if n <= count
            ],
            by_eps=[
                BudgetRate(eps=0.0, **work.share(clean_statistics, size, len(clean)).as_dict()),
                *(BudgetRate(eps=budget, **work.share(values, size, count).as_dict()) for budget, values in by_eps.items()),
            ],
            by_share=[work.mixed(usual, labels, count, size, share) for share in _shares(size)],
        ),
        roc=[_roc(budget, clean_statistics, values) for budget, values in by_eps.items()],
        statistics=Statistics(clean=_finite(clean_statistics), bare=_finite(by_eps[eps])),
        skewed=work.skewed(everything, clean.labels, size),
        shifted=work.shifted(chosen, size),
        blamed=work.blamed(usual, count, size),
    )


class Study:
    """Batches by name and the rates at which they are flagged."""

    def __init__(self, defense: Defense, seed: int) -> None:
        self.defense, self.seed = defense, seed

    def partitions(self, count: int, size: int) -> list[Tensor]:
        """Batches from random partitions: disjoint within a round."""
        draw = generator(self.seed, "study", "partitions", count, size)
        return list(islice((batch for _ in range(ROUNDS) for batch in partition(count, size, draw)), BATCHES))

    def mixtures(self, count: int, size: int, share: float) -> list[Tensor]:
        """Batches of a pool of `count` originals followed by their attacked counterparts, a share of each batch attacked."""
        attacked = torch.zeros(size, dtype=torch.long)
        attacked[: max(1, round(share * size))] = count  # a batch of a partition is in random order already
        return [batch + attacked for batch in self.partitions(count, size)]

    def statistics(self, pool: Pool, batches: Sequence[Tensor]) -> list[float]:
        return [pool.statistic(batch.to(pool.images.device)) for batch in batches]

    def rate(self, pool: Pool, batches: Sequence[Tensor], size: int, count: int) -> Rate:
        return self.share(self.statistics(pool, batches), size, count)

    def share(self, statistics: Sequence[float], size: int, count: int) -> Rate:
        """The share flagged. Its interval is for as many batches as are disjoint: the others repeat the same images."""
        flags = sum(self.defense.detector.flags(value, size) for value in statistics)
        made = len(statistics)
        independent = min(made, max(1, count // size))
        rate = flags / made
        interval = wilson(round(rate * independent), independent)
        return Rate(rate=rate, interval=interval, batches=made, independent=independent)

    def judged(self, pool: Pool, labels: Tensor, batches: Sequence[Tensor], size: int, count: int) -> JudgedRate:
        """The share flagged, and the accuracy with and without the defence on the first few batches."""
        draw = self._draw("judged", pool)
        defended, undefended, seen = 0, 0, 0
        for batch in batches[:JUDGED]:
            index = batch.to(pool.images.device)
            images, true = pool.images[index], labels[index]
            defended += int((self.defense(images, draw).labels == true).sum())
            undefended += int((self.defense.classifier(images).argmax(1) == true).sum())
            seen += len(index)
        return _judged(self.rate(pool, batches, size, count), defended / seen, undefended / seen, min(seen, count))

    def mixed(self, pool: Pool, labels: Tensor, count: int, size: int, share: float) -> ShareRate:
        """The rate with a share of each batch attacked. On the first few batches: who is blamed, and the accuracies."""
        batches, many = self.mixtures(count, size, share), max(1, round(share * size))
        draws = {name: self._draw(name, pool) for name in ("judged", *RESCUES)}
        right, found, blamed, flagged = dict.fromkeys((*draws, "undefended"), 0), 0, 0, 0
        for batch in batches[:JUDGED]:
            index = batch.to(pool.images.device)
            images, true = pool.images[index], labels[index]
            decision = self.defense(images, draws["judged"])
            right["undefended"] += int((self.defense.classifier(images).argmax(1) == true).sum())
            answers = {"judged": decision.labels} | dict.fromkeys(RESCUES, decision.labels)
            if decision.adversarial:
                flagged += 1
                found += int(decision.suspects[:many].sum())
                blamed += int(decision.suspects[many:].sum())
                for rescue in RESCUES:
                    if rescue != self.defense.config.rescue:
                        answers[rescue] = self._with(rescue)(images, draws[rescue]).labels
            for name, labelled in answers.items():
                right[name] += int((labelled == true).sum())
        seen, clean = min(JUDGED, len(batches)) * size, flagged * (size - many)
        rates = {name: hits / seen for name, hits in right.items()}
        judged = _judged(self.rate(pool, batches, size, count), rates["judged"], rates["undefended"], min(seen, count))
        blames = self.defense.detector.blame is not None
        return ShareRate(
            **judged.as_dict(),
            share=share,
            recall=found / (flagged * many) if blames and flagged else None,
            false_blame=blamed / clean if blames and clean else None,
            by_rescue={rescue: rates[rescue] for rescue in RESCUES} if blames else {},
        )

    def blamed(self, pool: Pool, count: int, size: int) -> BlamedBatch | None:
        """The first flagged batch with few attacked images in it, to be shown."""
        from twoprong.report.suspects import shown  # only who makes pictures pays for the import

        batches = [(share, self.mixtures(count, size, share)[0]) for share in _shares(size) if SHOWN <= share < 1]
        for share, batch in batches:
            images, many = pool.images[batch.to(pool.images.device)], round(share * size)
            found = shown(self.defense, images[:many], images[many:], self._draw("blamed", pool))
            if found is not None:
                return found
        return None

    def _with(self, rescue: Rescue) -> Defense:
        config = self.defense.config.model_copy(update={"rescue": rescue})
        return Defense(**vars(replace(self.defense.parts, config=config)))

    def _draw(self, name: str, pool: Pool) -> torch.Generator:
        return generator(self.seed, "study", name, device=pool.images.device)

    @torch.no_grad()
    def skewed(self, pool: Pool, labels: Tensor, size: int) -> list[SkewedRate]:
        """Clean batches of a few classes only: unusual, not adversarial."""
        found = []
        present, counts = labels.cpu().unique(return_counts=True)
        for classes in (number for number in CLASSES if number < len(present)):
            smaller = min(size, int(counts.min()) * classes)
            if smaller not in self.defense.detector.batch_sizes:
                continue
            draw = generator(self.seed, "study", "skewed", classes)
            batches = []
            for _ in range(BATCHES // 4):
                some = present[torch.randperm(len(present), generator=draw)[:classes]]
                members = torch.isin(labels.cpu(), some).nonzero().flatten()
                batches.append(members[torch.randperm(len(members), generator=draw)[:smaller]])
            entry = self.judged(pool, labels, batches, smaller, int(counts.sum() * classes / len(present)))
            found.append(SkewedRate(classes=classes, size=smaller, **entry.as_dict()))
        return found

    @torch.no_grad()
    def shifted(self, chosen: Labelled, size: int) -> list[ShiftedRate]:
        """Clean images after what cameras and networks do to them."""
        found = []
        for kind, strengths in STRENGTHS.items():
            for strength in strengths:
                draw = generator(self.seed, "study", kind, strength, device=chosen.images.device)
                pool = Pool(self.defense, CORRUPTIONS[kind](chosen.images, strength, draw))
                entry = self.judged(pool, chosen.labels, self.partitions(len(chosen), size), size, len(chosen))
                found.append(ShiftedRate(kind=kind, strength=strength, **entry.as_dict()))
        return found


def _shares(size: int) -> list[float]:
    """The shares of a batch that can be attacked; in a small batch some are the same."""
    return sorted({max(1, round(share * size)) / size for share in SHARES})


def _judged(rate: Rate, defended: float, undefended: float, distinct: int) -> JudgedRate:
    """The rate with accuracies. Batches repeat images: the intervals are for as many as there are."""
    return JudgedRate(
        **rate.as_dict(),
        defended=defended,
        defended_interval=wilson(round(defended * distinct), distinct),
        undefended=undefended,
        undefended_interval=wilson(round(undefended * distinct), distinct),
    )


def _finite(statistics: Sequence[float]) -> list[float]:
    """What can be drawn and written."""
    return [value for value in statistics if math.isfinite(value)]


def _roc(eps: float, clean: Sequence[float], attacked: Sequence[float], points: int = 50) -> Roc:
    """Power against false alarms over all thresholds, and the area under it: how often an attacked batch scores higher."""
    # What is not finite is flagged at every threshold.
    low, high = (
        torch.tensor([value if math.isfinite(value) else math.inf for value in given], dtype=torch.double)
        for given in (clean, attacked)
    )
    low = low.sort().values
    above = torch.searchsorted(low, high) + torch.searchsorted(low, high, right=True)
    thresholds = torch.cat([low, high]).unique()
    thresholds = thresholds[torch.linspace(0, len(thresholds) - 1, min(points, len(thresholds))).long()]
    return Roc(
        eps=eps,
        false_alarms=[1.0, *((low >= t).double().mean().item() for t in thresholds), 0.0],
        power=[1.0, *((high >= t).double().mean().item() for t in thresholds), 0.0],
        area=above.double().mean().item() / (2 * len(low)),
    )
