"""Play Pong by threads and by processes in turns, alone and while a stand-in for a GPU chooses actions.

Usage: python results/gpu/processes.py [--games 256] [--rounds 3] [--seconds 3] [--answer 1] [--spin]
           [--json FILE]

Prints agent steps/s, the median and all rounds, and the time of a core that each step took. The stand-in
needs no GPU: it answers after `--answer` milliseconds, during which it takes no core, or with `--spin` all of
one, as CUDA may where it waits. As a GPU does, it reads observations of processes by itself; those of threads
the actor copies, whole.

apart           one process a core, which plays its share of the games by itself: what the cores can do
threads, alone  half of the games, as one of an actor's two groups has them, with random actions
threads         two groups in turn, played while the stand-in chooses for the other: `Actor`s in threads
processes ...   the same by processes of one core each, which play some of both groups
free ...        the same, the system choosing the cores
together        all games as one group, in processes of one core each, with random actions: `bench env`
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from deltabeast.envs import available_cores, make_vector_env
from deltabeast.launch.processes.env_processes import process_envs
from deltabeast.launch.processes.env_servers import EnvServers

GAME, STEPS, GROUPS = "pong", 20, 2


def make(num_envs: int) -> Any:
    return make_vector_env(GAME, num_envs=num_envs, num_threads=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--answer", type=float, default=1.0, help="milliseconds")
    parser.add_argument("--spin", action="store_true")
    parser.add_argument("--arms", nargs="+", default=[*ARMS])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from deltabeast.launch.processes.machine import prepare_process  # with torch, which no player needs

    prepare_process()
    speeds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    settings = {**vars(given), "json": None, "cores": available_cores()}
    results = {"settings": settings, "steps_per_second": speeds, "core_microseconds_per_step": cpu}
    with ExitStack() as stack:
        arms: dict[str, Callable[[float], float]] = {}
        stack.callback(show, given, speeds, cpu)  # also where the time is up before the end
        for name in given.arms:
            began = time.perf_counter()
            arms |= ARMS[name](
                stack, given.games, partial(_spin if given.spin else time.sleep, given.answer / 1000)
            )
            print(f"{name}: begun after {time.perf_counter() - began:.1f} s", flush=True)
        for _ in range(given.rounds):
            for name, measure in arms.items():
                spent, start = _cpu_seconds(), time.perf_counter()
                speed = measure(given.seconds)
                each = (_cpu_seconds() - spent) / (speed * (time.perf_counter() - start))
                speeds.setdefault(name, []).append(speed)
                cpu.setdefault(name, []).append(each * 1e6)
                print(f"{name}: {speed:,.0f} steps/s, {each * 1e6:.0f} us of a core each", flush=True)
            if given.json:
                given.json.write_text(json.dumps(results, indent=2) + "\n")


def show(given: Any, speeds: dict[str, list[float]], cpu: dict[str, list[float]]) -> None:
    print(f"\n{given.games} games of {GAME}, {available_cores()} cores: agent steps/s, us of a core for each")
    for name, each in speeds.items():
        rounds = " ".join(f"{speed:,.0f}" for speed in each)
        print(f"{name:22}{statistics.median(each):>8,.0f}{statistics.median(cpu[name]):>6.0f}   ({rounds})")


def _cpu_seconds() -> float:
    """Return the time that this process and its children have spent on cores so far."""
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    ticks = 0
    for pid in ("self", *(child for some in children for child in some)):
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def apart(stack: ExitStack, games: int, wait: Callable[[], None]) -> dict[str, Callable[[float], float]]:
    cores = sorted(os.sched_getaffinity(0))
    shares = [games // len(cores) + (index < games % len(cores)) for index in range(len(cores))]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    players = [
        subprocess.Popen([sys.executable, __file__, "play", str(core), str(share)], **pipes)
        for core, share in zip(cores, shares, strict=True)
    ]
    for player in players:
        stack.callback(player.kill)
        player.stdout.readline()

    def measure(seconds: float) -> float:
        for player in players:
            player.stdin.write(f"{seconds}\n")
            player.stdin.flush()
        return sum(float(player.stdout.readline()) for player in players)

    return {"apart": measure}


def play(core: int, games: int) -> None:
    """Play in a process of its own, whenever its standard input says for how long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one
    os.sched_setaffinity(0, {core})
    env = make(games)
    env.reset(seed=core)
    _alone(env, 0.2)
    print("ready", flush=True)
    for line in sys.stdin:
        print(_alone(env, float(line)), flush=True)


