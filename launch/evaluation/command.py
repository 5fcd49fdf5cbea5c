"""`deltabeast eval`: evaluate a saved agent, print the result beside published ones, and keep it as JSON."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import VectorEnv
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...agents import Agent, AgentSpec, CheckpointError, load_agent, load_latest, resolve_checkpoint
from ...envs import available_cores, find_protocol, game_info, human_normalized, make_vector_env
from ...envs.atari import AtariGames
from ..errors import RunError, UsageError
from ..processes.machine import prepare_process, resolve_device
from ..runs import published
from ..runs.consent import check_env
from ..runs.directory import no_run, versions
from ..runs.log import write_atomically
from ..runs.manifest import saved_step
from ..tables import evaluation_notes, evaluation_table
from ..training.plan import left_out_notes
from ..units import parse_steps
from .evaluate import Evaluation, Player, RandomAgent, evaluate
from .video import need_libraries, play_game, write_video

_LINE_SECONDS = 15.0
"""Between two lines of progress where there is no terminal."""


def evaluate_run(
    run: Path,
    checkpoint: str = "latest",
    protocol: str | None = None,
    episodes: int = 30,
    repeats: int = 5,
    sample: bool = False,
    random: bool = False,
    seed: int = 1,
    device: str = "auto",
    trust_core: str | None = None,
    trust_env: str | None = None,
    video: int = 0,
    max_episode_steps: int = 1_000_000,
    console: Console | None = None,
) -> Path:
    """Evaluate the agent of a run (or of a checkpoint directory); the path of the JSON it writes.

    Raises UsageError, with nothing written, if something in this is wrong.
    """
    prepare_process()
    console = console or Console()
    for name, value in (
        ("episodes", episodes),
        ("repeats", repeats),
        ("max-episode-steps", max_episode_steps),
    ):
        if value < 1:
            raise UsageError(f"--{name} {value}; it must be at least 1")
    if video < 0:
        raise UsageError(f"--video {video}; it must not be negative")
    if seed < 0:
        raise UsageError(f"--seed {seed}; it must not be negative")
    run_dir, agent, path, step = _load(run, checkpoint, trust_core, console)
    spec = agent.spec
    if spec.game is None:
        check_env(spec.env_id or "", trust_env, path)
    if video and spec.game is None:
        raise UsageError(f"--video {video}: videos are of Atari games, not of {spec.env_id}; omit it")
    if video:
        need_libraries()
    try:
        place = resolve_device(device)
        rules = _protocol(spec, protocol)
        processes = _processes(place, episodes * repeats)
        make_env = _env_maker(spec, rules, num_threads=1 if processes > 1 else None)
        with closing(make_env(1)) as env:  # what is wrong with it is said before anything is written
            _check_fit(spec, env)
            left_out = left_out_notes(env)
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(str(error)) from error
    folder = run_dir / "eval"
    if not os.access(run_dir, os.W_OK):
        raise UsageError(f"cannot write to {folder}; make it writable or evaluate a copy of the run")

    lives = rules is not None and find_protocol(rules).life_ends_episode
    no_negative = rules == published.PROTOCOL and spec.game in published.NO_NEGATIVE
    console.print(_title(spec, step, rules, episodes, repeats, sample), soft_wrap=True, highlight=False)
    if rules != spec.protocol:
        _say(console, f"this agent was trained under {spec.protocol}, not {rules}")
    for note in left_out:
        _say(console, note)

    players: dict[str, Player] = {"trained": agent.to(place).eval()}
    if random:
        players["random"] = RandomAgent(spec.num_actions)
    results = {}
    for name, player in players.items():
        with _progress(console, name) as progress:
            results[name] = evaluate(
                player,
                make_env,
                episodes,
                repeats,
                greedy=not sample and name == "trained",
                seed=seed,
                max_episode_steps=max_episode_steps,
                discard_negative=no_negative,
                device=place,
                progress=progress,
                processes=processes,
            )

    comparable = rules == published.PROTOCOL and spec.game is not None and not sample
    scores = published.published_scores(spec.game or "", spec.core) if comparable else {}
    normalized = {name: _normalized(spec, result) for name, result in results.items()}
    console.print(evaluation_table(results, scores, lives, normalized))
    notes = evaluation_notes(results, lives)
    if scores and spec.core_options:
        notes.append(f"published scores are of the default {spec.core}; this agent's has {spec.core_options}")
    if scores and spec.game in published.FEWER_ACTIONS and spec.num_actions != published.DEFAULT_ACTIONS:
        notes.append(
            f"published agents of {spec.game} chose among its first {published.DEFAULT_ACTIONS} actions, "
            f"this one among {spec.num_actions}"
        )
    for note in notes:
        _say(console, note)

    now = datetime.now(UTC)
    content = {
        "game": spec.game,
        "env_id": spec.env_id,
        "core": spec.core,
        "agent": asdict(spec),
        "protocol": rules,
        "trained_protocol": spec.protocol,
        "checkpoint": str(path),
        "step": step,
        "seed": seed,
        "greedy": not sample,
        "episodes": episodes,
        "repeats": repeats,
        "time": now.isoformat(timespec="seconds"),
        "versions": versions(),
        "human_normalized": normalized,
        "published": {f"{millions}M": score._asdict() for millions, score in scores.items()},
        "results": {name: _as_json(result) for name, result in results.items()},
    }
    target = folder / f"{rules or 'env'}-{step}-{now:%Y%m%dT%H%M%S.%fZ}.json"
    try:
        write_atomically(target, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise RunError(
            f"cannot write {target}: {os.strerror(error.errno or 0)}; the result is above"
        ) from error
    _say(console, f"saved as {target}")
    if video and rules is not None:
        _record(agent, video, run_dir, rules, step, seed, not sample, max_episode_steps, console)
    return target


def _record(
    agent: Agent,
    games: int,
    run_dir: Path,
    protocol: str,
    step: int,
    seed: int,
    greedy: bool,
    max_steps: int,
    console: Console,
) -> None:
    """Record games under RUN/videos, each from a seed of its own."""
    spec = agent.spec
    assert spec.game is not None
    full = _full_action_set(spec)
    how = f"{spec.core}, step {step:,}, {protocol}, {'greedy' if greedy else 'sampled'}"
    title = spec.game.replace("_", " ").title()
    for number in range(1, games + 1):
        play, colour = (
            AtariGames(spec.game, 1, protocol, 1, full, colour=colour) for colour in (False, True)
        )
        target = run_dir / "videos" / f"{protocol}-{step}-seed-{seed}-game-{number}.mp4"
        with _progress(console, f"video {number}") as progress:
            trace = play_game(agent, play, seed + 1000 * number, greedy, max_steps)
            skip = find_protocol(protocol).frame_skip
            write_video(target, trace, colour, title, how, skip, progress)
        _say(console, f"a game of its own: score {trace.score[-1]:,.0f}, saved as {target}")


def _load(run: Path, which: str, trust_core: str | None, console: Console) -> tuple[Path, Agent, Path, int]:
    """The run's directory, the agent, its checkpoint and that checkpoint's step."""
    try:
        if not any((run / name).exists() for name in ("config.json", "checkpoints", "manifest.json")):
            raise FileNotFoundError(no_run(run))
        if (run / "manifest.json").is_file():
            if which != "latest":
                raise ValueError(f"--checkpoint {which}: {run} is one checkpoint; give its run or omit it")
            run_dir = run.parent.parent if run.parent.name == "checkpoints" else run
            return run_dir, load_agent(run, trust_core=trust_core), run, saved_step(run)
        if which == "latest":
            with warnings.catch_warnings(record=True) as damage:
                warnings.simplefilter("always")
                found = load_latest(run, trust_core)
            for warning in damage:
                _say(console, f"warning: {warning.message}")
            if found is not None:
                return run, found[0], found[2].path, found[2].step
        path = resolve_checkpoint(run, _wanted(which))
        return run, load_agent(path, trust_core=trust_core), path, saved_step(path)
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from error
    except CheckpointError as error:
        raise RunError(str(error)) from error


def _wanted(which: str) -> str | int:
    """A number of agent steps, or else a word or path as it is."""
    try:
        return parse_steps(which)
    except ValueError:
        return which


def _protocol(spec: AgentSpec, wanted: str | None) -> str | None:
    """The protocol to play under; None for environments that have none."""
    if spec.game is None:
        if wanted is not None:
            raise ValueError(
                f"--protocol {wanted}: protocols are for Atari games, not {spec.env_id}; omit it"
            )
        return None
    return wanted or spec.protocol or published.PROTOCOL


def _processes(device: torch.device, episodes: int) -> int:
    """A GPU is one for all; and a process takes seconds to start, which few episodes are not worth."""
    return available_cores() if device.type == "cpu" and episodes >= 50 else 1


def _env_maker(spec: AgentSpec, protocol: str | None, num_threads: int | None) -> Callable[[int], VectorEnv]:
    """Environments with the agent's own actions, whatever the protocol would offer."""
    if spec.game is None:
        return partial(_make_envs, {"env_id": spec.env_id})
    options = {"game": spec.game, "protocol": protocol or published.PROTOCOL, "num_threads": num_threads}
    return partial(_make_envs, {**options, "full_action_set": _full_action_set(spec)})


