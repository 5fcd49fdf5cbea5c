"""What acting loses by turns with emulators: its time beside other things done between two steps. A table.

One process, one core: taskset -c 0 python results/throughput/alternating.py [STEM or PRECISION ...]
"""

import itertools
import statistics
import sys

import numpy as np
import torch
from caching import IMAGE, Images

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig
from deltabeast.agents.accelerate import accelerate
from deltabeast.agents.cpu.cache import CacheSpec
from deltabeast.agents.weights import SharedWeights
from deltabeast.envs import make_vector_env
from deltabeast.launch.processes.machine import prepare_process

ROUNDS, COLUMNS, T = 5, 16, 50
MIB = 1 << 20
SWEPT = (0, 1, 4, 16, 64)


class WritingImages(Images):
    """Writes to so many bytes of other memory at each step."""

    def __init__(self, swept):
        super().__init__(COLUMNS, IMAGE)
        self._swept = np.zeros(swept // 8)

    def step(self, actions):
        self._swept += 1.0
        return super().step(actions)


def acting(actor):
    """Collect an unroll; return the microseconds of acting for a step of all environments, and the unroll."""
    before = actor.stopwatch.seconds["inference"]
    unroll = actor.collect()
    return (actor.stopwatch.seconds["inference"] - before) / T * 1e6, unroll


def measure(stem, precision):
    """Return the median time of each way."""
    agent = Agent(AgentSpec(IMAGE, 6, core="lstm", stem=stem))
    agent.autocast_dtype = torch.bfloat16 if precision == "bf16" else None
    learner = Learner(agent, LearnerConfig(total_steps=10**9))
    pong = make_vector_env("pong", num_envs=COLUMNS, num_threads=1)
    envs = {f"{swept} MiB written": WritingImages(swept * MIB) for swept in SWEPT} | {
        "Pong": pong,
        "Pong, learning": pong,
    }
    inference = accelerate(learner, spec=CacheSpec(trunk=1, projection=True, core=True))
    actors = {
        name: Actor(env, agent, SharedWeights(), T, 1, inference=inference) for name, env in envs.items()
    }
    times = {name: [] for name in envs}
    for _, (name, actor) in itertools.product(range(ROUNDS + 1), actors.items()):
        spent, unroll = acting(actor)
        times[name].append(spent)
        if name.endswith("learning"):
            learner.update(unroll)
            spent, _ = acting(actor)
            times[name][-1] = spent
    return {name: statistics.median(each[1:]) for name, each in times.items()}


prepare_process(1)
stems, precisions = (
    [name for name in all_of if name in sys.argv] or all_of
    for all_of in (("nature", "residual"), ("fp32", "bf16"))
)
print("| stem | precision | between two steps | acting, us | of its speed alone |")
print("|---|---|---|---|---|")
for stem, precision in itertools.product(stems, precisions):
    times = measure(stem, precision)
    alone = next(iter(times.values()))
    for name, time in times.items():
        print(f"| {stem} | {precision} | {name} | {time:,.0f} | {alone / time:.2f} |", flush=True)