def _alone(env: Any, seconds: float) -> float:
    actions = np.random.default_rng(0).integers(env.single_action_space.n, size=(1000, env.num_envs))
    steps, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        env.step(actions[steps % len(actions)])
        steps += 1
    return steps * env.num_envs / passed


def threads(stack: ExitStack, games: int, wait: Callable[[], None]) -> dict[str, Callable[[float], float]]:
    envs = [
        make_vector_env(GAME, num_envs=games // GROUPS, num_threads=available_cores()) for _ in range(GROUPS)
    ]
    return _both("threads", stack, envs, wait, copies=True)


def processes(stack: ExitStack, games: int, wait: Callable[[], None], free: bool = False) -> dict[str, Any]:
    count = min(available_cores(), games // GROUPS)
    cores = None if free else sorted(os.sched_getaffinity(0))
    envs = process_envs(EnvServers(make, games // GROUPS, count, GROUPS, cores), copy=False)
    return _both("free" if free else "processes", stack, envs, wait)


def together(stack: ExitStack, games: int, wait: Callable[[], None]) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    (env,) = process_envs(EnvServers(make, games, min(len(cores), games), cpus=cores), copy=False)
    stack.callback(env.close)
    env.reset(seed=0)
    return {"together": lambda seconds: _alone(env, seconds)}


ARMS = {
    "apart": apart,
    "threads": threads,
    "processes": processes,
    "free": partial(processes, free=True),
    "together": together,
}


def _both(
    name: str, stack: ExitStack, envs: list[Any], wait: Callable[[], None], copies: bool = False
) -> dict[str, Callable[[float], float]]:
    import torch

    from deltabeast.agents import Actor, Agent, AgentSpec, WeightStore
    from deltabeast.agents.inference import EagerInference
    from deltabeast.launch.training.local.sources import Threads

    class StandIn(EagerInference):
        """A GPU that answers after a time."""

        def record(self, unroll: Any, t: int, timestep: Any) -> None:
            if copies:
                super().record(unroll, t, timestep)
            else:
                unroll.reward[t], unroll.done[t] = map(torch.from_numpy, timestep[1:])

        def select_actions(self, unroll: Any, t: int) -> None:
            wait()
            unroll.action[t].random_(0, self._agent.spec.num_actions)

    for env in envs:
        stack.callback(env.close)
    space, actions = envs[0].single_observation_space, envs[0].single_action_space.n
    agent = Agent(AgentSpec(space.shape, int(actions), core="feedforward", stem="shallow"))
    weights = WeightStore(agent)
    actors = [Actor(env, agent, weights, STEPS, seed, inference=StandIn) for seed, env in enumerate(envs)]

    def acting(seconds: float) -> float:
        stop = threading.Event()
        with Threads(actors, envs[0].num_envs, stop) as source:
            unrolls = iter(source)
            for _ in islice(unrolls, GROUPS):  # until both are under way
                pass
            steps, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < seconds:
                # The groups' unrolls end almost together: one less at the end would be half a round lost.
                steps += sum(unroll.num_steps for unroll in islice(unrolls, GROUPS))
            stop.set()
        return steps / passed

    return {f"{name}, alone": lambda seconds: _alone(envs[0], seconds), name: acting}


if __name__ == "__main__":
    if sys.argv[1:2] == ["play"]:
        play(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
