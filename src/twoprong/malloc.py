"""How glibc's allocator treats freed memory: a process that computes on a CPU wants to keep it."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
KEPT, LARGE = 2**30, 32 * 2**20  # bytes; the second is the most that glibc takes


def keep_freed_memory() -> bool:
    """Let this process keep up to a gigabyte of freed memory (for each of malloc's arenas); whether the allocator agreed.

    Otherwise the activations of every batch are given back to the system and fetched again, page by page: a quarter of the
    time of a small network on one core. Where there is no glibc, nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or no mallopt
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGE) and mallopt(TRIM_THRESHOLD, KEPT))
