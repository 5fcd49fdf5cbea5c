"""Fixtures of all tests that start processes."""

from __future__ import annotations

from multiprocessing import forkserver

import pytest
import training_process

from deltabeast.launch.processes import child


@pytest.fixture
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork child processes from a server that has imported everything: spawned, each imports torch anew."""
    forkserver.ensure_running()  # begun beside a child, it and all others would be deaf to SIGINT
    monkeypatch.setattr(child, "_context", training_process.context)
