"""The agent that an evaluation is of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...agents import Agent, CheckpointError, load_agent, load_latest, resolve_checkpoint
from ...agents.manifest import saved_step
from ..errors import RunError, UsageError
from ..runs.directory import check_command, no_run
from ..units import parse_steps


@dataclass(frozen=True)
class Loaded:
    """An agent with its checkpoint."""

    run_dir: Path
    agent: Agent
    checkpoint: Path
    step: int


def load(run: Path, which: str, trust_core: str | None, say: Callable[[str], None]) -> Loaded:
    """Load the agent of a run, or of one checkpoint directory; `say` hears of damaged checkpoints.

    Raises UsageError, or RunError where every checkpoint is damaged.
    """
    try:
        if not any((run / name).exists() for name in ("config.json", "checkpoints", "manifest.json")):
            raise FileNotFoundError(no_run(run))
        check_command(run, "train")
        if (run / "manifest.json").is_file():
            if which != "latest":
                raise ValueError(f"--checkpoint {which}: {run} is one checkpoint; give its run or omit it")
            return Loaded(_run_of(run), load_agent(run, trust_core=trust_core), run, saved_step(run))
        if which == "latest":
            with warnings.catch_warnings(record=True) as damage:
                warnings.simplefilter("always")
                found = load_latest(run, trust_core)
            for warning in damage:
                say(f"warning: {warning.message}")
            if found is not None:
                return Loaded(run, found[0], found[2].path, found[2].step)
        path = resolve_checkpoint(run, _wanted(which))
        return Loaded(_run_of(path), load_agent(path, trust_core=trust_core), path, saved_step(path))
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from error
    except CheckpointError as error:
        raise RunError(str(error)) from error


def _run_of(checkpoint: Path) -> Path:
    """Return the run that a checkpoint is of; one that lies alone is its own."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint


def _wanted(which: str) -> str | int:
    """Parse a number of agent steps, which may be 0; leave a word or path as it is."""
    try:
        return 0 if which == "0" else parse_steps(which)
    except ValueError:
        return which
