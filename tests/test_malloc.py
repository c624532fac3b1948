"""Freed memory stays with the process: the next batch touches no new pages."""

import os
import platform
import resource
import subprocess
import sys

import pytest

CODE = """
import ctypes, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
import numpy as np
from twoprong.malloc import keep_freed_memory
if {asked}:
    print("taken", keep_freed_memory())
def batch():
    layers = [np.ones(2**18 * 10) for _ in range(5)]  # 20 MB each, all freed at the end
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("asked", [True, False])
def test_pages_are_not_given_back_between_batches(asked):
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    small_pages = usual | {"NUMPY_MADVISE_HUGEPAGE": "0"}  # of huge ones there are too few to count
    command = [sys.executable, "-c", CODE.format(asked=asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=small_pages)
    *said, faults = done.stdout.split()
    assert said == (["taken", "True"] if asked else [])
    pages = 100 * 2**20 // resource.getpagesize()
    assert (int(faults) < pages / 10) == asked
