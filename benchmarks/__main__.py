"""`make bench`."""

import os
import platform

import torch

from benchmarks import decision, eot, imports, permutations, serve

if __name__ == "__main__":
    print(f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for benchmark in (imports, permutations, decision, eot, serve):
        print(benchmark.run(), flush=True)
