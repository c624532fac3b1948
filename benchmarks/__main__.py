"""`make bench`."""

import os
import platform

import torch

from benchmarks import decision, eot, imports, permutations

if __name__ == "__main__":
    print(f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for benchmark in (imports, permutations, decision, eot):
        print(benchmark.run(), flush=True)