def _make_envs(options: dict[str, Any], count: int) -> VectorEnv:
    return make_vector_env(num_envs=count, **options)


def _check_fit(spec: AgentSpec, env: VectorEnv) -> None:
    """Raise ValueError if an environment other than a game is not what the agent was trained in."""
    if spec.game is not None:  # _full_action_set looks at those
        return
    shape, actions = env.single_observation_space.shape, int(env.single_action_space.n)  # type: ignore[attr-defined]
    if (shape, actions) != (spec.observation_shape, spec.num_actions):
        raise ValueError(
            f"the agent was trained with observations of shape {spec.observation_shape} and "
            f"{spec.num_actions} actions, {spec.env_id} has {shape} and {actions}; evaluate it with the "
            "versions it was trained with"
        )


def _full_action_set(spec: AgentSpec) -> bool:
    """Whether the agent plays with all eighteen actions. Raises ValueError if it is not of this game."""
    assert spec.game is not None
    minimal = game_info(spec.game).actions
    fewer = spec.num_actions == published.DEFAULT_ACTIONS < minimal  # it acts with the first ones
    if not fewer and spec.num_actions not in (minimal, 18):
        raise ValueError(
            f"the agent has {spec.num_actions} actions, {spec.game} has {minimal} or 18; "
            "evaluate an agent that was trained on this game"
        )
    return spec.num_actions == 18 != minimal


