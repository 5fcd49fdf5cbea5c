"""Find the run that a command goes on with, and refuse to go on with another."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...agents import Agent, AgentSpec, UntrustedCore, find_checkpoints, load_latest
from ...agents.checkpoint import OtherVersion, set_aside_newer
from ...agents.manifest import is_exported
from ...cores import Core
from ...cores.registry import non_default_options
from ...envs import find_protocol
from ..config import TrainConfig
from ..errors import UsageError
from ..runs.directory import (
    check_command,
    check_free,
    default_run_dir,
    option_words,
    read_config,
    was_truncated,
)
from ..runs.options import DEFAULTS, FIXED, FORMER, LEGACY_VALUES
from ..units import parse_steps

_IN_WORDS = {
    "env_id": "environment",
    "core_options": "options of the core",
    "env_options": "options of the environment",
    "normalised": "normalised observations",
    "normalise_values": "normalised values",
}
"""what a field of `AgentSpec` is called in a message"""


def restore_former_options(config: TrainConfig) -> None:
    """Let a run that is older than an option go on as it did, where the option is at its default."""
    saved = read_config(config.run_dir or default_run_dir(config))
    if not saved:
        return
    for name, former in FORMER.items():
        if getattr(config, name) == DEFAULTS[name] and saved.get(name, former) == former:
            setattr(config, name, former)


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
        except OtherVersion as error:
            raise UsageError(str(error)) from error
    notes = [f"warning: {warning.message}" for warning in damage]
    if found is None:
        return None, None, notes
    agent, state, checkpoint = found
    if not state:
        what = "an exported agent" if is_exported(checkpoint.path) else "an agent"
        raise UsageError(f"{run_dir} holds {what}, without the state of its training; give another --run-dir")
    saved = read_config(run_dir)
    check_same_agent(agent.spec, wanted, run_dir)
    check_not_truncated(config, agent.core, run_dir)
    check_same_options(saved, config, agent.core, run_dir)
    notes += _other_length(saved, config, checkpoint.step)
    config.preset = saved.get("preset", config.preset)
    aside = set_aside_newer(run_dir, checkpoint.step)
    notes += [f"the damaged checkpoint is {name} now" for name in aside]
    return agent, state, notes


def check_resume(config: TrainConfig, run_dir: Path) -> None:
    """Raise UsageError if what the run directory holds is not what `--resume` asks for."""
    check_command(run_dir, "train")
    exists = bool(find_checkpoints(run_dir))
    if not exists:
        check_free(run_dir)
    if config.resume == "must" and not exists:
        raise UsageError(f"--resume must: no checkpoint in {run_dir}; start the run without it")
    if config.resume == "never" and exists:
        raise UsageError(f"--resume never: {run_dir} already holds a run; give another --run-dir or --seed")


def check_same_agent(saved: AgentSpec, wanted: AgentSpec, run_dir: Path) -> None:
    """Raise UsageError if the run to go on with is another agent's."""
    # The protocol may set the number of actions, and the environment the shape: causes come first.
    causes = ("game", "env_id", "env_options", "protocol", "observations", "core", "stem")
    for name in dict.fromkeys((*causes, *AgentSpec.__dataclass_fields__)):
        old, new = getattr(saved, name), getattr(wanted, name)
        if name == "core_options":
            old, new = (non_default_options(saved.core, given) for given in (old, new))
        if old != new and name not in FIXED:  # those are compared as options
            if name in ("core_options", "env_options"):
                differing = [key for key in {**old, **new} if old.get(key, ...) != new.get(key, ...)]
                old, new = (
                    ", ".join(
                        f"{key} {given[key]}" if key in given else f"the default {key}" for key in differing
                    )
                    for given in (old, new)
                )
            if name == "protocol" and old and new:
                name, old, new = _other_view(old, new)
            name = _IN_WORDS.get(name, name.replace("_", " "))
            raise UsageError(f"{run_dir} holds a run with {name} {old}, not {new}; give another --run-dir")


def _other_length(saved: Mapping[str, Any], config: TrainConfig, step: int) -> list[str]:
    """Say if a run goes on from `step` to another number of steps, which its schedule depends on."""
    before = str(saved.get("steps", config.steps))
    try:
        former = parse_steps(before)
    except ValueError:  # a file that somebody edited
        return []
    goal = parse_steps(config.steps)
    if goal == former or goal <= step:
        return []
    return [f"--steps {config.steps}, where it was {before}: the learning rate falls to zero over these now"]


def _other_view(old: str, new: str) -> tuple[str, str, str]:
    """Return what two protocols differ in, and both values: an option's where that alone differs."""
    try:
        before, now = map(find_protocol, (old, new))
    except ValueError:  # of a newer version
        return "protocol", old, new
    names = [field.name for field in fields(before)]
    differing = [name for name in names if getattr(before, name) != getattr(now, name)]
    if len(differing) == 1 and differing[0] in ("frame_stack", "flicker", "blink"):
        name = differing[0]
        return f"--{name.replace('_', '-')}", f"{getattr(before, name):g}", f"{getattr(now, name):g}"
    return "protocol", old, new


def check_not_truncated(config: TrainConfig, core: Core, run_dir: Path) -> None:
    """Raise UsageError for a run whose BPTT was truncated at every step, of a core that `per_step` leaves."""
    if was_truncated(run_dir) and not core.has_fast_weights and core.initial_state(1):
        raise UsageError(
            f"{run_dir} holds a {config.core} whose gradients an earlier version cut at every step; "
            "--bptt per_step no longer does that without fast weights: give another --run-dir"
        )


def check_same_options(saved: Mapping[str, Any], config: TrainConfig, core: Core, run_dir: Path) -> None:
    """Raise UsageError if the run would go on learning otherwise than it did: two experiments in one log."""
    differing = [
        name
        for name in FIXED
        if saved.get(name, LEGACY_VALUES[name]) != getattr(config, name)
        and not (name == "bptt" and not core.has_fast_weights)  # where both are the same
    ]
    if saved and differing:
        old, new = (
            shlex.join(
                word
                for name in differing
                for word in option_words(name, options.get(name, LEGACY_VALUES[name]))
            )
            for options in (saved, vars(config))
        )
        preset = f"--preset {saved['preset']}" if saved.get("preset") else "--preset none"
        begun = f", begun with {preset}" if saved.get("preset") != config.preset else ""
        raise UsageError(
            f"{run_dir} holds a run with {old}, not {new}{begun}; "
            f"give {old} to go on with it, or another --run-dir for a run of its own"
        )
