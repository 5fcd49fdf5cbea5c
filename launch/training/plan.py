"""From the options of `train` to what a run is built of; wrong options are refused here."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from ...agents import Agent, AgentSpec, Learner, LearnerConfig, default_stem
from ...agents.make_executor import make_executor
from ...agents.sampling import EnvShard
from ...agents.shapes import build_on_meta, count_numbers
from ...cores.registry import read_core_options
from ...envs import DEFAULT_PROTOCOL, Protocol, canonical_game, game_info, make_vector_env, varied
from ...envs.env_shard import ShardedEnv
from ...envs.finding import find_spec
from ..config import TrainConfig
from ..errors import RunError, require, require_positive, wrong_input
from ..processes.child import ChildDied
from ..processes.env_processes import ProcessEnvs, process_envs
from ..processes.env_servers import EnvServers
from ..processes.machine import check_memory, memory_for, own_cpus
from ..processes.supervision import slow
from ..runs.actions import action_set
from ..runs.observations import reading
from ..runs.options import DESCRIBING, given_only_for
from ..units import parse_steps
from .env_options import read_env_options
from .randomness import seed_everything
from .resume import restore_former_options
from .reuse import check_replay, minibatch_size, num_replayed

PAPER_SWEEP = "paper20"
"""The --game that stands for all games of the publication."""

FEW_CORES = 4
"""On fewer cores the learner and the actors of this process would take too many of them from the games."""
FEW_ENVS = 4
"""A process has at least this many environments other than games: a step of theirs may take no longer than
waking one, which a game's takes many times."""

LARGEST = 65_536
"""More environments, or steps of an unroll, are a slip of the keyboard and would take all memory."""


def check(config: TrainConfig) -> None:
    """Raise ValueError for invalid options that are not caught elsewhere."""
    if config.engine == "local" and (given := given_only_for("ray", config)):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{flags}: only with --engine ray; add that, or leave {flags} out")
    for name in ("steps", "milestone_steps", "eval_every", "replay_buffer"):
        try:
            parse_steps(getattr(config, name) or "1")
        except ValueError as error:
            raise ValueError(f"--{name.replace('_', '-')}: {error}") from error
    processes = ("num_envs", "num_actors", "num_workers", "threads")
    sizes = ("batch_size", "minibatch_size", "passes", "unroll_length")
    require(config, *processes, *sizes, least=1, most=LARGEST)
    if not _fit(config.num_envs, config.batch_size):
        raise ValueError(
            f"--num-envs {config.num_envs} and --batch-size {config.batch_size}: "
            "one must be a multiple of the other"
        )
    if config.batch_size % minibatch_size(config):
        raise ValueError(
            f"--minibatch-size {config.minibatch_size}: it must divide --batch-size {config.batch_size}"
        )
    check_replay(config)
    if config.game is None and config.env is None:
        there = config.run_dir if config.run_dir and (config.run_dir / "config.json").is_file() else None
        raise ValueError(
            "no environment given; say --game gopher, or --env CartPole-v1 for any Gymnasium one"
            + (
                f"; `deltabeast info {shlex.quote(str(there))}` prints the command that goes on with it"
                if there
                else ""
            )
        )
    if config.game is not None and config.env is not None:
        raise ValueError(f"--game {config.game} and --env {config.env}: give one of them")
    for name, default in (("protocol", None), ("frame_stack", 4), ("flicker", 0.0), ("blink", 0.0)):
        if config.game is None and (value := getattr(config, name)) != default:
            raise ValueError(
                f"--{name.replace('_', '-')} {value}: it is for Atari by --game; omit it with --env"
            )
    if config.game is None and config.num_actions is not None:
        raise ValueError(
            f"--num-actions {config.num_actions}: only actions of --game are cut, not of --env; omit it"
        )
    if config.game is not None and config.observations not in ("auto", "plain"):
        raise ValueError(f"--observations {config.observations}: games show pictures anyway; omit it")
    require(config, "frame_stack", least=1, most=Protocol.frame_stack)
    require(config, "flicker", "blink", least=0, below=1)
    if config.deterministic and config.overlap == "on":
        raise ValueError("--deterministic runs in lockstep, which excludes --overlap on; omit one of them")
    if config.deterministic and config.compile == "on":
        raise ValueError("--deterministic excludes --compile on, which may choose other code at every start")
    require(config, "seed", least=0, most=2**31 - 1)
    require(config, "discount", "vtrace_lambda", least=0, most=1)
    require_positive(config, "learning_rate", "rmsprop_eps", "adam_eps", "max_grad_norm", "reward_scale")
    not_negative = ("entropy_cost", "baseline_cost", "reward_clip", "checkpoint_minutes", "log_seconds")
    require(config, *not_negative, "clip_ratio", "profile", least=0)
    if config.video and (config.eval_every is None or config.game is None):
        raise ValueError("--video records games of --game at each --eval-every; omit it, or give both")


