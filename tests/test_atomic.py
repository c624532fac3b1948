import errno
import fcntl
import os
import stat

import pytest

from twoprong import atomic
from twoprong.atomic import new_directory, whereabouts, write_atomic


class Killed(BaseException):
    """What nobody catches: the run ends here."""


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def fill(path, text):
    with new_directory(path) as partial:
        (partial / "file").write_text(text)


def test_a_write_puts_the_whole_file_in_place_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, lambda temporary: temporary.write_bytes(b"first"))
    write_atomic(path, lambda temporary: temporary.write_bytes(b"second"))
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("old", [b"old", None])
def test_a_writer_that_fails_half_way_leaves_what_was_there(tmp_path, old):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)

    def interrupted(temporary):
        temporary.write_bytes(b"half of it")
        assert temporary.parent == path.parent  # else the move would not be atomic
        assert (path.read_bytes() if path.exists() else None) == old
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, interrupted)
    assert list(tmp_path.iterdir()) == ([path] if old else [])
    assert (path.read_bytes() if path.exists() else None) == old


@pytest.mark.parametrize("name", [".file.0123abcd.partial", ".file.partial"])
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path, name):
    path, others = tmp_path / "file", tmp_path / ".file.b.0123abcd.partial"
    (tmp_path / name).write_bytes(b"a long leftover of a killed run")
    others.touch()
    write_atomic(path, lambda temporary: temporary.write_bytes(b"new"))
    assert path.read_bytes() == b"new"
    assert set(tmp_path.iterdir()) == {path, others}


def test_two_writers_of_a_file_do_not_mix(tmp_path):
    """The second writes all of its file while the first is in the middle of its own."""
    path = tmp_path / "file"

    def slow(temporary):
        with temporary.open("w") as file:
            file.write("first ")
            file.flush()
            write_atomic(path, lambda other: other.write_text("second"))
            assert path.read_text() == "second"
            file.write("whole")

    write_atomic(path, slow)
    assert path.read_text() == "first whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_file_that_is_taken_for_a_leftover_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    path, taken, whole = tmp_path / "file", [], atomic._held

    def late(handle):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        return whole(handle)

    monkeypatch.setattr(atomic, "_held", late)
    write_atomic(path, lambda temporary: temporary.write_text("new"))
    assert path.read_text() == "new"
    assert taken


def test_a_full_disk_names_the_file_and_leaves_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        write_atomic(tmp_path / "file", lambda temporary: temporary.write_text("new"))
    with pytest.raises(OSError, match=r"No space left on device: '.*/folder'"):
        fill(tmp_path / "folder", "new")
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/folder/inner'"),
        new_directory(tmp_path / "folder") as it,
    ):
        write_atomic(it / "inner", full)
    with pytest.raises(FileNotFoundError, match=r"nowhere/file'"):
        write_atomic(tmp_path / "nowhere" / "file", lambda temporary: temporary.write_text("new"))
    assert list(tmp_path.iterdir()) == []


def test_files_and_directories_can_be_read_by_those_whom_the_mask_lets(tmp_path):
    old = os.umask(0o022)
    try:
        write_atomic(tmp_path / "file", lambda temporary: temporary.write_text("new"))
        fill(tmp_path / "folder", "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o755


@pytest.mark.parametrize("can_swap", [True, False])
def test_a_directory_takes_the_place_of_another(tmp_path, monkeypatch, can_swap):
    if not can_swap:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    path = tmp_path / "folder"
    fill(path, "old")
    fill(path, "new")
    assert (path / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_where_names_can_be_swapped_there_is_a_directory_at_every_moment(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    fill(path, "old")
    if not atomic._exchange(path, path):
        pytest.skip("this file system cannot swap names")

    def never(*_):
        raise AssertionError("two renames leave a moment without either")

    monkeypatch.setattr(os, "rename", never)
    fill(path, "new")
    assert (path / "file").read_text() == "new"


def test_a_kill_between_two_renames_loses_nothing(tmp_path, monkeypatch):
    path, rename, done = tmp_path / "folder", os.rename, []
    fill(path, "old")

    def killed(*names):
        if done:
            raise Killed
        done.append(names)
        rename(*names)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_exchange", lambda *_: False)
        patch.setattr(os, "rename", killed)
        with pytest.raises(Killed):
            fill(path, "new")
    assert not path.exists()
    assert (whereabouts(path) / "file").read_text() == "old"
    with pytest.raises(OSError, match="No space"), new_directory(path):
        full((path / "file").read_text())  # the next writer puts it back first
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "file").read_text() == "old"
    assert whereabouts(path) == path


def test_a_rename_that_fails_leaves_the_old_directory(tmp_path, monkeypatch):
    path, rename = tmp_path / "folder", os.rename
    fill(path, "old")
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", lambda one, other: full() if "partial" in str(one) else rename(one, other))
    with pytest.raises(OSError, match=r"No space left on device: '.*/folder'"):
        fill(path, "new")
    assert (path / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_writers_of_a_directory_the_second_is_told(tmp_path):
    path = tmp_path / "folder"
    with new_directory(path) as partial:
        (partial / "file").write_text("first")
        with pytest.raises(BlockingIOError, match="another process is writing it"):
            fill(path, "second")
    assert (path / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_and_a_directory_of_the_dead_block_nobody(tmp_path):
    path = tmp_path / "folder"
    (tmp_path / ".folder.lock").touch()
    for name in (".folder.0123abcd.partial", ".folder.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("half")
    fill(path, "new")
    assert (path / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_that_its_owner_removes_in_between_is_taken_anew(tmp_path, monkeypatch):
    path, lock, whole, removed = tmp_path / "folder", tmp_path / ".folder.lock", atomic._held, []

    def late(handle):
        if not removed:
            removed.append(lock.unlink())
        return whole(handle)

    monkeypatch.setattr(atomic, "_held", late)
    with new_directory(path) as partial:
        (partial / "file").write_text("new")
        assert lock.exists()


def test_without_locks_writers_still_do_not_mix(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    path, left = tmp_path / "folder", tmp_path / ".folder.0123abcd.partial"
    left.mkdir()
    with new_directory(path) as partial:
        (partial / "file").write_text("first")
        fill(path, "second")
        assert (path / "file").read_text() == "second"
    assert (path / "file").read_text() == "first"
    assert set(tmp_path.iterdir()) == {path, left}, "what may be another's is not removed"


def test_a_link_to_a_directory_is_replaced_and_what_it_led_to_is_kept(tmp_path):
    fill(tmp_path / "elsewhere", "old")
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    fill(tmp_path / "folder", "new")
    assert (tmp_path / "folder" / "file").read_text() == "new"
    assert (tmp_path / "elsewhere" / "file").read_text() == "old"
    assert not (tmp_path / "folder").is_symlink()
