"""Copies of one image inside a batch. They count once: to the test, a crowd of copies would look like an attack."""

import torch
from torch import Tensor

from twoprong.detect.kernel import Sample


def copies(images: Tensor) -> tuple[Tensor, Tensor] | None:
    """Where each different image stands first, and which of those every image is; None where no image stands twice.

    Copies agree in every bit: of what is left out, nothing could be learned that the one that stays does not show.
    Sums of bits tell almost all batches without copies apart; equal sums are looked at pixel by pixel, so that nobody can
    hide an image behind another one.
    """
    rows = images.detach().flatten(1).contiguous()
    bits = rows.view(torch.int64 if rows.dtype == torch.float64 else torch.int32)
    if len(bits.sum(1, dtype=torch.int64).unique()) == len(rows):
        return None
    same = torch.unique(bits, dim=0, return_inverse=True)[1]
    number = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(number, len(rows)).scatter_reduce_(0, same, number, "amin")[same]
    leads = first == number
    return (number[leads], (leads.cumsum(0) - 1)[first]) if not leads.all() else None


def distinct(images: Tensor) -> Tensor:
    """The batch with every image once; the very same tensor where no image stands twice."""
    found = copies(images)
    return images if found is None else images[found[0]]


def once(sample: Sample) -> Sample:
    """Every image once."""
    found = copies(sample.pixels)
    return sample if found is None else sample.rows(found[0])
