"""Forged bundles whose digests fit: seeded mutations of a manifest, of tensors and of whole files, signed again."""

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

BLANK = "0" * 64
HOLE = "@hole@"  # where text goes that no JSON writer would write
NAN, INF = float("nan"), float("inf")
ESCAPE = "\x1b[31mred\x1b[0m"
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, 10**6, 10**12, 2**63, 10**30, -1e308, 1e308, NAN, INF, -INF,
    "", "x", "NaN", "1/3", "../../README.md", "/etc/passwd", ESCAPE, "\ud800", "\u202ename", "a\0b", "\n", "x" * 100_000,
    [], {}, [[]], [1, 2], ["x"], {"a": 1}, {"\ud800": ESCAPE}, [[[[[[[[]]]]]]]],
)  # fmt: skip
DTYPES = (torch.half, torch.bfloat16, torch.double, torch.long, torch.int32, torch.uint8, torch.bool, torch.complex64)
NETWORKS = ("classifier.safetensors", "denoiser.safetensors")
DETECTOR = "detector.safetensors"


@dataclass
class Forged:
    """A bundle in memory. `filling` replaces the hole in the manifest's text."""

    manifest: dict[str, Any]
    files: dict[str, bytes]
    filling: str = ""

    @classmethod
    def of(cls, bundle: Path) -> "Forged":
        files = {file.name: file.read_bytes() for file in bundle.iterdir() if file.name != "manifest.json"}
        return cls(json.loads((bundle / "manifest.json").read_text()), files)

    def copied(self) -> "Forged":
        return Forged(copy.deepcopy(self.manifest), dict(self.files))

    def write(self, place: Path) -> Path:
        """Write it with sizes and digests that fit, wherever the manifest still has a place for them."""
        place.mkdir()
        for name, content in self.files.items():
            (place / name).write_bytes(content)
            listed = self.manifest.get("files")
            if isinstance(listed, dict) and isinstance(listed.get(name), dict) and set(listed[name]) == {"bytes", "sha256"}:
                old, new = listed[name], {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                listed[name] = new if isinstance(old["bytes"], int) and isinstance(old["sha256"], str) else old
        if "digest" in self.manifest:
            self.manifest["digest"] = BLANK
        text = json.dumps(self.manifest, indent=2).replace(json.dumps(HOLE), self.filling)
        digest = hashlib.sha256(text.encode()).hexdigest()
        (place / "manifest.json").write_bytes(text.replace(BLANK, digest).encode())
        return place

    def change(self, name: str, edit: Callable[[dict[str, torch.Tensor]], None], note: str | None = None) -> None:
        """Edit the tensors of a file; `note` replaces what it says of how they are packed."""
        tensors, length = load(self.files[name]), int.from_bytes(self.files[name][:8], "little")
        said = json.loads(self.files[name][8 : 8 + length])["__metadata__"]
        edit(tensors)
        kept = json.loads(said["json"])
        kept["__packed__"] = {
            one: kind for one, kind in kept["__packed__"].items() if one in tensors and str(tensors[one].dtype)[6:] == kind
        }
        self.files[name] = save(tensors, {"json": json.dumps(kept) if note is None else note})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path in a JSON value, but for the digest's and, to keep the thresholds from drowning the rest, theirs."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, below in inside:
        if (*path, key) != ("digest",):
            yield (*path, key)
            yield from places(below, (*path, key))


def parent(manifest: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        manifest = manifest[key]
    return manifest


def values(forged: Forged, draw: random.Random) -> None:
    path = draw.choice(list(places(forged.manifest)))
    parent(forged.manifest, path)[path[-1]] = copy.deepcopy(draw.choice(JUNK))


def deletions(forged: Forged, draw: random.Random) -> None:
    path = draw.choice(list(places(forged.manifest)))
    del parent(forged.manifest, path)[path[-1]]


def additions(forged: Forged, draw: random.Random) -> None:
    containers = [forged.manifest] + [
        one for path in places(forged.manifest) if isinstance(one := parent(forged.manifest, path)[path[-1]], dict | list)
    ]
    target, junk = draw.choice(containers), copy.deepcopy(draw.choice(JUNK))
    if isinstance(target, list):
        target.append(junk)
    else:
        target[draw.choice(("extra", "", "kind", "spec", ESCAPE, "\ud800", "../x", "detector"))] = junk


def exchanges(forged: Forged, draw: random.Random) -> None:
    one, other = draw.sample(list(places(forged.manifest)), 2)
    if one != other[: len(one)] and other != one[: len(other)]:
        a, b = parent(forged.manifest, one), parent(forged.manifest, other)
        a[one[-1]], b[other[-1]] = b[other[-1]], a[one[-1]]


def nesting(forged: Forged, draw: random.Random) -> None:
    path = draw.choice(list(places(forged.manifest)))
    parent(forged.manifest, path)[path[-1]] = HOLE
    depth = draw.choice((20, 45, 60, 300, 900, 5000, 200_000))
    begin, end = draw.choice((("[", "]"), ('{"a":', "}"), ("[0,", "]")))
    forged.filling = begin * depth + "0" + end * draw.choice((depth, depth, 0))


def numbers(forged: Forged, draw: random.Random) -> None:
    """Numbers that Python's reader takes and few others do."""
    path = draw.choice(list(places(forged.manifest)))
    parent(forged.manifest, path)[path[-1]] = HOLE
    forged.filling = draw.choice(("9" * 4000, "9" * 5000, "1e999", "-Infinity", "NaN", "0" * 4000 + "1", "1" + "0" * 400))


def older(forged: Forged, draw: random.Random) -> None:
    """The manifest as formats 1 and 2 had it, mutated."""
    parts = forged.manifest.pop("parts")
    entry = {key: value for key, value in parts["networks"]["classifier"].items() if key != "kind"}
    forged.manifest |= {"format": draw.choice((1, 2)), "classifier": entry, "features": None}
    draw.choice((values, deletions, additions, exchanges))(forged, draw)


def _misshapen(tensor: torch.Tensor, draw: random.Random) -> torch.Tensor:
    longer = torch.cat([tensor, tensor]) if tensor.ndim else tensor[None]
    wider = torch.cat([tensor, tensor], -1) if tensor.ndim else tensor[None, None]
    shorter = tensor[:-1] if tensor.ndim else tensor.new_empty(0)
    narrower = tensor[..., :-1] if tensor.ndim else tensor.new_empty(0, 0)
    empty = tensor.new_empty(0, *tensor.shape[1:])
    nothing = tensor.new_empty(*tensor.shape[:-1], 0)
    other = draw.choice((longer, wider, shorter, narrower, empty, nothing, tensor[None], tensor[..., None]))
    return other.contiguous()


def tensors(forged: Forged, draw: random.Random) -> None:
    def edit(found: dict[str, torch.Tensor]) -> None:
        name, other = draw.sample(sorted(found), 2)
        how = draw.randrange(6)
        if how == 0:
            found[name] = found[name].to(draw.choice([kind for kind in DTYPES if kind != found[name].dtype]))
        elif how in (1, 2):
            found[name] = _misshapen(found[name], draw)
        elif how == 3:
            del found[name]
        elif how == 4:
            found[draw.choice(("extra", "kernel.extra", ESCAPE, "a\0b"))] = found[name].clone()
        elif found[name].shape != found[other].shape:
            found[name], found[other] = found[other], found[name]
        else:
            found[ESCAPE] = found.pop(name)

    forged.change(draw.choice((*NETWORKS, DETECTOR, DETECTOR, DETECTOR)), edit)


def not_finite(forged: Forged, draw: random.Random) -> None:
    """A threshold that is no number, in the tensors and perhaps in the manifest, or a reference with such values."""
    value, row = draw.choice((NAN, INF, -INF)), draw.randrange(len(forged.manifest["thresholds"]))
    column, key = draw.choice(
        (("upper", "threshold"), ("central", "central"), ("reference_features", None), ("reference_pixels", None))
    )

    def edit(found: dict[str, torch.Tensor]) -> None:
        found[column] = found[column].clone() if key else found[column].float()
        found[column][row] = value

    forged.change(DETECTOR, edit)
    if key and draw.random() < 0.5:
        forged.manifest["thresholds"][row][key] = value


def files(forged: Forged, draw: random.Random) -> None:
    one, other = draw.sample(sorted(forged.files), 2)
    how = draw.randrange(4)
    if how == 0:
        forged.files[one], forged.files[other] = forged.files[other], forged.files[one]
    elif how == 1:
        forged.files[one] = forged.files[other]
    elif how == 2:
        forged.files[one] = draw.choice((b"", b"\0" * 9, b"\x80\x04.", draw.randbytes(1000), (2**62).to_bytes(8, "little")))
    else:
        cut = draw.randrange(len(forged.files[one]))
        forged.files[one] = forged.files[one][:cut]


def notes(forged: Forged, draw: random.Random) -> None:
    name = draw.choice((*NETWORKS, DETECTOR))
    note = draw.choice((
        "[" * 100_000, "{" + '"a":{' * 5000, "NaN", "null", "[]", '{"__packed__": 3}', '{"__packed__": {"x": "uint8"}}',
        '{"__packed__": {"reference_pixels": "float64"}}', '{"__packed__": {"reference_pixels": ["uint8"]}}',
        '{"__packed__": {"reference_pixels": "__class__"}}', '"\\ud800"', "{}", "9" * 5000, '{"__packed__": null}',
        '{"__packed__": {"\\ud800\\u001b": "uint8"}}',
    ))  # fmt: skip
    forged.change(name, lambda _: None, note)


KINDS: dict[str, tuple[Callable[[Forged, random.Random], None], int]] = {
    "values": (values, 160), "deletions": (deletions, 50), "additions": (additions, 50), "exchanges": (exchanges, 50),
    "nesting": (nesting, 30), "numbers": (numbers, 40), "older": (older, 60), "tensors": (tensors, 120),
    "not finite": (not_finite, 20), "files": (files, 30), "notes": (notes, 20),
}  # fmt: skip


def forgeries(original: Forged, kind: str, folder: Path, seed: int = 0) -> Iterator[tuple[str, Path]]:
    """The forgeries of one kind, each written when it is asked for: a name, and where it is."""
    forge, count = KINDS[kind]
    for number in range(count):
        forged = original.copied()
        forge(forged, random.Random(f"{kind} {seed} {number}"))
        yield f"{kind} {number}", forged.write(folder / str(number))
