"""The Open Inference Protocol (KServe V2) with its binary tensor extension: requests to images, answers to responses.

One input, by any name: FP32 or UINT8 of shape [N, C, H, W], or BYTES of shape [N], each an encoded picture. Outputs:
`probabilities` FP32 [N, classes], `label` INT64 [N].
"""

import json
import struct
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from pydantic_core import from_json

from twoprong.serve.images import Shape, check
from twoprong.serve.problems import Problem
from twoprong.serve.worker import Model

HEADER = "Inference-Header-Content-Length"
TYPES = {"FP32": np.float32, "UINT8": np.uint8}
OUTPUTS = {"probabilities": "FP32", "label": "INT64"}
JSON, VALUE = 2**20, 32  # bytes of JSON: parsing it holds up the whole process; and one image always fits


class Request:
    """A checked request: how many images it has, how to make them, and which outputs are wanted in which form."""

    def __init__(self, body: bytes, header_length: str | None, shape: Shape, max_images: int) -> None:
        head, tail = _split(body, header_length, max(JSON, VALUE * prod(shape)))
        inputs = head.get("inputs")
        if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
            raise Problem(400, "inputs: expected a list with one tensor")
        self._input, self._shape = inputs[0], shape
        self.id = head.get("id") if isinstance(head.get("id"), str) else None
        sizes = self._input.get("shape")
        if not isinstance(sizes, list) or not sizes or not all(type(size) is int and size >= 0 for size in sizes):
            raise Problem(400, "shape: expected a list of whole numbers")
        self.sizes, self.kind = sizes, str(self._input.get("datatype"))
        if self.kind not in (*TYPES, "BYTES"):
            raise Problem(422, f"datatype: expected FP32, UINT8 or BYTES, got {self.kind!r}"[:200])
        if not 1 <= sizes[0] <= max_images:
            raise Problem(413 if sizes[0] else 422, f"expected 1 to {max_images} images in a request, got {sizes[0]}")
        if self.kind == "BYTES" and len(sizes) != 1:
            raise Problem(422, f"expected BYTES of shape [N], got {sizes}"[:200])
        if self.kind != "BYTES" and tuple(sizes[1:]) != shape:
            raise Problem(422, f"expected a tensor of shape [N, {', '.join(map(str, shape))}], got {sizes}"[:200])
        self._raw = self._binary(tail)
        self.outputs = _outputs(head)

    @property
    def images(self) -> int:
        return int(self.sizes[0])

    def decode(self, picture: Callable[[bytes], np.ndarray]) -> list[np.ndarray]:
        """The images; `picture` reads an encoded one. To be called once: what was sent is not kept."""
        (raw, self._raw), (given, self._input) = (self._raw, None), (self._input, {})
        if self.kind == "BYTES":
            return [picture(data) for data in self._pictures(raw)]
        kind = TYPES[self.kind]
        if raw is not None:
            if len(raw) != prod(self.sizes) * np.dtype(kind).itemsize:
                raise Problem(400, f"expected {prod(self.sizes)} values, got {len(raw)} bytes")
            return list(check(np.frombuffer(raw, kind).reshape(self.sizes), self._shape))
        try:
            values = np.array(given.get("data"), dtype=np.float64).ravel()
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Problem(400, "data: expected numbers, flat or nested as the shape says") from error
        if values.size != prod(self.sizes):
            raise Problem(400, f"data: expected {prod(self.sizes)} values, got {values.size}")
        if self.kind == "UINT8" and not ((values >= 0) & (values <= 255) & (values % 1 == 0)).all():
            raise Problem(422, "data: expected whole numbers from 0 to 255")
        return list(check(values.astype(kind).reshape(self.sizes), self._shape))

    def _pictures(self, raw: bytes | None) -> list[bytes]:
        if raw is None:
            raise Problem(400, "BYTES: expected binary data, encoded pictures cannot be JSON text")
        found: list[bytes] = []
        rest = memoryview(raw)
        while len(rest) >= 4 and len(found) < self.images:
            (size,) = struct.unpack_from("<I", rest)
            if size > len(rest) - 4:
                break
            found.append(bytes(rest[4 : 4 + size]))
            rest = rest[4 + size :]
        if len(found) != self.images or len(rest):
            raise Problem(400, f"BYTES: expected {self.images} elements, each after its length, and nothing more")
        return found

    def _binary(self, tail: bytes) -> bytes | None:
        size = _parameters(self._input).get("binary_data_size")
        if size is None:
            if tail:
                raise Problem(400, "binary_data_size: expected the size of the bytes after the JSON")
            return None
        if type(size) is not int or size != len(tail):
            raise Problem(400, f"binary_data_size: expected {len(tail)}, the bytes after the JSON")
        return tail

    def answer(self, model: Model, probabilities: np.ndarray) -> tuple[bytes, dict[str, str]]:
        """The response's body and headers."""
        values = {"probabilities": probabilities.astype("<f4"), "label": probabilities.argmax(1).astype("<i8")}
        outputs, tail = [], b""
        for name, binary in self.outputs.items():
            one: dict[str, Any] = {"name": name, "datatype": OUTPUTS[name], "shape": list(values[name].shape)}
            if binary:
                raw = values[name].tobytes()
                one["parameters"], tail = {"binary_data_size": len(raw)}, tail + raw
            else:
                one["data"] = values[name].ravel().tolist()
            outputs.append(one)
        said = {"model_name": model.name, "model_version": "1", "outputs": outputs}
        head = json.dumps(said | ({"id": self.id} if self.id is not None else {})).encode()
        if any(self.outputs.values()):
            return head + tail, {"Content-Type": "application/octet-stream", HEADER: str(len(head))}
        return head, {"Content-Type": "application/json"}


