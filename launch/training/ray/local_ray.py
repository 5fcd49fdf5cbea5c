"""A Ray cluster of this machine alone: closed to other machines, and to those without its token."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from ...errors import UsageError

_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_K8S_TOKEN_AUTH")
"""Variables in which Ray looks up who may use a cluster."""


@contextmanager
def closed_to_others() -> Iterator[None]:
    """Make Ray start processes that listen on 127.0.0.1 and ask for a token, which they alone inherit.

    The environment has no say in that, and is as before afterwards.
    """
    from ray._private import ray_constants

    before = {name: os.environ.pop(name) for name in _AUTHENTICATION if name in os.environ}
    may_grow = ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    # Where others may join, Ray replaces 127.0.0.1 by the machine's own address, and listens on all it has.
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        read_authentication()
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = may_grow
        for name in _AUTHENTICATION:
            os.environ.pop(name, None)
        os.environ.update(before)


def read_authentication() -> None:
    """Make Ray read its authentication from the environment again: it remembers that of the last cluster.

    Raises UsageError if it is too old to ask anyone.
    """
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
    except ImportError:
        raise UsageError(
            "--engine ray: this Ray has no tokens, so anyone who reaches its ports can run code; "
            "it takes 2.52 or later: pip install 'ray>=2.52'"
        ) from None
    Config.initialize("")  # before the token goes: Ray aborts if one is required and missing
    AuthenticationTokenLoader.instance().reset_cache()


def private_folder() -> TemporaryDirectory[str]:
    """Make a folder for Ray's sockets and logs that other users of the machine cannot enter.

    In /tmp, unless RAY_TMPDIR says otherwise: the paths of sockets are short, and Ray's names are long.
    Raises UsageError where nothing can be written.
    """
    parent = os.environ.get("RAY_TMPDIR", "/tmp")
    try:
        return TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"no folder for Ray in {parent}: {error.strerror}; set RAY_TMPDIR") from error
