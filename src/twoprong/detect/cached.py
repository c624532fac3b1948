"""A value that was computed from tensors, kept as long as they stay as they are."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor


class Cached(NamedTuple):
    """The value, and which tensors it came from, so that nothing stale is ever used."""

    sources: tuple[Tensor, ...]
    versions: tuple[int | None, ...]
    value: Any

    @classmethod
    def of(cls, sources: Iterable[Tensor], value: Any) -> "Cached":
        kept = tuple(sources)
        return cls(kept, tuple(map(_version, kept)), value)

    def holds(self, sources: Iterable[Tensor]) -> bool:
        """Whether these are the same tensors, unchanged since."""
        now = tuple(sources)
        same = len(now) == len(self.sources) and all(one is other for one, other in zip(now, self.sources, strict=True))
        return same and None not in self.versions and self.versions == tuple(map(_version, now))


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None for one made in inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version