def resolve(config: TrainConfig) -> None:
    """Check the options, fill in those that follow from others or from the run to go on with, and seed this
    process.

    Raises UsageError.
    """
    with wrong_input():
        check(config)
        if config.game is not None:
            config.game = canonical_game(config.game)
            config.protocol = config.protocol or DEFAULT_PROTOCOL
            if config.num_actions is not None and action_set(config.game, config.num_actions) is None:
                own = game_info(config.game).actions
                raise ValueError(
                    f"--num-actions {config.num_actions}: {config.game} has {own} actions; omit it"
                )
        restore_former_options(config)
        config.core_options = read_core_options(config.core, config.core_options)
        config.env_options = read_env_options(config.game, config.env, config.env_options)
    seed_everything(config.seed, config.deterministic)


def worker_count(config: TrainConfig, device: torch.device, cpus: int) -> int:
    """Return how many processes act and learn side by side.

    Raises ValueError if the requested count is impossible.

    More than one only where a CPU does all the work in turns: a GPU cannot be split, and one order of
    summation is what `--deterministic` promises.
    """
    reasons = {
        f"--device {device.type}": device.type != "cpu",
        "--deterministic": config.deterministic,
        "--overlap on": config.overlap == "on",
        f"--num-actors {config.num_actors}": config.num_actors > 1,
    }
    alone = next((flag for flag, given in reasons.items() if given), None)
    if config.num_workers is None:
        shared = math.gcd(config.num_envs, minibatch_size(config), num_replayed(config))
        return 1 if alone else max(n for n in range(1, min(cpus, shared) + 1) if shared % n == 0)
    count = config.num_workers
    if count > 1 and alone:
        raise ValueError(f"--num-workers {count}: {alone} leaves it at 1; omit one of them")
    if config.num_envs % count or minibatch_size(config) % count:
        each = "--batch-size" if config.minibatch_size is None else "--minibatch-size"
        raise ValueError(
            f"--num-workers {count}: it must divide --num-envs {config.num_envs} and "
            f"{each} {minibatch_size(config)}"
        )
    if (replayed := num_replayed(config)) % count:
        raise ValueError(
            f"--num-workers {count}: it must divide the {replayed} trajectories that --replay-ratio "
            f"{config.replay_ratio:g} adds to each step of the optimizer"
        )
    if config.threads is not None and count > config.threads:
        raise ValueError(f"--num-workers {count}: each takes one of --threads {config.threads}; give more")
    return count


def _fit(num_envs: int, batch_size: int) -> bool:
    """Return whether unrolls of `num_envs` environments can be split or concatenated into batches."""
    return max(num_envs, batch_size) % min(num_envs, batch_size) == 0


def overlaps(config: TrainConfig, device: torch.device) -> bool:
    """Return whether actors act while the learner learns; on CPUs both would fight for the same cores."""
    return _is_on(config.overlap, config, device)


def compiles(config: TrainConfig, device: torch.device) -> bool:
    """Return whether the learner's work is compiled. On CPUs it does not help; a GPU waits for games most of
    the time, and compiling would only put off the first update (results/gpu)."""
    auto = config.compile == "auto"
    return not (auto and config.game) and _is_on(config.compile, config, device)


def _is_on(asked: str, config: TrainConfig, device: torch.device) -> bool:
    """Resolve on, off or auto, which is on with a GPU; `--deterministic` turns it off."""
    return asked != "off" and not config.deterministic and (asked == "on" or device.type == "cuda")


def returns_discount(config: TrainConfig) -> float | None:
    """Return the discount of the actors' return statistics, if enabled."""
    return config.discount if config.normalise_rewards else None


