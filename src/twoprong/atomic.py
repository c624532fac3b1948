"""Files and directories that are either whole or absent, whoever else is writing and whenever a run is killed.

Every writer has a temporary name of its own, so two of them never mix. Locks (flock) end with their process: what a killed
writer has left behind is not locked, and the next writer of the same path removes it.
"""

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HERE, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then move it into place: a reader sees the old file or the new.

    An OSError, such as a full disk's, names `path` and leaves no temporary file.
    """
    with _naming(path, path):
        for left in _leftovers(path):
            _remove_unlocked(left)
        temporary, handle = _claim(path)
        try:
            write(temporary)
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(handle)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes the place of `path` in one step when the block ends without an error.

    Raises BlockingIOError while another process is writing `path`. An OSError names the file that could not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as sure:
        _recover(path)
        for left in _leftovers(path) if sure else ():
            _remove(left)
        partial = _temporary(path)
        try:
            with _naming(path, partial):
                partial.mkdir()
                yield partial
                for file in (*partial.iterdir(), partial):
                    sync(file)
                _replace(partial, path)
                sync(path.parent)
        finally:
            _remove(partial)
            _recover(path)


def whereabouts(path: Path) -> Path:
    """Where the directory `path` is: under its own name, or where a kill in the middle of its replacement left it."""
    old = _old(path) if path.name else path
    return old if old.is_dir() and not os.path.lexists(path) else path


def sync(path: Path) -> None:
    """Force a file or a directory entry to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _naming(path: Path, temporary: Path) -> Iterator[None]:
    """An OSError that names no file, or a temporary one, says which file was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, BlockingIOError):
            raise
        within = str(error.filename or "").partition(str(temporary))[2] if temporary != path else ""
        raise OSError(error.errno, error.strerror, f"{path}{within}") from error


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """One writer of `path` at a time; whether that is sure, which it is not where the file system has no locks."""
    lock = path.with_name(f".{path.name}.lock")
    while True:
        with _naming(path, path):
            handle = os.open(lock, os.O_CREAT | os.O_RDONLY, 0o666)
        held = _held(handle)
        if held is False:
            os.close(handle)
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing it", str(path))
        if _is(handle, lock):
            break
        os.close(handle)  # its last owner has removed it in the meantime
    try:
        yield held is True
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _claim(path: Path) -> tuple[Path, int]:
    """A new temporary file for `path`, locked, so that other writers leave it alone."""
    while True:
        temporary = _temporary(path)
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        if _held(handle) is not False and _is(handle, temporary):
            return temporary, handle
        os.close(handle)  # another writer took it for a leftover before it was locked


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def _leftovers(path: Path) -> list[Path]:
    """What killed writers of `path` may have left; older versions had one fixed name."""
    name = re.compile(rf"\.{re.escape(path.name)}\.([0-9a-f]{{8}}\.)?partial")
    return [path.with_name(found) for found in os.listdir(path.parent) if name.fullmatch(found)]


def _remove_unlocked(file: Path) -> None:
    with suppress(OSError):  # another writer may have been faster, or may not let us
        handle = os.open(file, os.O_RDONLY)
        try:
            if _held(handle) is True:
                file.unlink()
        finally:
            os.close(handle)


def _held(handle: int) -> bool | None:
    """Take the lock of an open file: True where it is ours now, False where another has it, None where there are none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is(handle: int, path: Path) -> bool:
    """Whether an open file is still the one under a name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _replace(new: Path, path: Path) -> None:
    """Put a directory in the place of another; where the system cannot swap two names, by way of `.NAME.old`."""
    if not os.path.lexists(path):
        os.rename(new, path)
    elif not _exchange(new, path):
        os.rename(path, _old(path))
        os.rename(new, path)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step. False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


def _recover(path: Path) -> None:
    """Undo, or finish, a replacement that was stopped between its two renames."""
    if os.path.lexists(_old(path)):
        if os.path.lexists(path):
            _remove(_old(path))
        else:
            os.rename(_old(path), path)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
