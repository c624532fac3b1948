"""What the service and its worker say to each other over a pipe: a length, a JSON head, and raw arrays. No pickle, no torch.

8 bytes  the lengths of head and body, two little-endian uint32
head     JSON
body     bytes; arrays one after the other
"""

import json
import struct
from asyncio import StreamReader
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

LENGTHS = struct.Struct("<II")
KINDS = {"B": np.uint8, "f": np.float32}  # bytes 0 to 255, or floats in [0, 1]


def pack(head: Any, body: bytes = b"") -> bytes:
    """One message. Raises OverflowError where the body is 4 GiB or more."""
    said = json.dumps(head).encode()
    try:
        return LENGTHS.pack(len(said), len(body)) + said + body
    except struct.error as error:
        raise OverflowError(f"expected a message below 4 GiB, got {len(body):,} bytes") from error


async def receive(stream: StreamReader) -> tuple[Any, bytes]:
    """The next message. Raises IncompleteReadError where the other end is gone."""
    head, body = LENGTHS.unpack(await stream.readexactly(LENGTHS.size))
    return json.loads(await stream.readexactly(head)), await stream.readexactly(body)


def read(stream: BinaryIO) -> tuple[Any, bytes] | None:
    """The next message; None where the other end is gone."""
    start = stream.read(LENGTHS.size)
    if len(start) < LENGTHS.size:
        return None
    head, body = LENGTHS.unpack(start)
    said, rest = stream.read(head), stream.read(body)
    return (json.loads(said), rest) if len(said) == head and len(rest) == body else None


def kinds(images: Iterable[np.ndarray]) -> str:
    """One letter for each image: what its values are."""
    letters = {np.dtype(kind): letter for letter, kind in KINDS.items()}
    return "".join(letters[image.dtype] for image in images)


def arrays(body: bytes, letters: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The images in a body, as floats in [0, 1]."""
    size, start = int(np.prod(shape)), 0
    for letter in letters:
        values = np.frombuffer(body, KINDS[letter], size, start)
        start += values.nbytes
        yield (values.astype(np.float32) / np.float32(255) if letter == "B" else values).reshape(shape)
