"""How much of a gradient is signal? Prints a table: python results/laptop/gradient_noise.py RUN [RUN ...]

Plays with each run's newest weights, which stay as they are, and takes the gradients of BATCHES batches, each
as large as the run's. With G their mean and S the sum of the variances of its entries, both without bias,
|G|² / S is the signal to noise of one batch, and its inverse, times the batch, the steps at which both are
alike (the simple noise scale of McCandlish et al. 2018, "An empirical model of large-batch training").
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from deltabeast.agents import Actor, Learner, load_agent
from deltabeast.agents.weights import SharedWeights
from deltabeast.envs import make_vector_env
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.processes.machine import prepare_process
from deltabeast.launch.runs.directory import read_config
from deltabeast.launch.training.plan import learner_config

BATCHES, BEFORE, SEED = 64, 40, 7
PARTS = {"policy": {"baseline_cost": 0.0, "entropy_cost": 0.0}, "whole loss": {}}


def signal_to_noise(gradients):
    """Return |G|² / S of gradients `[K, n]`, without bias; at most 0 where there is no signal to see."""
    K = len(gradients)
    mean = gradients.mean(0)
    noise = (gradients - mean).square().sum() / (K - 1)
    return float((mean.square().sum() - noise / K) / noise)


def measure(run):
    """Return the steps of a batch and the signal to noise of each part of the loss."""
    agent, config = load_agent(run), TrainConfig(**read_config(run))
    env = make_vector_env(config.game, num_envs=config.batch_size, num_threads=1)
    actor = Actor(env, agent, SharedWeights(), config.unroll_length, SEED)
    told = learner_config(config, 1)
    learners = {part: Learner(agent, replace(told, **costs)) for part, costs in PARTS.items()}
    gradients = {part: [] for part in PARTS}
    for index in range(BEFORE + BATCHES):
        batch = actor.collect()
        for part, learner in learners.items() if index >= BEFORE else ():
            _, found = learner.compute_gradients(batch)
            gradients[part].append(torch.cat([g.flatten() for g in found if g is not None]))
    env.close()
    return batch.num_steps, {part: signal_to_noise(torch.stack(each)) for part, each in gradients.items()}


def main(runs):
    print(
        "| run | steps of a batch | " + " | ".join(f"{part}: signal to noise, steps" for part in PARTS) + " |"
    )
    print("|---|--:|" + "--:|" * len(PARTS))
    for run in runs:
        steps, found = measure(Path(run))
        cells = [f"{s:.4f}, {steps / s:,.0f}" if s > 0 else "none to see" for s in found.values()]
        print(f"| {Path(run).name} | {steps} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    prepare_process(1)
    main(sys.argv[1:])
