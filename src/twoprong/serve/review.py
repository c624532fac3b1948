"""Flagged batches on disk, for people to look at: a picture of each, the oldest deleted for the newest."""

import io
import itertools
import json
import logging
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from twoprong.atomic import write_atomic
from twoprong.serve.worker import BatchFacts

log = logging.getLogger("twoprong")

NAME = re.compile(r"[0-9]{10,13}-[0-9]{1,12}")
FACTS = "twoprong"  # the keyword of the text chunk
DIFFERENCE = 5  # times the difference, around grey


class Review:
    """A folder of `NAME.png`, whose text chunk has the facts as JSON; never above `max_bytes`. Threads may share it."""

    def __init__(self, folder: str | Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self.folder.glob(".*.partial"):  # by a process that was killed
            left.unlink(missing_ok=True)
        self._numbers, self._writing = itertools.count(), threading.Lock()

    def keep(self, facts: BatchFacts) -> None:
        """Write one batch: above what was sent, below it what the classifier saw, then the difference. What cannot be
        written is logged: the service goes on."""
        name = f"{int(time.time())}-{next(self._numbers)}"
        said = {field: getattr(facts, field) for field in ("size", "blamed", "statistic", "threshold", "p_value", "shown")}
        said["keys"] = [facts.keys[index] for index in facts.shown]
        try:
            picture = png(mosaic([_bytes(facts.images[index]) for index in facts.shown], facts.seen), json.dumps(said))
            if len(picture) > self.max_bytes:
                raise OSError(f"{len(picture):,} bytes, expected at most max_bytes = {self.max_bytes:,}")
            with self._writing:
                self._make_room(len(picture))
                write_atomic(self.folder / f"{name}.png", lambda temporary: temporary.write_bytes(picture))
        except OSError as error:
            log.error("a flagged batch could not be kept for review: %s", error)

    def newest(self, count: int = 8) -> list[dict[str, Any]]:
        """The facts of the last batches, the newest first."""
        from PIL import Image

        found = []
        for path in sorted(self._pictures(), key=_order, reverse=True)[:count]:
            with suppress(OSError, KeyError, ValueError), Image.open(path) as picture:  # it may be deleted meanwhile
                found.append({"name": path.stem, "time": _order(path)[0]} | json.loads(picture.info[FACTS]))
        return found

    def picture(self, name: str) -> bytes | None:
        try:
            return (self.folder / f"{name}.png").read_bytes() if NAME.fullmatch(name) else None
        except OSError:
            return None

    def _pictures(self) -> list[Path]:
        return [path for path in self.folder.glob("*.png") if NAME.fullmatch(path.stem)]

    def _make_room(self, more: int) -> None:
        kept = sorted(self._pictures(), key=_order)
        sizes = [path.stat().st_size for path in kept]
        while kept and sum(sizes) + more > self.max_bytes:
            sizes.pop(0)
            kept.pop(0).unlink(missing_ok=True)


def mosaic(sent: list[np.ndarray], seen: np.ndarray) -> np.ndarray:
    """Three rows of images, (H, W, channels) in bytes; a grey line ends each image and each row."""
    first = np.stack(sent)
    change = np.clip(128 + DIFFERENCE * (seen.astype(int) - first), 0, 255).astype(np.uint8)
    rows = (np.pad(row, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=128) for row in (first, seen, change))
    return np.concatenate([np.concatenate(list(row.transpose(0, 2, 3, 1)), 1) for row in rows])


def png(pixels: np.ndarray, facts: str = "") -> bytes:
    from PIL import Image, PngImagePlugin

    file, text = io.BytesIO(), PngImagePlugin.PngInfo()
    if facts:
        text.add_text(FACTS, facts)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG", pnginfo=text)
    return file.getvalue()


def _bytes(image: np.ndarray) -> np.ndarray:
    return image if image.dtype == np.uint8 else (image * 255).round().astype(np.uint8)


def _order(path: Path) -> tuple[int, ...]:
    return tuple(map(int, path.stem.split("-")))
