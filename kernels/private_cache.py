"""The folder for code that is built on this machine: whoever can put code there gets it run."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path


class CannotBuildError(Exception):
    """No C compiler, a source that it rejects, or no safe place for what it makes."""


def private_cache() -> Path:
    """Return `~/.cache/deltabeast` (or that of `$XDG_CACHE_HOME`), where nobody else may write.

    Raises CannotBuildError.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        raise CannotBuildError("no home directory to keep C kernels in; set XDG_CACHE_HOME")
    folder = Path(base) / "deltabeast"
    try:
        folder = folder.resolve()  # so that no link can be redirected after the check
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not only_mine(folder) and folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)
        is_private = only_mine(folder)
    except RuntimeError as error:
        raise CannotBuildError(f"{error}; set XDG_CACHE_HOME to a folder of your own") from error
    except OSError as error:
        raise CannotBuildError(f"cannot write C kernels to {folder}: {error.strerror}") from error
    if not is_private:
        raise CannotBuildError(
            f"others can put code into {folder}; remove it, or set XDG_CACHE_HOME to a folder of your own"
        )
    return folder


def only_mine(path: Path) -> bool:
    """Return whether the user owns it and nobody else may write to it."""
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def set_inductor_cache_dir() -> None:
    """Have Inductor keep its code in `private_cache` as well, unless TORCHINDUCTOR_CACHE_DIR names a folder.

    Before torch._dynamo is imported: it takes /tmp/torchinductor_USER at once, whoever made that folder.
    Another version of this package has another folder: torch finds code again by the operators that a forward
    pass calls, not by what their backward passes do.
    """
    with suppress(CannotBuildError):  # then `use_private_inductor_cache` says why
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = _chosen() or str(private_cache() / f"inductor-{_version()}")


def use_private_inductor_cache() -> None:
    """Have Inductor keep everything else in that folder, too, before the first `torch.compile`.

    Raises CannotBuildError if there is none.
    """
    from torch._inductor.runtime import cache_dir_utils, runtime_utils

    folder = _chosen() or ""
    if folder in ("", cache_dir_utils.default_cache_dir()):
        private_cache()
    # Precompiled headers and some tables go to the default folder, whatever the variable says.
    for module in (cache_dir_utils, runtime_utils):
        module.default_cache_dir = lambda: folder  # type: ignore[attr-defined]


def _version() -> str:
    """Return a digest of the operators' sources."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _chosen() -> str | None:
    return os.environ.get("TORCHINDUCTOR_CACHE_DIR")
