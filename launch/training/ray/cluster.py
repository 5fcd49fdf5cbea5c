"""Everything that touches Ray: a cluster, its processes, calls to them, and objects that travel between them.

Nothing else imports Ray but `local_ray.py`, which closes a local cluster to others. Replies come through one
queue, so that the engine is a plain loop.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ....envs import available_cores
from ...errors import RunError, UsageError
from ...processes.child import RemoteTraceback, signals_held_back
from ..engine import ActorError
from .local_ray import closed_to_others, private_folder, read_authentication

# Read when Ray is imported. Nothing is reported to anyone, and no advice about devices, which are explicit.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

try:
    import ray
    import ray._private.worker
    import ray.exceptions
except ImportError:
    raise UsageError("--engine ray needs Ray, which is not installed: pip install 'ray>=2.52'") from None

Ref = Any
"""A reference to an object of the object store, wherever that is."""
Handle = Any
"""A process of the cluster."""

_STORE_BYTES = 1 << 30
"""Object store of a cluster that starts here: a dozen unrolls and the weights need about a tenth of it."""
_LEAST_STORE_BYTES = 80 << 20
_REACH_SECONDS = 10.0
"""Seconds in which a cluster that was there before must accept a connection."""


class ProcessDied(Exception):
    """A process of the cluster, or the way to it, is gone."""


class ObjectGone(Exception):
    """No copy of an object is left, or none that can be reached."""


@dataclass(frozen=True)
class Location:
    """The node and the process id of a process of the cluster."""

    node: str
    """address and the beginning of Ray's name for the node: several may share one address"""
    pid: int
    version: str = "of an older version"
    """deltabeast's version there; the default is for locations pickled by versions without this field"""

    def __str__(self) -> str:
        return f"node {self.node}, process {self.pid}"


@dataclass(frozen=True)
class Reply:
    """The result of a call: a value or an error, either ProcessDied or what the method raised."""

    tag: Any
    value: Any = None
    error: Exception | None = None


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to a Ray cluster, or a cluster of this machine alone that ends with it.

    Raises UsageError if there is none at the address.
    """

    def __init__(self, address: str | None) -> None:
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        # Pages of Ray's own about every process and node that dies: the run says so itself, in a line.
        vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None
        self._is_gone = False
        address = address or os.environ.get("RAY_ADDRESS")
        self.is_elsewhere = address not in (None, "local")
        """whether it was there before, and more machines may join it"""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        self._folder = None if self.is_elsewhere else private_folder()
        if self._folder is not None:
            with closed_to_others(), signals_held_back():  # which child processes keep blocked: we stop them
                ray.init(
                    address="local",
                    num_cpus=max(available_cores(), 2),  # a learner and an actor fit on one core
                    object_store_memory=_store_bytes(),
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=os.path.join(self._folder.name, "r"),  # which Ray opens to everyone
                    **quiet,
                )
            self._raylet = _raylet()
            return
        assert address is not None
        if "://" in address:
            raise UsageError(
                f"--ray-address {address}: Ray Client carries no training; on a machine of the cluster say "
                "auto, or HOST:PORT as in `ray start`"
            )
        read_authentication()
        try:
            _reach(address)
            ray.init(address=address, **quiet)
        except (ray.exceptions.AuthenticationError, OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"--ray-address {address}: no Ray cluster answers there ({reason}); start one with "
                "`ray start --head`, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN if it asks, or omit it "
                "to train here"
            ) from error
        self._raylet = _raylet()

    def __exit__(self, *_: object) -> None:
        if not self._is_gone:
            ray.shutdown()
            read_authentication()
        if self._folder is not None:
            self._folder.cleanup()

    def _look(self) -> None:
        """Raise RunError if Ray has ended here: its next call would end this process too, without a word."""
        try:
            socket.create_connection(self._raylet, timeout=_REACH_SECONDS).close()
        except ConnectionRefusedError:
            self._is_gone = True
            raise RunError(
                "Ray was stopped or killed on this machine; start it, and the same command goes on from the "
                "last checkpoint"
            ) from None
        except OSError:  # busy
            return

    def start(
        self,
        kind: type,
        *arguments: Any,
        cpus: float,
        gpus: float,
        spread: bool = False,
        groups: Mapping[str, int] | None = None,
    ) -> Handle:
        """Start a process that holds a `kind`; `groups` names further groups of threads and their sizes.

        It dies with this one. Nothing restarts it or repeats a call to it by itself.
        """
        self._look()
        options: dict[str, Any] = {"concurrency_groups": dict(groups)} if groups else {}
        remote: Any = ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD" if spread else "DEFAULT",
            **options,
        )(kind)
        return remote.remote(*arguments)

    def call(
        self, handle: Handle, method: str, *arguments: Any, tag: Any, returns: int = 1, group: str = ""
    ) -> list[Ref]:
        """Call a method; its first value comes as a Reply, references to the others are returned at once.

        References in a list among the arguments are handed over as references.
        """
        options: dict[str, Any] = {"num_returns": returns}
        if group:
            options["concurrency_group"] = group
        refs = getattr(handle, method).options(**options).remote(*arguments)
        first, rest = (refs, []) if returns == 1 else (refs[0], list(refs[1:]))
        first.future().add_done_callback(lambda future: self._replies.put(_reply(tag, future)))
        return rest

    def next_reply(self, timeout: float) -> Reply | None:
        """Wait for the next reply. Raises RunError if Ray itself has ended on this machine."""
        try:
            reply = self._replies.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(reply.error, ProcessDied):
            self._look()
        return reply

    def ask(
        self, handles: Sequence[Handle], method: str, *arguments: Any, patience: Callable[[float], None]
    ) -> list[Any]:
        """Call a method of several processes at the same time and wait for all values.

        `patience` is called twice a second with the seconds waited so far, and may raise to give up.
        Raises ProcessDied, or what the method raised.
        """
        refs = [getattr(handle, method).remote(*arguments) for handle in handles]
        start = time.monotonic()
        while True:
            try:
                return list(ray.get(refs, timeout=0.5))
            except ray.exceptions.GetTimeoutError:
                patience(time.monotonic() - start)
            except ray.exceptions.RayError as error:
                raise _translated(error) from None

    def put(self, value: Any) -> Ref:
        self._look()
        return ray.put(value)

    def kill(self, handle: Handle) -> None:
        ray.kill(handle)

    def total(self) -> dict[str, float]:
        """Return the resources of all nodes: CPU, GPU."""
        return _cpus_and_gpus(ray.cluster_resources())

    def free(self) -> dict[str, float]:
        """Return the resources that nobody has reserved."""
        return _cpus_and_gpus(ray.available_resources())

    def largest_node(self) -> dict[str, float]:
        """Return the most of each resource that one node has."""
        nodes = [_cpus_and_gpus(node["Resources"]) for node in ray.nodes() if node["Alive"]]
        return {name: max((node[name] for node in nodes), default=0.0) for name in ("CPU", "GPU")}


def locate() -> Location:
    """Return the location of the calling process."""
    context = ray.get_runtime_context()
    node = f"{ray.util.get_node_ip_address()}-{context.get_node_id()[:6]}"
    return Location(node, os.getpid(), version("deltabeast"))


def check_version(place: Location) -> None:
    """Raise ActorError if a process runs another deltabeast than this one."""
    if place.version != version("deltabeast"):
        raise ActorError(
            f"{place} has deltabeast {place.version}, and this machine {version('deltabeast')}: install the "
            "same on both, and start Ray there anew"
        )


def _raylet() -> tuple[str, int]:
    """Return the address at which Ray's own process on this machine listens."""
    here = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == here)
    return node["NodeManagerAddress"], node["NodeManagerPort"]


