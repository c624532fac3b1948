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
from twoprong.serve.loaded import LoadedModel


def serve(source: BinaryIO, target: BinaryIO, settings: dict[str, Any]) -> None:
    """Load the bundle, say what it is, then answer batch after batch. A batch that fails is answered with its error."""

    def say(head: Any, body: bytes = b"") -> None:
        target.write(wire.pack(head, body))
        target.flush()

    try:
        loaded = LoadedModel(settings)
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
        serve(sys.stdin.buffer, target, json.loads(sys.argv[1]))
    except BrokenPipeError:  # the service is gone
        os._exit(0)


if __name__ == "__main__":
    main()
