"""Ctrl-C while modules are being loaded, which torch alone does for seconds."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CODE = 130  # 128 + SIGINT, as shells count


@contextmanager
def loading() -> Iterator[None]:
    """Inside this block an interrupt ends the process at once, with one line and exit code 130.

    Nothing has begun yet, so nothing needs clearing away; an exception in the middle of an import would end in a traceback,
    or be taken for a missing library. Interrupts that are ignored (`nohup`) stay so. `begin` ends it before the block does.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def begin() -> None:
    """From here on an interrupt is Python's KeyboardInterrupt, if `loading` had changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os.write(2, b"interrupted; nothing had begun\n")
    os._exit(CODE)
