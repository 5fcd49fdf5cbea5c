"""Files without a name: memory that several processes map, of which nothing is left when they end."""

from __future__ import annotations

import os
import tempfile


def nameless_file(size: int) -> int:
    """Return the descriptor of a file of `size` bytes.

    It is no file of /dev/shm, which is small in containers: 64 MiB in Docker's. Raises OSError if there is no
    memory for it.
    """
    file = _open()
    try:
        os.ftruncate(file, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)  # now, as a page that cannot be had later would end the process
    except OSError:
        os.close(file)
        raise
    return file


def _open() -> int:
    try:
        return os.memfd_create("deltabeast")
    except (AttributeError, OSError):  # macOS, and sandboxes that forbid it
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
