"""What a user waits for before anything happens: importing the package, or asking for help, against `import torch`."""

import subprocess
import sys
from functools import partial

from benchmarks.timing import medians

TORCH = "import torch"
TARGETS = {  # the most it may take, in units of TORCH
    "import twoprong": (("-c", "import twoprong"), 1.15),
    "from twoprong import *": (("-c", "from twoprong import *"), 1.15),
    "--version": (("-m", "twoprong", "--version"), 0.5),
    "--help": (("-m", "twoprong", "--help"), 0.5),
    "fit --help": (("-m", "twoprong", "fit", "--help"), 0.5),
}


def run() -> str:
    """Whole processes, with the interpreter's start."""
    commands = {TORCH: ("-c", TORCH), **{name: arguments for name, (arguments, _) in TARGETS.items()}}
    seconds = medians({name: partial(start, *arguments) for name, arguments in commands.items()}, rounds=7)
    lines = [
        f"{name} / {TORCH}: {seconds[name] / seconds[TORCH]:.2f} (target <= {most})" for name, (_, most) in TARGETS.items()
    ]
    return "\n".join([*lines, f"{TORCH}: {seconds[TORCH]:.2f} s"])


def start(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