def metadata(model: Model) -> dict[str, Any]:
    """What `GET /v2/models/NAME` says."""
    return {
        "name": model.name,
        "versions": ["1"],
        "platform": "twoprong",
        "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, *model.shape]}],
        "outputs": [
            {
                "name": "probabilities",
                "datatype": "FP32",
                "shape": [-1, -1 if model.classes is None else len(model.classes)],
            },
            {"name": "label", "datatype": "INT64", "shape": [-1]},
        ],
        "parameters": {"classes": model.classes, "also": ["UINT8", "BYTES"]},
    }


def _outputs(head: dict[str, Any]) -> dict[str, bool]:
    """The names of the wanted outputs, and whether they are binary."""
    default = bool(_parameters(head).get("binary_data_output", False))
    wanted = head.get("outputs")
    if wanted is None or wanted == []:
        return dict.fromkeys(OUTPUTS, default)
    if not isinstance(wanted, list) or not all(isinstance(one, dict) for one in wanted):
        raise Problem(400, "outputs: expected a list of names")
    found = {str(one.get("name")): bool(_parameters(one).get("binary_data", default)) for one in wanted}
    if unknown := found.keys() - OUTPUTS.keys():
        raise Problem(400, f"outputs: expected {' or '.join(OUTPUTS)}, got {min(unknown)!r}"[:200])
    return found


def _split(body: bytes, header_length: str | None, limit: int) -> tuple[dict[str, Any], bytes]:
    """The JSON, which may have `limit` bytes, and what comes after it."""
    size = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 12):
            raise Problem(400, f"{HEADER}: expected a whole number")
        size = int(header_length)
        if size > len(body):
            raise Problem(400, f"{HEADER}: expected at most {len(body)}, the length of the body, got {size}")
    if size > limit:
        raise Problem(413, f"expected at most {limit:,} bytes of JSON; send images as binary data, with {HEADER}")
    try:
        head = from_json(body[:size])
    except ValueError as error:
        raise Problem(400, "expected JSON") from error
    if not isinstance(head, dict):
        raise Problem(400, "expected a JSON object")
    return head, body[size:]


def _parameters(part: dict[str, Any]) -> dict[str, Any]:
    found = part.get("parameters", {})
    return found if isinstance(found, dict) else {}
