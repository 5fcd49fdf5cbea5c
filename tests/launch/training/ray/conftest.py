"""One Ray cluster of three nodes on this machine, for all tests of the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import training_envs
from ray.cluster_utils import Cluster
from watched_run import STORE


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """A head with room for a learner, and two nodes with room for an actor each."""
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(training_envs.__file__).parent), path])
    config = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500,
              "health_check_failure_threshold": 4}  # fmt: skip
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "_system_config": config}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=STORE)
    made.wait_for_nodes()
    yield made
    made.shutdown()
