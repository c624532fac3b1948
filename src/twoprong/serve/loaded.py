"""A bundle in the process that does the model's work: the worker process and Ray's model replicas hold one each."""

from typing import Any

from twoprong.errors import InputError
from twoprong.malloc import keep_freed_memory
from twoprong.serve import wire

SHOWN = 25  # images of a flagged batch that are kept for review


class LoadedModel:
    """Loaded once, asked batch by batch. `about` is what the service has to know of it.

    Raises TwoprongError or OSError where the bundle cannot be loaded.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch

        from twoprong.defense import load
        from twoprong.serve.samples import samples
        from twoprong.shipped import find

        if settings["device"] == "cpu":
            keep_freed_memory()
        if settings["threads"]:
            torch.set_num_threads(settings["threads"])
        path = find(settings["bundle"])
        given = {name: settings[name] for name in ("device", "on_small_batch", "allow")}
        self._defense = load(path, **given)
        if self._defense.config.rescue == "refuse":
            raise InputError(
                f"{path}: it hands flagged images back unclassified (rescue = 'refuse'), which would tell clients the "
                "route; fit it with rescue = 'batch' or 'suspects' to serve it"
            )
        self._defense.config = self._defense.config.model_copy(update={"rescue": "batch"})  # the rest is `judge`'s business
        self._review = settings["review"]
        images, sizes = self._defense.reference_images(), self._defense.detector.batch_sizes
        self._shape = tuple(images.shape[1:])
        self._defense(images[: sizes[-1]])  # the first call is slow; it is not a client's
        self.about: dict[str, Any] = {
            "name": path.name,
            "shape": self._shape,
            "sizes": [sizes[0], sizes[-1]],
            "classes": self._defense.about.get("classes"),
            "false_alarm_rate": self._defense.config.detector.false_alarm_rate,
            "samples": samples(self._defense, path, settings["demo"]),
        }

    def answer(self, head: Any, body: bytes) -> tuple[Any, bytes]:
        """The facts of a batch and its probabilities; or its error, whatever it is, for it is this batch's."""
        try:
            return self._judged(head, body)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}, b""

    def _judged(self, head: Any, body: bytes) -> tuple[Any, bytes]:
        import numpy as np
        import torch

        from twoprong.serve.judge import judge

        images = torch.from_numpy(np.stack(list(wire.arrays(body, head["kinds"], self._shape))))
        found = judge(self._defense, images, head["keys"], head["watched"])
        whole = found.decision
        kept = self._review and whole.tested and whole.adversarial
        shown = [index for index, flagged in enumerate(found.flagged) if flagged][:SHOWN] if kept else []
        seen = (whole.images[shown].clamp(0, 1) * 255).round().byte().cpu().numpy().tobytes()
        facts = {
            "numbers": head["numbers"],
            "flagged": found.flagged,
            "suspicious": found.suspicious,
            "shown": shown,
            "blamed": found.blamed,
            "adversarial": whole.adversarial,
            "tested": whole.tested,
            **{name: value if np.isfinite(value) else None for name, value in
               (("statistic", whole.statistic), ("threshold", whole.threshold), ("p_value", whole.p_value))},
        }  # fmt: skip
        return facts, found.probabilities.float().cpu().numpy().tobytes() + seen
