"""Randomness as an explicit argument: every step draws from a stream of its own, derived from one seed and its name.

A step's stream does not depend on what ran before it, so an interrupted run can be continued to the same result.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Where a CPU generator's `get_state()` has the twister: after the seed (8 bytes), two counters (4 + 4) and a place (8).
WORDS_AT, WORDS = 24, 624


def derive(seed: int, *name: object) -> int:
    """A 63-bit seed for the step called `name`, a function of both and of nothing else.

    A CPU's generator uses the low 32 bits. Two steps whose seeds agree there draw the same numbers: among the k streams of
    a run with a chance of about k² / 2³³ (some hundred streams: one in 10⁶). They stay as they are:
    published numbers rest on them, and splits do. Around a network that has learned its part of an old split, another split
    would call learned images unseen. A test reads all names from the source and sees that their seeds differ.
    """
    text = json.dumps([seed, *name], default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *name: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for the step called `name`."""
    return torch.Generator(device=device).manual_seed(derive(seed, *name))


def from_system(device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator that nobody can foresee, for the noise of a deployed defence.

    A seed would leave a CPU 32 bits to try, so all of its state (a Mersenne twister's 624 words) is drawn instead.
    """
    made = torch.Generator(device=device).manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
    if made.device.type == "cpu":
        state = made.get_state()
        twister = state[WORDS_AT : WORDS_AT + 8 * WORDS].view(torch.int64)  # of each 8 bytes 4 are used
        drawn = torch.frombuffer(bytearray(os.urandom(4 * WORDS)), dtype=torch.int32)
        twister.copy_(drawn.long() & 0xFFFFFFFF)
        twister[0] |= 1 << 31  # all zeros, the one state that draws nothing but zeros, is left out
        made.set_state(state)
    return made


@contextmanager
def initialised(seed: int, *name: object) -> Iterator[None]:
    """Run a block (building a network) with torch's global stream seeded for it, and put the stream back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, *name))  # not torch.manual_seed, which seeds every GPU too
        yield
