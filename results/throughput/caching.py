"""Where does caching the trunk's features pay? Acting and learning with and without, in turns: a table.

Random images take the games' place, so that nothing but the agent is timed. One process, one core:
taskset -c 0 python results/throughput/caching.py [STEM or PRECISION ...]
"""

import itertools
import statistics
import sys
import time

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig
from deltabeast.agents.accelerate import accelerate
from deltabeast.agents.cpu.cache import CacheSpec
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


def seconds(actor, learner, updates):
    start = time.perf_counter()
    for _ in range(updates):
        learner.update(actor.collect())
    return (time.perf_counter() - start) / updates


def measure(stem, dtype, columns, T):
    agent = Agent(AgentSpec(SHAPES[stem], 6, core="lstm", stem=stem))
    agent.autocast_dtype = dtype
    pairs = {}
    for trunk in (0, 1):
        learner = Learner(agent, LearnerConfig(total_steps=10**9))
        inference = accelerate(learner, spec=CacheSpec(trunk=trunk))
        env = Images(columns, SHAPES[stem])
        pairs[trunk] = Actor(env, agent, SharedWeights(), T, 1, inference=inference), learner
    once = max(seconds(*pairs[1], 2) for _ in range(2))
    updates = max(1, round(0.5 / once))
    times = {trunk: [] for trunk in pairs}
    for _ in range(ROUNDS):
        for trunk, pair in pairs.items():
            times[trunk].append(seconds(*pair, updates))
    ratio = statistics.median(a / b for a, b in zip(times[0], times[1], strict=True))
    return *(statistics.median(times[trunk]) / columns / T * 1e6 for trunk in pairs), ratio


def main():
    prepare_process(1)
    print("| stem | precision | environments | unroll | computed, us a step | cached, us a step | ratio |")
    print("|---|---|---|---|---|---|---|")
    stems, precisions = (
        [name for name in all_of if name in sys.argv] or all_of for all_of in (SHAPES, PRECISIONS)
    )
    for stem, precision in itertools.product(stems, precisions):
        for columns, T in SIZES:
            dtype = torch.bfloat16 if precision == "bf16" else None
            computed, cached, ratio = measure(stem, dtype, columns, T)
            times = f"{computed:,.0f} | {cached:,.0f} | {ratio:.2f}"
            print(f"| {stem} | {precision} | {columns} | {T} | {times} |", flush=True)


if __name__ == "__main__":
    main()