def _normalized(spec: AgentSpec, result: Evaluation) -> float | None:
    summary = result.game.summary()
    return human_normalized(spec.game, summary.mean) if spec.game and summary else None


def _title(
    spec: AgentSpec, step: int, protocol: str | None, episodes: int, repeats: int, sample: bool
) -> str:
    parts = [
        spec.game or spec.env_id or "",
        spec.core,
        f"step {step:,}",
        *([protocol] if protocol else []),
        f"{repeats} x {episodes} episodes",
        "sampled actions" if sample else "greedy",
    ]
    return " · ".join(parts)


def _as_json(result: Evaluation) -> dict[str, Any]:
    summaries = {kind: getattr(result, kind).summary() for kind in ("life", "game")}
    return {
        **asdict(result),
        "summary": {kind: asdict(summary) if summary else None for kind, summary in summaries.items()},
    }


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)


@contextmanager
def _progress(console: Console, name: str) -> Iterator[Callable[[int, int, int], None]]:
    """What `evaluate` tells its progress to: a bar on a terminal, a line now and then elsewhere."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(name)
            yield lambda done, total, steps: bar.update(
                task, completed=done, total=total, description=f"{name}: {steps:,} steps, episode"
            )
        return
    spoke = time.monotonic()

    def line(done: int, total: int, steps: int) -> None:
        nonlocal spoke
        if time.monotonic() - spoke >= _LINE_SECONDS:
            spoke = time.monotonic()
            _say(console, f"{name}: {done} of {total} episodes, {steps:,} steps")

    yield line
