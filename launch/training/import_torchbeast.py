"""`deltabeast import-torchbeast`: a run made of a checkpoint of TorchBeast or of the recurrent-fwp code."""

from __future__ import annotations

import hashlib
import json
import pickle
import shlex
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...agents import Agent, AgentSpec, CheckpointError, Learner, files, find_checkpoints, save_checkpoint
from ...agents.reading import MAX_BYTES, read_bytes
from ...agents.state_file import check_entries
from ...cores import core_name
from ...envs import DEFAULT_PROTOCOL, canonical_game, game_info
from ..config import ImportConfig, TrainConfig
from ..errors import RunError, UsageError, writing
from ..runs import published
from ..runs.actions import ActionSet, action_set
from ..runs.directory import check_free, claim, eval_command, write_config
from ..runs.presets import preset_config
from ..units import format_steps, parse_steps
from .plan import learner_config
from .progress import Scores
from .randomness import rng_states
from .torchbeast import agent_spec, convert, mean_squares

_FLAGS = {
    "unroll_length": "unroll_length",
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "discounting": "discount",
    "entropy_cost": "entropy_cost",
    "baseline_cost": "baseline_cost",
    "epsilon": "rmsprop_eps",
    "grad_norm_clipping": "max_grad_norm",
}
"""Their flag -> our option."""
_MAY_BE_ZERO = ("discounting", "entropy_cost", "baseline_cost")
_WITHOUT = {"alpha": 0.99, "momentum": 0, "reward_clipping": "abs_one", "dropout": 0.0}
"""Flags that have no option here, and the value that training takes."""


def import_model(config: ImportConfig) -> list[str]:
    """Write the run, and return what to say about it.

    Raises UsageError, with nothing written, if the file or something else in this is wrong.
    """
    content, digest = _load(config.model)
    flags = _mapping(content, "flags")
    weights = content.get("model_state_dict", content)
    spec, notes = _identify(config, weights, flags)
    agent = Agent(spec)
    agent.load_state_dict(convert(weights))
    training = _config(flags, agent, config.run_dir)
    learner = _learner(content, agent, training, notes)
    notes += [
        f"training goes on with {name} {ours}, not {flags[name]}"
        for name, ours in _WITHOUT.items()
        if flags.get(name, ours) != ours
    ]
    source = {
        "file": config.model.name,
        "sha256": digest,
        "flags": {key: str(flags[key]) for key in sorted(flags)},
    }
    path = _write(training, learner, source)
    sizes = "".join(f", {name} {size}" for name, size in spec.core_options.items())
    about = f"{spec.game} · {spec.core}{sizes} · {spec.num_actions} actions · step {learner.steps:,}"
    further = f"; deltabeast info {shlex.quote(str(config.run_dir))} says how to train on"
    return [f"{about}: saved as {path}", *notes, f"next: {eval_command(config.run_dir)}{further}"]


def _identify(config: ImportConfig, weights: Any, flags: Mapping[str, Any]) -> tuple[AgentSpec, list[str]]:
    """Tell from its tensors what agent a file holds; return that, and what to say of it.

    Raises UsageError if it is none, or not the one that was asked for.
    """
    model, run_dir, heads = config.model, config.run_dir, config.num_heads
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UsageError(f"{model} holds no model_state_dict; give a model.tar of PolyBeast or recurrent-fwp")
    if run_dir.exists() and (find_checkpoints(run_dir) or not run_dir.is_dir()):
        raise UsageError(f"{run_dir} exists already; give another --run-dir")
    check_free(run_dir)
    try:
        game = canonical_game(config.game)
        spec = agent_spec(weights, heads or flags.get("num_head"))
        notes = _check_actions(spec.num_actions, game)
    except ValueError as error:
        raise UsageError(f"cannot import {model}: {error}") from error
    core = config.core
    if core is not None and core_name(core) not in (spec.core, spec.core.removesuffix("_large")):
        raise UsageError(f"{model} holds an agent with core {spec.core}, not {core}; give --core {spec.core}")
    if heads is not None and spec.core != "linear_transformer":
        raise UsageError(f"--num-heads {heads}: the tensors of {model} show its heads; omit it")
    if (trained := flags.get("env")) and not _is_game(str(trained), game):
        notes.append(f"check --game: its flags name {trained}, which is not {game}")
    return replace(spec, game=game, protocol=DEFAULT_PROTOCOL), notes


