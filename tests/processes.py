"""The command in a process that may be killed: forked off a server which has torch loaded, so that a start takes no seconds.

`python -m twoprong`, as a user runs it, is tested too, but not where it has to be started time and again.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from twoprong.__main__ import main

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["twoprong.cli.fit", "twoprong.cli.evaluate", "torch._dynamo"])  # optimisers load the last


def start(arguments: Iterable[object], folder: Path, out: Path, err: Path) -> ForkServerProcess:
    """`twoprong ARGUMENTS` in `folder`; what it prints is added to the files `out` and `err`."""
    process = forked.Process(target=_run, args=([str(one) for one in arguments], folder, out, err), daemon=True)
    process.start()
    return process


def _run(arguments: list[str], folder: Path, out: Path, err: Path) -> None:
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    os.chdir(folder)
    sys.path.insert(0, "")  # as a command has it
    sys.argv = ["twoprong", *arguments]
    main()
