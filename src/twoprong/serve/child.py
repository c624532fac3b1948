"""The worker process: `python -m twoprong.serve.child`. Reads its settings and then batches from stdin, writes to stdout.

It ends when stdin does. Signals are the service's business: on SIGTERM it drains first, and the worker has to outlive that.
"""

import os
import signal
import sys
from typing import Any, BinaryIO

from twoprong.errors import TwoprongError
from twoprong.serve import wire
from twoprong.serve.loaded import LoadedModel


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Import what takes long, wait for the settings, load the bundle, say what it is, then answer batch after batch.

    A batch that fails is answered with its error.
    """
    import twoprong.defense
    import twoprong.serve.judge  # noqa: F401

    def say(head: Any, body: bytes = b"") -> None:
        target.write(wire.pack(head, body))
        target.flush()

    if (first := wire.read(source)) is None:
        return
    try:
        loaded = LoadedModel(first[0])
    except (TwoprongError, OSError) as error:
        say({"error": str(error)})
        return
    say(loaded.about)
    while (message := wire.read(source)) is not None:
        say(*loaded.answer(*message))


def main() -> None:
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the messages
    try:
        serve(sys.stdin.buffer, target)
    except BrokenPipeError:  # the service is gone
        os._exit(0)


if __name__ == "__main__":
    main()
