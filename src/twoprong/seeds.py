"""Randomness as an explicit argument: every step draws from a stream of its own, derived from one seed and its name.

A step's stream does not depend on what ran before it, so an interrupted run can be continued to the same result.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *name: object) -> int:
    """A 63-bit seed for the step called `name`, a function of both and of nothing else."""
    text = json.dumps([seed, *name], default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *name: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for the step called `name`."""
    return torch.Generator(device=device).manual_seed(derive(seed, *name))


def from_system(device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator that nobody can foresee, for the noise of a deployed defence."""
    return torch.Generator(device=device).manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)


@contextmanager
def initialised(seed: int, *name: object) -> Iterator[None]:
    """Run a block (building a network) with torch's global stream seeded for it, and put the stream back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, *name))  # not torch.manual_seed, which seeds every GPU too
        yield
