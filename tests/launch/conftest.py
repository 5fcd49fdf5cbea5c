"""Fixtures of all tests that start processes."""

from __future__ import annotations

import pytest
import training_process

from deltabeast.launch.processes import child


@pytest.fixture
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork child processes from a server that has imported everything: spawned, each imports torch anew."""
    monkeypatch.setattr(child, "_context", training_process.context)
