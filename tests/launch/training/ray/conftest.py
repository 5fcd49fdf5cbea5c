"""One Ray cluster of three nodes on this machine, for all tests of the folder."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray_workers
import training_envs
from ray.cluster_utils import Cluster
from training_process import context
from watched_run import STORE


@pytest.fixture(scope="package")
def quick_workers() -> Iterator[dict[str, str]]:
    """What a node is told for its workers to be forked (tests/ray_workers.py)."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = os.environ[ray_workers.SERVER] = os.path.join(folder, "socket")  # which has to be a short one
        listener.bind(path)
        listener.listen()
        server = context.Process(target=ray_workers.serve, args=(listener,), daemon=True)
        server.start()
        yield {"setup_worker_path": ray_workers.__file__}
        server.kill()
        server.join()
        del os.environ[ray_workers.SERVER]


@pytest.fixture(scope="package")
def cluster(quick_workers: dict[str, str]) -> Iterator[Cluster]:
    """A head with room for a learner, and two nodes with room for an actor each."""
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(training_envs.__file__).parent), path])
    config = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500,
              "health_check_failure_threshold": 4}  # fmt: skip
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "_system_config": config}
    made = Cluster(initialize_head=True, head_node_args={**head, **quick_workers})
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=STORE, **quick_workers)
    made.wait_for_nodes()
    yield made
    made.shutdown()
