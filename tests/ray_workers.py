"""Workers of Ray's, forked from a server which has imported torch, so that each starts in a moment.

A node starts a worker by a Python that imports Ray, which becomes one that imports Ray anew, and then torch:
four seconds of a core for each actor and learner. Run as a node's `setup_worker_path`, this file asks the
server for the worker instead, and ends when that does. A cluster that a test of test_cluster.py
or test_sweep.py starts for itself has Ray's own workers.
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

    import torch

    message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 3)
    request = json.loads(message)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]  # as of any worker of Ray's
    multiprocessing.current_process().daemon = False  # the server is one, and might have no children
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # Python and torch have read the server's; Ray's default is a thread for each CPU of an actor, here one.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sys.argv = request["arguments"]
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _ask(command: list[str]) -> None:
    """Have the server start a worker, and wait for its end."""
    arguments = [part for part in command if not part.startswith(("--language=", CONTEXT))]
    contexts = [json.loads(part.removeprefix(CONTEXT)) for part in command if part.startswith(CONTEXT)]
    environment = {**os.environ, **{k: v for one in contexts for k, v in one.get("env_vars", {}).items()}}
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": environment}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SERVER])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        connection.recv(1)


if __name__ == "__main__":
    _ask(sys.argv[1:])
