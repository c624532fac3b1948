"""Images and labels: where they come from, what is accepted, how they are divided."""

from twoprong.data.images import check_images
from twoprong.data.sources import SOURCES, ImageData, load_data
from twoprong.data.splits import Splits, split
from twoprong.data.tensors import Labelled, as_labelled, check_labels

__all__ = [
    "SOURCES", "ImageData", "Labelled", "Splits", "as_labelled", "check_images", "check_labels", "load_data", "split",
]  # fmt: skip