def _learner(content: Mapping[str, Any], agent: Agent, config: TrainConfig, notes: list[str]) -> Learner:
    """Make the learner that goes on where theirs stopped; `notes` hears if its optimizer begins anew."""
    learner = Learner(agent, learner_config(config, parse_steps(config.steps)))
    learner.steps = int(_mapping(content, "stats").get("step", 0))
    learner.version = learner.steps // (config.unroll_length * config.batch_size)
    weights = content.get("model_state_dict", content)
    try:
        squares = mean_squares(_mapping(content, "optimizer_state_dict"), weights)
        state = learner.optimizer.state_dict()
        state["state"] = {
            number: {"step": torch.tensor(float(learner.version)), "square_avg": squares[name]}
            for number, (name, _) in enumerate(learner.agent.named_parameters())
        }
        learner.optimizer.load_state_dict(state)
    except ValueError as error:
        notes.append(f"training goes on with a new optimizer: {error}")
    return learner


def _write(config: TrainConfig, learner: Learner, source: Mapping[str, Any]) -> Path:
    """Write the run; return the path of its checkpoint."""
    run_dir = config.run_dir
    assert run_dir is not None
    state = {
        "learner": learner.state_dict(),
        "scores": Scores().state_dict(),
        "actors": None,
        "device": "cpu",
        **rng_states(torch.device("cpu")),
    }
    with claim(run_dir), writing(run_dir):
        try:
            path = save_checkpoint(run_dir, learner.steps, learner.agent, state, milestone=True)
        except CheckpointError as error:
            raise RunError(str(error)) from error
        write_config(run_dir, config)
        files.write(run_dir / "imported.json", json.dumps(source, indent=2) + "\n")
    return path


def _load(model: Path) -> tuple[dict[str, Any], str]:
    """Load a file; return its content and SHA-256. Only tensors and plain values are ever built from it."""
    try:
        raw = read_bytes(model, MAX_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {model}: {files.why(error)}; give a model.tar") from error
    damaged = f"{model} is damaged or no checkpoint of PyTorch; copy it again"
    # The statistics beside the weights hold NumPy numbers, which old files look for in numpy.core.
    scalar = np.float32(0).__reduce__()[0]
    allowed: list[Any] = [np.dtype, *(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "bool"))]
    allowed += [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    try:
        if zipfile.is_zipfile(model):
            check_entries(zipfile.ZipFile(model), len(raw))
            if zipfile.ZipFile(model).testzip() is not None:
                raise UsageError(damaged)  # torch reads on where a checksum is wrong
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of protocols that it may not read: it says so when it cannot
            content = torch.load(model, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{model} is damaged, or holds more than tensors and plain values, which is never loaded; "
            "give a model.tar of PolyBeast or recurrent-fwp"
        ) from error
    except Exception as error:  # whatever bytes there are, torch may stumble over them in any way
        raise UsageError(damaged) from error
    if not isinstance(content, dict):
        raise UsageError(f"{model} holds a {type(content).__name__}; give a model.tar of PolyBeast")
    return content, hashlib.sha256(raw).hexdigest()


def _check_actions(num_actions: int, game: str) -> list[str]:
    """Return what to say of the agent's actions. Raises ValueError if it cannot be of this game."""
    available, which = game_info(game).actions, action_set(game, num_actions)
    if which is ActionSet.OWN:
        return []
    if which is not ActionSet.FIRST:
        raise ValueError(f"its policy has {num_actions} actions, {game} has {available}; give its own --game")
    return [
        f"it chooses among the first {num_actions} of {available} actions: evaluation keeps to them, and so "
        f"does training with --num-actions {num_actions}"
    ]


def _mapping(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of the file; empty if there is none."""
    part = content.get(name)
    return part if isinstance(part, dict) else {}


def _is_game(name: str, game: str) -> bool:
    try:
        return canonical_game(name) == game
    except ValueError:
        return False


def _config(flags: Mapping[str, Any], agent: Agent, run_dir: Path) -> TrainConfig:
    """Return the options of a training run that goes on as theirs did."""
    numbers = {
        name: value
        for name, value in flags.items()
        if isinstance(value, int | float) and (value > 0 or (value == 0 and name in _MAY_BE_ZERO))
    }
    same: dict[str, Any] = {ours: numbers[theirs] for theirs, ours in _FLAGS.items() if theirs in numbers}
    which = action_set(str(agent.spec.game), agent.spec.num_actions)
    config = replace(
        preset_config("published"),
        game=agent.spec.game,
        core=agent.spec.core,
        core_options=agent.spec.core_options,
        stem=agent.spec.stem,  # type: ignore[arg-type]
        protocol=DEFAULT_PROTOCOL,
        num_actions=published.DEFAULT_ACTIONS if which is ActionSet.FIRST else None,
        run_dir=run_dir,
        **same,
    )
    config.num_envs = config.batch_size
    if "total_steps" in numbers:
        config.steps = format_steps(int(numbers["total_steps"]))
    return config
