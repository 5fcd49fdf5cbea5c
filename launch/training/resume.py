"""Find the run that a command goes on with, and refuse to go on with another."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import Any

from ...agents import Agent, AgentSpec, UntrustedCore, load_latest
from ..config import TrainConfig
from ..errors import UsageError
from ..runs.directory import read_config
from .plan import check_not_truncated, check_same_agent, check_same_options


def find_run(
    config: TrainConfig, run_dir: Path, wanted: AgentSpec
) -> tuple[Agent, dict[str, Any], list[str]] | tuple[None, None, list[str]]:
    """Load the newest checkpoint in `run_dir`, if there is one; `config` takes over the run's preset.

    Returns the agent, the state saved with it, and warnings about damaged checkpoints. Raises UsageError if
    the run is not the one that `config` describes.
    """
    with warnings.catch_warnings(record=True) as damage:
        warnings.simplefilter("always")
        try:
            found = load_latest(run_dir, trust_core=wanted.core)
        except UntrustedCore as error:
            raise UsageError(
                f"{run_dir} holds a run with core {error.core}, not {wanted.core}; give another "
                f"--run-dir, or --core {shlex.quote(error.core)} if you trust its code"
            ) from error
    notes = [f"warning: {warning.message}" for warning in damage]
    if found is None:
        return None, None, notes
    agent, state, _ = found
    saved = read_config(run_dir)
    check_same_agent(agent.spec, wanted, run_dir)
    check_not_truncated(config, agent.core, run_dir)
    check_same_options(saved, config, agent.core, run_dir)
    config.preset = saved.get("preset", config.preset)
    return agent, state, notes
