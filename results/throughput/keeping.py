"""Where does keeping the trunk's features pay? Acting and learning with and without, in turns: a table.

Random images take the games' place, so that nothing but the agent is timed. One process, one core:
taskset -c 0 python results/throughput/keeping.py [STEM or PRECISION ...]
"""

import itertools
import statistics
import sys
import time
from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig
from deltabeast.agents.inference import Keep
from deltabeast.agents.known import UNKNOWN
from deltabeast.agents.weights import SharedWeights
from deltabeast.launch.processes.machine import prepare_process

ROUNDS = 7
IMAGE = (4, 84, 84)
SHAPES = {"residual": IMAGE, "nature": IMAGE, "shallow": IMAGE, "small": (3, 7, 7), "mlp": (64,)}
PRECISIONS = ("fp32", "bf16")
SIZES = [(1, 20), (2, 20), (4, 20), (8, 20), (16, 20), (4, 50), (16, 50)]


class Images(VectorEnv):
    """Shows random observations."""

    def __init__(self, count, shape):
        self.num_envs = count
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.single_action_space = spaces.Discrete(6)
        self._shown = np.random.default_rng(0).integers(0, 256, (10, count, *shape), np.uint8)
        self._step = 0

    def reset(self, *, seed=None, options=None):
        return self._shown[0], {}

    def step(self, actions):
        self._step += 1
        no = np.zeros(self.num_envs, bool)
        return self._shown[self._step % 10], np.zeros(self.num_envs), no, no, {}


def seconds(actor, learner, updates, keep):
    start = time.perf_counter()
    for _ in range(updates):
        unroll = actor.collect()
        learner.update(unroll if keep else replace(unroll, known=UNKNOWN))
    return (time.perf_counter() - start) / updates


def measure(stem, dtype, columns, T):
    agent = Agent(AgentSpec(SHAPES[stem], 6, core="lstm", stem=stem))
    agent.autocast_dtype = dtype
    learner = Learner(agent, LearnerConfig(total_steps=10**9))
    actors = {
        keep: Actor(Images(columns, SHAPES[stem]), agent, SharedWeights(), T, 1, keep=Keep(trunk=keep))
        for keep in (False, True)
    }
    once = max(seconds(actors[True], learner, 2, True) for _ in range(2))
    updates = max(1, round(0.5 / once))
    times = {keep: [] for keep in actors}
    for _ in range(ROUNDS):
        for keep, actor in actors.items():
            times[keep].append(seconds(actor, learner, updates, keep))
    ratio = statistics.median(a / b for a, b in zip(times[False], times[True], strict=True))
    return *(statistics.median(times[keep]) / columns / T * 1e6 for keep in actors), ratio


def main():
    prepare_process(1)
    print("| stem | precision | environments | unroll | anew, us a step | kept, us a step | ratio |")
    print("|---|---|---|---|---|---|---|")
    stems, precisions = (
        [name for name in known if name in sys.argv] or known for known in (SHAPES, PRECISIONS)
    )
    for stem, precision in itertools.product(stems, precisions):
        for columns, T in SIZES:
            dtype = torch.bfloat16 if precision == "bf16" else None
            anew, kept, ratio = measure(stem, dtype, columns, T)
            times = f"{anew:,.0f} | {kept:,.0f} | {ratio:.2f}"
            print(f"| {stem} | {precision} | {columns} | {T} | {times} |", flush=True)


if __name__ == "__main__":
    main()