def env_groups(config: TrainConfig, device: torch.device) -> int:
    """Return into how many groups each actor's environments are split: two on a GPU where they fit, so that
    the games of one are emulated while actions are chosen for the other."""
    fits = config.num_envs % 2 == 0 and _fit(config.num_envs // 2, config.batch_size)
    return 2 if device.type == "cuda" and overlaps(config, device) and fits else 1


def env_processes(
    config: TrainConfig, device: torch.device, num_envs: int, groups: int, cores: int
) -> tuple[int, int]:
    """Return how many sets of how many processes step `groups` of `num_envs` environments on `cores`, a group
    by one set each; 0 and 0 if this process does.

    On 16 cores a process of one thread on each has played 1.0 to 1.9 times as many games as a pool of threads
    (results/gpu). On a CPU the workers have a core each already. An own vector form is not cut: the seeds of
    its environments may depend on their number.
    """
    if device.type != "cuda" or cores < FEW_CORES:
        return 0, 0
    if config.game is None and find_spec(config.env or "").vector_entry_point is not None:
        return 0, 0
    least = 1 if config.game is not None else FEW_ENVS
    most = min(cores, num_envs // least)
    # As few as are no slower: each step takes as long as the process with the most environments.
    processes = math.ceil(num_envs / math.ceil(num_envs / most)) if most > 1 else 0
    return (min(groups, cores // processes), processes) if processes else (0, 0)


def per_process(config: TrainConfig, count: int) -> TrainConfig:
    """Return the options of one of `count` processes that share a run."""
    return replace(
        config,
        num_envs=config.num_envs // count,
        batch_size=config.batch_size // count,
        minibatch_size=minibatch_size(config) // count,
        replay_buffer=str(parse_steps(config.replay_buffer) // count),
    )


def env_shard(config: TrainConfig, count: int, index: int) -> EnvShard | None:
    """Return which of the run's environments are those of process `index` of `count`.

    Shards are interleaved, so that each batch covers the same environments for any `count`. None for a single
    process.
    """
    if count == 1:
        return None
    per_batch = min(config.num_envs, config.batch_size)
    shares = np.arange(config.num_envs).reshape(-1, count, per_batch // count)
    return EnvShard(shares[:, index].ravel(), config.num_envs)


def protocol_name(config: TrainConfig) -> str:
    """Name the protocol under which games are played. Raises ValueError for an invalid stack,
    flicker or blinking."""
    return varied(config.protocol or DEFAULT_PROTOCOL, config.frame_stack, config.flicker, config.blink)


def make_env(config: TrainConfig, num_threads: int | None, shard: EnvShard | None = None) -> VectorEnv:
    """Make the environments of a run, or a process's share of them, `shard`."""
    with slow_to_make(config):
        env: VectorEnv = _env_maker(config, num_threads)(num_envs=config.num_envs)
    return ShardedEnv(env, *shard) if shard else env


def start_env_servers(
    config: TrainConfig, sets: int, processes: int, actors: int, stack: ExitStack
) -> list[EnvServers]:
    """Start so many sets of `processes` that make the environments of each actor, one set those of a group;
    `stack` ends them."""
    make, cpus = _env_maker(config, 1), own_cpus(sets * processes)
    servers = []
    for index in range(sets):
        groups = len(range(index, actors, sets))
        theirs = cpus and cpus[index * processes :][:processes]
        each = EnvServers(make, config.num_envs, processes, groups, theirs)
        servers.append(stack.enter_context(closing(each)))
    return servers


def await_process_envs(servers: Sequence[EnvServers], stack: ExitStack) -> list[ProcessEnvs]:
    """Wait for the environments of each actor, which `stack` closes. Observations are overwritten by the next
    step.

    Raises RunError for a process that died.
    """
    try:
        return [
            stack.enter_context(closing(env)) for each in servers for env in process_envs(each, copy=False)
        ]
    except ChildDied as error:
        raise RunError(str(error)) from None


def slow_to_make(config: TrainConfig) -> AbstractContextManager[None]:
    """Say that making the environments takes long, if it does."""
    return slow(f"{config.game or config.env}: making it, and a first reset,")


def _env_maker(config: TrainConfig, num_threads: int | None) -> Callable[..., VectorEnv]:
    return partial(
        make_vector_env,
        config.game,
        env_id=config.env,
        protocol=protocol_name(config),
        num_threads=num_threads,
        observations=config.observations,
        options=config.env_options,
        full_action_set=None if config.num_actions is None else False,
        num_actions=config.num_actions,
    )


def agent_spec(config: TrainConfig, env: VectorEnv) -> AgentSpec:
    """Specify the agent that fits the environment."""
    shape = tuple(env.single_observation_space.shape or ())
    return AgentSpec(
        observation_shape=shape,
        num_actions=int(env.single_action_space.n),  # type: ignore[attr-defined]
        core=config.core,
        stem=default_stem(shape) if config.stem == "auto" else config.stem,
        core_options=dict(config.core_options),
        game=config.game,
        env_id=config.env,
        protocol=protocol_name(config) if config.game else None,
        normalised=_normalised(config, env),
        observations="plain" if config.game else env.unwrapped.reading,  # type: ignore[attr-defined]
        env_options=dict(config.env_options),
        reward_scale=config.reward_scale,
        reward_clip=config.reward_clip,
        normalise_values=config.normalise_values,
    )


def _normalised(config: TrainConfig, env: VectorEnv) -> tuple[int, ...]:
    """List the entries of a vector, or the channels of a picture, that are normalised. Raises ValueError."""
    space = env.single_observation_space
    assert isinstance(space, Box)
    asked = config.normalise_observations
    if len(space.shape) == 3:
        return tuple(range(space.shape[0])) if asked == "on" else ()
    if asked == "off" or (asked == "auto" and config.observations == "plain"):
        return ()
    chosen = np.ones(space.shape, bool) if asked == "on" else np.isinf(space.high)
    return tuple(np.flatnonzero(chosen).tolist())


def make_agent(config: TrainConfig, env: VectorEnv) -> Agent:
    """Make the agent of a run. Raises ValueError for invalid options of the core."""
    with memory_for(f"core {config.core}"):
        return Agent(checked_spec(config, env))


def checked_spec(config: TrainConfig, env: VectorEnv) -> AgentSpec:
    """Specify the agent that fits the environment. Raises ValueError for invalid options or one too large."""
    spec = agent_spec(config, env)
    if ":" in spec.core:  # a custom core may not support the meta device
        return spec
    with memory_for(f"core {config.core}"):
        agent = build_on_meta(lambda: Agent(spec))
        numbers = count_numbers(agent.state_dict().values())
        # Beside each weight there are its gradient and its mean square, and Adam's mean; all are float32.
        copies = 4 if config.optimizer == "adam" else 3
        needed = 4 * copies * numbers + 4 * count_numbers(agent.initial_state(config.num_envs))
    check_memory(f"core {config.core}", needed)
    return spec


def observation_notes(env: VectorEnv, spec: AgentSpec) -> list[str]:
    """Say what the environment's observations are taken for, and warn of what is kept from the agent."""
    describes = not spec.game or spec.normalised
    notes = [f"observations are read as {reading(vars(spec))}"] if describes else []
    if parts := getattr(env.unwrapped, "left_out", ()):
        notes.append(f"warning: left out of the observations, not being numbers: {', '.join(parts)}")
    return notes


def make_learner(
    agent: Agent, config: TrainConfig, total_steps: int, shares_batches: bool = False
) -> Learner:
    """Make the learner of an agent that is on its device; `shares_batches`: with learners elsewhere."""
    return Learner(
        agent,
        learner_config(config, total_steps),
        partial(
            make_executor,
            # Warming up draws random numbers, so that a resume would not repeat what a graph did.
            # Nor does a graph contain a sum over processes, as of the moments of advantages.
            capture=not config.deterministic and not (shares_batches and config.normalise_advantages),
            compile=compiles(config, agent.policy.weight.device),
        ),
    )


def learner_config(config: TrainConfig, total_steps: int) -> LearnerConfig:
    """Return what a learner is told: the options of the same names."""
    same = {field.name for field in fields(LearnerConfig)} & vars(config).keys()
    return LearnerConfig(total_steps, **{name: getattr(config, name) for name in same})


def hyperparameters(config: TrainConfig, agent: Agent) -> dict[str, Any]:
    """List what TensorBoard shows beside a run."""
    options = {name: value for name in DESCRIBING if (value := getattr(config, name)) is not None}
    return {**options, "stem": agent.spec.stem, "parameters": count_numbers(agent.parameters())}