def node_address() -> str:
    return str(ray.util.get_node_ip_address())


def fetch(ref: Ref, timeout: float) -> Any:
    """Get the object behind a reference, as read-only memory where it is large.

    Raises TimeoutError, or ObjectGone.
    """
    try:
        return ray.get(ref, timeout=timeout)
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError from error
    except ray.exceptions.RayError as error:
        raise ObjectGone(_first_line(error)) from error


def _reply(tag: Any, future: Any) -> Reply:
    error = future.exception()
    return Reply(tag, future.result()) if error is None else Reply(tag, error=_translated(error))


def _translated(error: BaseException) -> Exception:
    """Translate an error of Ray's into one of ours, or into what the method raised."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = getattr(error, "cause", None)
        if not isinstance(cause, Exception):
            cause = RunError(_first_line(error))
        cause.__cause__ = RemoteTraceback(_plain(error))
        return cause
    return ProcessDied(_first_line(error))


def _first_line(error: BaseException) -> str:
    """Extract from a long message of Ray's the part that says what happened."""
    plain = _plain(error)
    if "failed to import on the worker" in plain:
        return _cannot_import(plain)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    relevant = [
        line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:"))
    ]
    return " ".join(relevant[:2]) if relevant else type(error).__name__


def _cannot_import(plain: str) -> str:
    """Say which machine lacks what, given a message of Ray's with a traceback of that machine."""
    address = re.search(r"\bip=([^\s,)]+)", plain)
    causes = re.findall(r"^\s*(\w*(?:Error|Exception): .*)$", plain, re.MULTILINE)
    return (
        f"node {address[1] if address else 'unknown'} cannot import what is sent to it"
        f"{f' ({causes[-1]})' if causes else ''}: install deltabeast {version('deltabeast')} there, with the "
        "Python and the packages of this machine"
    )


def _plain(error: BaseException) -> str:
    """Strip the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()


def _reach(address: str) -> None:
    """Fail early where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()


def _store_bytes() -> int:
    """Choose a size of the object store that fits into shared memory, which is small in containers."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:  # macOS
        return _STORE_BYTES
    return max(_LEAST_STORE_BYTES, min(_STORE_BYTES, int(0.8 * free)))


def _cpus_and_gpus(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: float(resources.get(name, 0.0)) for name in ("CPU", "GPU")}
