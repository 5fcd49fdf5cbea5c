"""Workers of Ray's, forked from a server which has imported torch, so that each starts in a moment.

A node starts a worker by a Python that imports Ray, which becomes one that imports Ray anew, and then torch:
four seconds of a core for each actor and learner. Run as a node's `setup_worker_path`, this file asks the
server for the worker instead, and ends when that does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SERVER = "DELTABEAST_TEST_RAY_WORKERS"
"""In the environment of a node: the socket at which its server listens."""
CONTEXT = "--serialized-runtime-env-context="
"""What Ray's own script puts into a worker's environment."""


def serve(listener: socket.socket) -> None:
    """Fork a worker for each that connects, for ever."""
    import training_envs  # noqa: F401

    assert "ray" not in sys.modules, "it reads the environment, a worker's own, when it is imported"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
        else:
            listener.close()
            _become(connection)


def _become(connection: socket.socket) -> None:
    """Be the worker that was asked for; the connection ends with this process."""
    import multiprocessing
    import runpy

    told, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 3)
    given = json.loads(told)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]  # as of any worker of Ray's
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv = given["arguments"]
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _ask(given: list[str]) -> None:
    """Have the server start a worker, and wait for its end."""
    arguments = [part for part in given if not part.startswith(("--language=", CONTEXT))]
    contexts = [json.loads(part.removeprefix(CONTEXT)) for part in given if part.startswith(CONTEXT)]
    environment = {**os.environ, **{k: v for one in contexts for k, v in one.get("env_vars", {}).items()}}
    told = {"arguments": arguments, "folder": os.getcwd(), "environment": environment}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SERVER])
        socket.send_fds(connection, [json.dumps(told).encode()], [0, 1, 2])
        connection.recv(1)


if __name__ == "__main__":
    _ask(sys.argv[1:])
