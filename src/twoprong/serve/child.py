"""The worker process: `python -m twoprong.serve.child SETTINGS`. Reads batches from stdin, writes answers to stdout.

It ends when stdin does. Signals are the service's business: on SIGTERM it drains first, and the worker has to outlive that.
"""

import json
import os
import signal
import sys
from typing import Any, BinaryIO

from twoprong.errors import TwoprongError
from twoprong.serve import wire

SHOWN = 25  # images of a flagged batch that are kept for review


def serve(source: BinaryIO, target: BinaryIO, settings: dict[str, Any]) -> None:
    """Load the bundle, say what it is, then answer batch after batch. A batch that fails is answered with its error."""

    def say(head: Any, body: bytes = b"") -> None:
        target.write(wire.pack(head, body))
        target.flush()

    try:
        import torch

        from twoprong.defense import load
        from twoprong.shipped import find

        if settings["threads"]:
            torch.set_num_threads(settings["threads"])
        path = find(settings["bundle"])
        given = {name: settings[name] for name in ("device", "on_small_batch", "allow")}
        defense = load(path, **given, rescue="batch")  # whom to rescue is `judge`'s business
        shown = []
        if settings["demo"]:
            from twoprong.serve.samples import samples

            shown = samples(defense, path)
    except (TwoprongError, OSError) as error:
        say({"error": str(error)})
        return
    shape, sizes = tuple(defense.reference_images().shape[1:]), defense.detector.batch_sizes
    defense(defense.reference_images()[: sizes[-1]])  # the first call is slow; it is not a client's
    say({
        "name": path.name,
        "shape": shape,
        "sizes": [sizes[0], sizes[-1]],
        "classes": defense.about.get("classes"),
        "false_alarm_rate": defense.config.detector.false_alarm_rate,
        "samples": shown,
    })  # fmt: skip
    while (message := wire.read(source)) is not None:
        head, body = message
        try:
            reply = _judged(defense, shape, head, body, settings["review"])
        except Exception as error:  # whatever it is, it is this batch's
            reply = {"error": f"{type(error).__name__}: {error}"}, b""
        say(*reply)


def _judged(defense: Any, shape: tuple[int, ...], head: Any, body: bytes, review: bool) -> tuple[Any, bytes]:
    import numpy as np
    import torch

    from twoprong.serve.judge import judge

    images = torch.from_numpy(np.stack(list(wire.arrays(body, head["kinds"], shape))))
    found = judge(defense, images, head["keys"], head["watched"])
    whole = found.decision
    shown = [index for index, flagged in enumerate(found.flagged) if flagged][:SHOWN] if review and whole.adversarial else []
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


def main() -> None:
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the messages
    try:
        serve(sys.stdin.buffer, target, json.loads(sys.argv[1]))
    except BrokenPipeError:  # the service is gone
        os._exit(0)


if __name__ == "__main__":
    main()
