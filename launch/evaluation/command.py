"""`deltabeast eval`: evaluate a saved agent, print the result beside published ones, and keep it as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import torch
from gymnasium.vector import VectorEnv
from rich.console import Console

from ...agents import Agent, AgentSpec
from ...agents.cpu.agent import FastAgent
from ...agents.cpu.verify import verified_for_acting
from ...envs import EnvironmentFailed, available_cores
from ..config import EvalConfig
from ..errors import Incomplete, RunError, UsageError, one_line, require
from ..output import say
from ..processes.machine import prepare_process, resolve_device
from ..runs import published
from ..runs.consent import check_env
from ..sharing.hub import run_here
from ..training.plan import observation_notes
from ..units import count
from .altered_memory import AlteredMemory
from .certificate import Certificate, certify
from .environments import check_fit, choose_protocol, env_maker
from .evaluate import evaluate
from .loading import Loaded, load
from .memory_ops import MemoryOp, parse_op
from .play import Player, RandomAgent
from .progress import progress
from .recording import record_games
from .report import comparable_scores, print_certificate, print_results, write_results
from .returns import Evaluation, paired_difference
from .stretch import Stretch, take_stretch
from .video import need_libraries
from .why import check_core
from .why_page import write_why

MakeEnv = Callable[[int], VectorEnv]


def evaluate_run(config: EvalConfig, console: Console | None = None) -> Path:
    """Evaluate the agent of a run (or of a checkpoint directory); return the path of the JSON it writes.

    Raises UsageError, with nothing written, if something in this is wrong; Incomplete, with the result
    written, if not all episodes ended, and RunError if none did; EnvironmentFailed.
    """
    prepare_process()
    # A pipe has no width; the table needs more than the 80 columns that it is taken for.
    console = console or Console(width=None if sys.stdout.isatty() else 160)
    _check(config)
    ops = _memory_ops(config)
    run = run_here(config.run)
    loaded = load(run, config.checkpoint, config.trust_core, lambda text: say(console, text))
    spec = loaded.agent.spec
    for op in ops:
        op.check(loaded.agent.core, spec.core)
    donors = _donors(config, ops, loaded.agent, console)
    if spec.game is None:
        check_env(spec.env_id or "", spec.env_options, config.trust_env, loaded.checkpoint)
    if config.video and spec.game is None:
        raise UsageError(f"--video {config.video}: videos are of Atari games, not of {spec.env_id}; omit it")
    if config.video:
        need_libraries()
    try:
        device = resolve_device(config.device)
        protocol = choose_protocol(spec, config.protocol, config.flicker, config.blink)
        processes = _process_count(device, config.episodes * config.repeats)
        make_env = env_maker(spec, protocol, num_threads=1 if processes > 1 else None)
        with closing(make_env(1)) as env:  # what is wrong with it is said before anything is written
            check_fit(spec, env)
            player, notes = _player(config, loaded, env, device)
            if config.why:
                check_core(loaded.agent)
            notes += observation_notes(env, spec)
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(str(error)) from error
    if not os.access(loaded.run_dir, os.W_OK):
        raise UsageError(
            f"cannot write to {loaded.run_dir / 'eval'}; make it writable or evaluate a copy of the run"
        )

    say(console, _title(config, loaded, protocol))
    if protocol != spec.protocol:
        say(console, f"this agent was trained under {spec.protocol}, not {protocol}")
    for note in notes:
        say(console, note)
    results = _play(config, loaded, player, donors, protocol, make_env, device, processes, console)
    for note in dict.fromkeys(note for result in results.values() for note in result.notes):
        say(console, f"note: {note}")
    if not results["trained"].life.summary():
        raise RunError(
            f"no episode ended within --max-episode-steps {config.max_episode_steps}; {_limit(spec)}"
        )
    scores = comparable_scores(spec, protocol, config.sample)
    print_results(results, spec, protocol, scores, console)
    stretch = certificate = None
    if config.certificate:
        try:
            stretch = take_stretch(config, loaded.agent, player, make_env, device, console, "certificate")
        except EnvironmentFailed as error:  # what was evaluated is saved all the same
            say(console, f"no certificate: {one_line(error)}")
        else:
            certificate = make_certificate(stretch, results, console)
    target = write_results(config, results, loaded, protocol, scores, certificate)
    say(console, f"saved as {target}")
    if config.video and protocol is not None:
        record_games(config, loaded, protocol, console)
    if config.why:
        stretch = stretch or take_stretch(config, loaded.agent, player, make_env, device, console, "why")
        write_why(config, loaded, protocol, stretch, console)
    if missing := sum(result.missing for result in results.values()):
        wanted = config.episodes * config.repeats * len(results)
        raise Incomplete(
            f"{missing} of {wanted} episodes are in no score, since some did not end within "
            f"--max-episode-steps {config.max_episode_steps}; {_limit(spec)}",
            target,
        )
    return target


def _limit(spec: AgentSpec) -> str:
    """Say how to make episodes end, or go on for longer."""
    give = (
        "train with --env-options max_episode_steps N"
        if spec.game is None
        else "choose a --protocol with a time limit"
    )
    return f"the agent may wait for ever: {give}, or raise --max-episode-steps"


def _check(config: EvalConfig) -> None:
    """Raise UsageError for numbers out of range."""
    require(config, "episodes", "repeats", "max_episode_steps", "forget_every", least=1)
    require(config, "video", "seed", least=0)
    require(config, "why", least=0, most=100)
    require(config, "flicker", "blink", least=0, below=1)


def _memory_ops(config: EvalConfig) -> list[MemoryOp]:
    """Return the operations on the memory, each once, those of --forget-every first. Raises UsageError."""
    ops = [parse_op(word) for word in config.memory]
    for word, op in zip(config.memory, ops, strict=True):
        if ops.count(op) > 1:
            raise UsageError(f"--memory: {word} is given twice; give it once")
    every = sorted({*config.forget_every, *([1] if config.certificate else [])})
    return list(dict.fromkeys([*(MemoryOp("wipe-every", n) for n in every), *ops]))


def _donors(
    config: EvalConfig, ops: Sequence[MemoryOp], agent: Agent, console: Console
) -> dict[MemoryOp, Agent | None]:
    """Load the other agent of each operation that needs one. Raises UsageError, RunError."""
    donors: dict[MemoryOp, Agent | None] = dict.fromkeys(ops)
    for op in ops:
        if op.run:
            try:
                found = load(run_here(op.run), "latest", config.trust_core, lambda text: say(console, text))
            except UsageError as error:
                raise UsageError(f"--memory {op}: {error}") from error
            op.check_donor(found.agent, agent)
            donors[op] = found.agent
    return donors


def _process_count(device: torch.device, episodes: int) -> int:
    """Choose one process per core on a CPU, unless the episodes are too few to pay for starting them."""
    return available_cores() if device.type == "cpu" and episodes >= 50 else 1


def _player(
    config: EvalConfig, loaded: Loaded, env: VectorEnv, device: torch.device
) -> tuple[Player, list[str]]:
    """Return what acts as the agent does, as fast as its device can, and notes for the user."""
    agent = loaded.agent.to(device).eval()
    if device.type != "cpu" or config.fused == "off":
        return agent, []
    observation, _ = env.reset(seed=config.seed)
    parts, notes = verified_for_acting(agent, torch.from_numpy(observation))
    return FastAgent(agent, parts) if parts else agent, notes


def _play(
    config: EvalConfig,
    loaded: Loaded,
    player: Player,
    ops: Mapping[MemoryOp, Agent | None],
    protocol: str | None,
    make_env: MakeEnv,
    device: torch.device,
    processes: int,
    console: Console,
) -> dict[str, Evaluation]:
    """Evaluate the agent, and if asked random play and the agent with its memory changed, by player.

    `ops` have the donors of those that need one.
    """
    spec = loaded.agent.spec
    players: dict[str, Player] = {"trained": player}
    if config.random:
        players["random"] = RandomAgent(spec.num_actions)
    for op, donor in ops.items():
        donor = donor and donor.to(device).eval()
        players[op.player_name] = AlteredMemory(players["trained"], loaded.agent.core, op, donor)
    results = {}
    for name, player in players.items():
        with progress(console, name) as tell:
            results[name] = evaluate(
                player,
                make_env,
                config.episodes,
                config.repeats,
                greedy=not config.sample and name != "random",
                seed=config.seed,
                max_episode_steps=config.max_episode_steps,
                discard_negative=protocol == published.PROTOCOL and spec.game in published.NO_NEGATIVE,
                device=device,
                progress=tell,
                processes=processes,
            )
    return results


def make_certificate(
    stretch: Stretch, results: Mapping[str, Evaluation], console: Console
) -> Certificate | None:
    """Examine the agent on its play, and print what is found; None if that fails, which is said."""
    wiped = results[MemoryOp("wipe-every", 1).player_name]
    cost = paired_difference(wiped, results["trained"], "life")
    pairs = sum(map(len, wiped.life.returns))

    def tell(question: str) -> None:
        say(console, f"certificate: {question}")

    try:
        tell(f"what does wiping the memory change in {count(len(stretch.play.actions), 'step')}?")
        certificate = certify(stretch.agent, stretch.examination, cost, pairs, tell)
    except Exception as error:  # of a core of one's own; what was evaluated is saved all the same
        say(console, f"no certificate: {one_line(error)}")
        return None
    print_certificate(certificate, console)
    return certificate


def _title(config: EvalConfig, loaded: Loaded, protocol: str | None) -> str:
    spec: AgentSpec = loaded.agent.spec
    parts = [
        spec.game or spec.env_id or "",
        spec.core,
        f"step {loaded.step:,}",
        *([protocol] if protocol else []),
        f"{config.repeats} x {config.episodes} episodes",
        "sampled actions" if config.sample else "greedy",
    ]
    return " · ".join(parts)
