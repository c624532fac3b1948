"""How many threads torch computes with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

SMALL = 2**18  # pixel values in a batch: below it a second thread mostly waits


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads in a block; None leaves the number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sensible(images: Tensor, size: int) -> int | None:
    """One thread for small batches on a CPU, where it is faster and sums do not depend on the machine; else no opinion."""
    return 1 if images.device.type == "cpu" and size * images[0].numel() < SMALL else None
