"""Every file that this project writes, replaces or removes: what a user made stays.

* A file is replaced atomically: a new one is written beside it, synced and renamed. Symlinks are replaced;
  their targets are untouched.
* A file that is appended to or locked is never truncated, and never opened through a symlink.
* A folder is removed only if it contains nothing but regular files that the caller names, never recursively.
* Conflicting paths are renamed.

`tests/agents/test_writes.py` lists the few calls elsewhere, each with its reason. Nothing heavy is imported.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import secrets
import stat
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Error numbers of a system call that the file system does not support."""


class FsyncUnsupportedWarning(UserWarning):
    """The file system does not support fsync: the newest files may be lost if the machine fails."""


class NotRegularFileError(OSError):
    """A path to append to or to lock is a symlink, a pipe, a folder or the like; the message says which."""


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: a reader, or a crash, sees either the old file or the new one.

    Raises OSError.
    """
    with atomic_write(path) as file:
        file.write(encoded(content) if isinstance(content, str) else content)


def encoded(text: str) -> bytes:
    """Encode text as UTF-8; surrogates, as in paths that are not UTF-8, become backslash escapes."""
    return text.encode("utf-8", "backslashreplace")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, for writers that take a path.

    Its file, which is not synced, is renamed to `path` if the block succeeds, else removed. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".deltabeast-{secrets.token_hex(6)}{path.suffix[:16]}")
    try:
        yield temporary
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that is synced and renamed to `path` if the block succeeds. Raises OSError."""
    with atomic_path(path) as temporary, open_new(temporary) as file:
        yield file
        file.flush()
        _sync(file.fileno())


def create(path: Path, content: bytes) -> None:
    """Write and sync a new file. Raises OSError, FileExistsError if there is one."""
    with open_new(path) as file:
        file.write(content)
        file.flush()
        _sync(file.fileno())


def open_new(path: Path) -> BinaryIO:
    """Open a new file for writing. Raises OSError, FileExistsError if there is one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def open_to_append(path: Path) -> TextIO:
    """Open a file, made if it is not there, to write at its end. Raises OSError."""
    return os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8", newline="")


def open_to_lock(path: Path) -> BinaryIO:
    """Open a file, made if it is not there, for its lock; its content stays. Raises OSError."""
    return os.fdopen(_open(path, os.O_RDWR), "r+b")


def _open(path: Path, flags: int) -> int:
    try:  # without waiting for the other end of a pipe
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise NotRegularFileError(f"{path} is {_kind(path)}") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularFileError(f"{path} is {_kind(path)}")
    return descriptor


def _kind(path: Path) -> str:
    if path.is_symlink():
        return f"a link to {os.readlink(path)}"
    return "a folder" if path.is_dir() else "not a regular file"


def is_plain(path: Path) -> bool:
    """Return whether it is a regular file, not a symbolic link, with a single hard link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def set_aside(path: Path, word: str) -> Path:
    """Rename `logs.csv` to `logs.<word>.csv`, or `logs.<word>-2.csv` if that is taken; return the new path.

    Raises OSError.
    """
    for number in itertools.count(1):
        of_number = "" if number == 1 else f"-{number}"
        aside = path.with_name(f"{path.stem}.{word}{of_number}{path.suffix}")
        if not os.path.lexists(aside):
            break
    os.rename(path, aside)
    return aside


def holds_only(folder: Path, names: Collection[str]) -> bool:
    """Return whether it is a folder, not a link, of regular files with these names and nothing else."""
    try:
        with os.scandir(folder) as entries:
            plain = all(entry.name in names and entry.is_file(follow_symlinks=False) for entry in entries)
    except OSError:
        return False
    return plain and not folder.is_symlink()


def remove_folder(folder: Path, names: Collection[str]) -> bool:
    """Remove a folder that `holds_only` files of these names, else leave it; return whether it was removed.

    Raises OSError.
    """
    if not holds_only(folder, names):
        return False
    for name in set(names).intersection(os.listdir(folder)):
        os.unlink(folder / name)
    os.rmdir(folder)
    return True


def remove_files(folder: Path, ending: str) -> None:
    """Remove the plain files below a folder whose names end so, and the folders that are empty then.

    Raises OSError.
    """
    for inner, _, names in os.walk(folder, topdown=False):
        for path in [Path(inner, name) for name in names if name.endswith(ending)]:
            if path.is_file() and not path.is_symlink():
                os.unlink(path)
        with suppress(OSError):  # it holds something
            os.rmdir(inner)


def remove(path: Path) -> None:
    """Remove a file, or a link, if there is one. Raises OSError."""
    path.unlink(missing_ok=True)


def rename(path: Path, free: Path) -> None:
    """Give a file or folder a name that is free. Raises OSError, FileExistsError if it is not."""
    if os.path.lexists(free):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(free))
    os.rename(path, free)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames and new files in it survive a crash. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        say_once(
            f"this file system does not sync files (fsync: {why(error)}): what was written last may be "
            "lost if the machine fails"
        )


@functools.cache
def say_once(text: str) -> None:
    """Raise a FsyncUnsupportedWarning warning with this text, once per process."""
    warnings.warn(text, FsyncUnsupportedWarning, stacklevel=2)


def why(error: OSError) -> str:
    """Return the reason in a few words, without the paths that the system adds."""
    return os.strerror(error.errno) if error.errno else str(error)
