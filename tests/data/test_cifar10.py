import os
import pickle
import re
import struct
import zipfile

import numpy as np
import pytest
import torch

from twoprong.data.cifar10 import TRAIN_BATCHES, load_cifar10
from twoprong.errors import DataError


def short(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode("latin-1")


def label_list(labels) -> bytes:
    """A list in groups of a thousand, as Python 2's cPickle wrote it."""
    out = b"]q\x05"
    for start in range(0, len(labels), 1000):
        out += b"(" + b"".join(b"K" + bytes([label]) for label in labels[start : start + 1000]) + b"e"
    return out


def pixel_array(rows: np.ndarray) -> bytes:
    raw, height = rows.tobytes(), struct.pack("<H", len(rows))
    return (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85" + short("b") + b"\x87Rq\x09"
        b"(K\x01M" + height + b"M\x00\x0c\x86cnumpy\ndtype\nq\x0a" + short("u1") + b"K\x00K\x01\x87Rq\x0b"
        b"(K\x03" + short("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    )  # fmt: skip


def official(rows: np.ndarray, labels, title: str = "training batch 1 of 5") -> bytes:
    """One batch, instruction by instruction like the official files (protocol 2, written by Python 2)."""
    names = b"]q\x0e(" + b"".join(short(f"picture_{index}.png") for index in range(len(labels))) + b"e"
    return (
        b"\x80\x02}q\x01(" + short("batch_label") + b"q\x02" + short(title) + b"q\x03"
        + short("labels") + b"q\x04" + label_list(labels)
        + short("data") + b"q\x06" + pixel_array(rows)
        + short("filenames") + b"q\x0d" + names + b"u."
    )  # fmt: skip


def make(count: int, seed: int = 0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 3072), dtype=np.uint8), random.integers(0, 10, count).tolist()


def write_batches(folder, count=3):
    """Five training batches of `count` images and a test batch of 2; returns their (rows, labels)."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [make(count, seed) for seed in range(5)] + [make(2, 5)]
    for name, (rows, labels) in zip([*TRAIN_BATCHES, "test_batch"], made, strict=True):
        (folder / name).write_bytes(official(rows, labels))
    return made


def test_the_writer_above_writes_real_pickles():
    rows, labels = make(2500)
    loaded = pickle.loads(official(rows, labels), encoding="bytes")  # noqa: S301 (own bytes)
    assert list(loaded) == [b"batch_label", b"labels", b"data", b"filenames"]
    assert np.array_equal(loaded[b"data"], rows)
    assert loaded[b"labels"] == labels
    assert len(loaded[b"filenames"]) == 2500


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_official_batches(tmp_path, inside):
    made = write_batches(tmp_path / inside)
    data = load_cifar10(tmp_path)
    rows = np.concatenate([rows for rows, _ in made[:5]])
    assert torch.equal(data.train.images, torch.from_numpy(rows).view(15, 3, 32, 32).float() / 255)
    assert data.train.labels.tolist() == [label for _, labels in made[:5] for label in labels]
    assert torch.equal(data.test.images, torch.from_numpy(made[5][0]).view(2, 3, 32, 32).float() / 255)
    assert data.test.labels.tolist() == made[5][1]
    assert (data.classes[0], data.classes[3], data.classes[9]) == ("airplane", "cat", "truck")


def test_labels_in_several_groups(tmp_path):
    write_batches(tmp_path)
    rows, labels = make(2500, seed=9)
    (tmp_path / "test_batch").write_bytes(official(rows, labels))
    test = load_cifar10(tmp_path).test
    assert test.labels.tolist() == labels
    assert torch.equal(test.images[-1].flatten(), torch.from_numpy(rows[-1]).float() / 255)


def test_reading_stops_before_the_file_names(tmp_path):
    """They take longer to walk than all the rest, and nothing needs them."""
    write_batches(tmp_path)
    rows, labels = make(3, seed=9)
    whole = official(rows, labels)
    (tmp_path / "test_batch").write_bytes(whole[: whole.index(b"filenames")])
    assert load_cifar10(tmp_path).test.labels.tolist() == labels


class Harmful:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_harmful_pickle_is_not_run(tmp_path):
    write_batches(tmp_path / "batches")
    mark = tmp_path / "mark"
    harmful = pickle.dumps(Harmful(f"touch {mark}"), protocol=2)
    rows, labels = make(3)
    with_images = official(rows, labels).replace(b"\x80\x02}", harmful[:-1] + b"0}", 1)

    pickle.loads(with_images, encoding="bytes")  # noqa: S301 (only makes the mark)
    assert mark.exists(), "the file must be harmful for this test to mean something"
    mark.unlink()

    (tmp_path / "batches" / "test_batch").write_bytes(with_images)
    assert load_cifar10(tmp_path / "batches").test.labels.tolist() == labels
    (tmp_path / "batches" / "test_batch").write_bytes(harmful)
    with pytest.raises(DataError, match=r"test_batch: .*no pixels"):
        load_cifar10(tmp_path / "batches")
    assert not mark.exists()


ROWS, LABELS = make(3)
WHOLE = official(ROWS, LABELS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "exhausted"),
        (WHOLE[:60], "not an official CIFAR-10 Python batch"),
        (WHOLE[:5000], "not an official CIFAR-10 Python batch"),
        (b"not a batch at all", "not an official CIFAR-10 Python batch"),
        (official(ROWS, LABELS[:2]), "3 images but 2 labels"),
        (official(ROWS, [0, 10, 1]), "expected labels 0 to 9, got 10 at index 1"),
        (WHOLE.replace(short("labels"), short("labelz")), "3 images but 0 labels"),
        (WHOLE.replace(b"]q\x05(K", b"]q\x05(N"), "NONE among the labels"),
        (official(ROWS[:, :3000].copy(), LABELS), "no pixels"),
        (WHOLE.replace(short("data"), short("labels") + label_list(LABELS)), "two lists of labels"),
        (b"\x80\x02}(" + pixel_array(ROWS) + pixel_array(ROWS) + WHOLE[6:], "two blocks of pixels"),
    ],
)
def test_a_damaged_batch_is_refused_by_name(tmp_path, content, reason):
    write_batches(tmp_path)
    (tmp_path / "data_batch_4").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_4: .*({reason})"):
        load_cifar10(tmp_path)


def test_missing_files_are_named_with_what_is_accepted(tmp_path):
    write_batches(tmp_path)
    (tmp_path / "data_batch_3").unlink()
    (tmp_path / "test_batch").unlink()
    with pytest.raises(DataError, match=r"cifar10\.npz.*cifar-10-batches-py.*missing in .*: data_batch_3, test_batch$"):
        load_cifar10(tmp_path)


def test_an_archive_still_packed_is_pointed_out(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").touch()
    with pytest.raises(DataError, match=r"unpack .*cifar-10-python\.tar\.gz first"):
        load_cifar10(tmp_path)


def arrays(**changes):
    random = np.random.default_rng(0)
    whole = {
        "x_train": random.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8),
        "y_train": np.array([3, 1, 4, 1, 5]),
        "x_test": random.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8),
        "y_test": np.array([[9], [2]]),
    }
    return {name: value for name, value in (whole | changes).items() if value is not None}


@pytest.mark.parametrize("direct", [True, False])
def test_npz(tmp_path, direct):
    stored = arrays()
    np.savez(tmp_path / "cifar10.npz", **stored)
    data = load_cifar10(tmp_path / "cifar10.npz" if direct else tmp_path)
    assert torch.equal(data.train.images.permute(0, 2, 3, 1), torch.from_numpy(stored["x_train"]).float() / 255)
    assert data.train.images.is_contiguous()
    assert data.train.labels.tolist() == [3, 1, 4, 1, 5]
    assert data.test.labels.tolist() == [9, 2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"y_test": None, "x_train": None}, "missing: x_train, y_test"),
        ({"x_train": np.zeros((5, 32, 32, 3))}, "x_train: expected uint8 .* got float64"),
        ({"x_test": np.zeros((2, 3, 32, 32), np.uint8)}, r"x_test: .* got uint8 of shape \(2, 3, 32, 32\)"),
        ({"y_train": np.zeros(4, int)}, r"y_train: expected 5 whole numbers.*\(4,\)"),
        ({"y_train": np.zeros(5)}, "y_train: expected 5 whole numbers.*float64"),
        ({"y_test": np.array([0, 10])}, "y_test: expected labels 0 to 9, got 10 at index 1"),
        ({"y_test": np.array([0, None])}, "plain arrays.*allow_pickle=False"),
    ],
)
def test_a_wrong_npz_is_refused(tmp_path, changes, reason):
    np.savez(tmp_path / "cifar10.npz", **arrays(**changes))
    with pytest.raises(DataError, match=rf"cifar10\.npz: {reason}|cifar10\.npz: .*{reason}"):
        load_cifar10(tmp_path)


def test_a_damaged_npz_is_refused(tmp_path):
    path = tmp_path / "some.npz"
    np.savez_compressed(path, **arrays())
    whole = path.read_bytes()
    broken = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:3000] + bytes([whole[3000] ^ 255]) + whole[3001:],
        "empty": b"",
        "pickle": pickle.dumps({}),
    }
    for content in broken.values():
        path.write_bytes(content)
        with pytest.raises(DataError, match=re.escape(str(path)) + ": not a readable .npz"):
            load_cifar10(path)


def header(text: str) -> bytes:
    """An array file whose header says this."""
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode("latin-1")


def refused_in_one_line(path):
    with pytest.raises(DataError, match=r"some\.npz: not a readable \.npz") as caught:
        load_cifar10(path)
    return "\n" not in str(caught.value)


def test_an_archive_with_a_compression_that_nobody_has_is_refused(tmp_path):
    path = tmp_path / "some.npz"
    np.savez(path, **arrays())
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 10] = 99  # the method of the first file in the directory
    path.write_bytes(content)
    assert refused_in_one_line(path)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (5, 32, 32, 3",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999999, 32, 32, 3), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-5, 32, 32, 3), }",
        "'''",
    ],
    ids=["cut", "memory", "negative", "token"],
)
def test_a_damaged_header_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "some.npz"
    np.savez(path, **arrays())
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, "x_train.npy": header(text)}.items():
            archive.writestr(name, content)
    assert refused_in_one_line(path)
