"""How stale is the state that is stored with a replayed trajectory, and what does a burn-in mend?

    python results/reuse/staleness.py RUN [RUN ...] [--ages 1 8 32 96] [--burn-in 0 16 64] [--csv FILE]

RUN has milestones (`train --milestone-steps`), of which an age is a number. At POINTS of the run the older
of two that are so far apart plays, and stores its core's state where trajectories begin, as actors do. The
newer reads the same steps: from where the episodes begin, which is what its memory would hold had it acted
itself; and from the stored state, or through a burn-in from the one that was stored so many steps before.
Printed are medians over points of means over trajectories:

    first      |y - y'| / |y| of the core's output at the first step of a trajectory
    all        the same, over all its steps
    policy     KL(policy | policy'), in nats, over all its steps
    zeros      `first` where a state of zeros takes the place of the stored one

A trajectory counts up to where an episode begins: a reset makes every state right.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deltabeast.agents import Agent
from deltabeast.agents.manifest import is_milestone, saved_step
from deltabeast.cores import State
from deltabeast.launch.evaluation.environments import env_maker
from deltabeast.launch.evaluation.examination import divergence
from deltabeast.launch.evaluation.loading import load

POINTS = 8
"""At how many points of a run an age is looked at."""


class Stretch(NamedTuple):
    """What N environments showed an agent in T steps, and its states."""

    inputs: Tensor
    """Observations `[T, N, ...]`."""
    reward: Tensor
    done: Tensor
    states: list[State]
    """Before each step."""


class Truth(NamedTuple):
    """What an agent reads of a stretch, its core's inputs and outputs `[T, N, n]`."""

    x: Tensor
    y: Tensor


@torch.no_grad()
def read(agent: Agent, stretch: Stretch) -> Truth:
    """Read from where the episodes begin."""
    T, N = stretch.done.shape
    x = agent.core_inputs(stretch.inputs.flatten(0, 1), stretch.reward.flatten()).unflatten(0, (T, N))
    return Truth(x, agent.unroll_core(x, agent.initial_state(N), stretch.done)[0])


@torch.no_grad()
def play(agent: Agent, num_envs: int, steps: int, seed: int) -> Stretch:
    """Let an agent act, with sampled actions."""
    env = env_maker(agent.spec, None, 1)(num_envs)
    try:
        seen, _ = env.reset(seed=seed)
        reward, done = torch.zeros(num_envs), torch.ones(num_envs, dtype=torch.bool)
        state, rng = agent.initial_state(num_envs), np.random.default_rng(seed)
        observations, rewards, dones, states = [], [], [], []
        for _ in range(steps):
            observation = torch.from_numpy(np.array(seen))
            observations.append(observation)
            rewards.append(reward)
            dones.append(done)
            states.append(state)
            output, state = agent.act(observation, reward, done, state)
            chosen = rng.random((num_envs, 1)) < output.policy_logits.softmax(-1).cumsum(-1).numpy()
            seen, raw, terminated, truncated, _ = env.step(chosen.argmax(-1))
            reward = torch.from_numpy(np.array(raw, np.float32))
            done = torch.from_numpy(terminated | truncated)
    finally:
        env.close()
    return Stretch(torch.stack(observations), torch.stack(rewards), torch.stack(dones), states)


class Errors(NamedTuple):
    first: float
    all: float
    policy: float


@torch.no_grad()
def errors(
    agent: Agent, stretch: Stretch, true: Truth, unroll: int, burn_in: int, longest: int, zeros: bool = False
) -> Errors:
    """Compare outputs over trajectories that begin as another agent stored with those over whole episodes."""
    T, N = stretch.done.shape
    apart, kls, counted = [], [], []
    for begin in range(longest + unroll, T - unroll + 1, unroll):  # the same ones, whatever the burn-in
        rows = slice(begin - burn_in, begin + unroll)
        state = agent.initial_state(N) if zeros else stretch.states[rows.start]
        y, _, _ = agent.unroll_core(true.x[rows], state, stretch.done[rows])
        wanted, found = true.y[begin : begin + unroll], y[burn_in:]
        apart.append((wanted - found).norm(dim=-1) / wanted.norm(dim=-1))
        kls.append(divergence(*(F.log_softmax(agent.policy(each), -1) for each in (wanted, found))))
        counted.append(stretch.done[begin : begin + unroll].cumsum(0) == 0)
    of, kl, where = (torch.stack(each) for each in (apart, kls, counted))
    return Errors(of[:, 0][where[:, 0]].mean().item(), of[where].mean().item(), kl[where].mean().item())


def steps_of(run: Path) -> list[int]:
    """List the milestones of a run, oldest first."""
    manifests = run.glob("checkpoints/*/manifest.json")
    return sorted(saved_step(path.parent) for path in manifests if is_milestone(path.parent))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--ages", type=int, nargs="+", default=[1, 8, 32, 96])
    parser.add_argument("--burn-in", type=int, nargs="+", default=[0, 16, 64])
    parser.add_argument("--unroll", type=int, default=16)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, longest = [], max(given.burn_in)
    if longest + 2 * given.unroll > given.steps:
        sys.exit(f"--burn-in {longest}: no trajectory is left of {given.steps} steps; give more --steps")
    for run in given.runs:
        milestones = steps_of(run)
        if len(milestones) < 2 + max(given.ages):
            sys.exit(f"{run} has {len(milestones)} milestones; train it with a smaller --milestone-steps")
        agents = {step: load(run, str(step), None, print).agent for step in milestones}
        print(
            f"### {run}\n\n| age, steps | burn-in | first | all | policy | zeros |\n|--:|--:|--:|--:|--:|--:|"
        )
        for age in given.ages:
            points = np.linspace(1, len(milestones) - 1 - age, POINTS).astype(int)
            stretches = [play(agents[milestones[at]], given.envs, given.steps, at) for at in points]
            newer = [agents[milestones[at + age]] for at in points]
            span = statistics.median(milestones[at + age] - milestones[at] for at in points)
            read_by = [
                (agent, stretch, read(agent, stretch))
                for agent, stretch in zip(newer, stretches, strict=True)
            ]
            for burn_in in given.burn_in:
                sizes = given.unroll, burn_in, longest
                stored = [errors(*each, *sizes) for each in read_by]
                none = [errors(*each, *sizes, zeros=True).first for each in read_by]
                found = [
                    *(statistics.median(each) for each in zip(*stored, strict=True)),
                    statistics.median(none),
                ]
                print(
                    f"| {span:,.0f} | {burn_in} | {' | '.join(f'{value:.2g}' for value in found)} |",
                    flush=True,
                )
                rows.append([run.parent.name, run.name, span, burn_in, *(f"{value:.4g}" for value in found)])
        print()
    if given.csv is not None:
        with given.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["core", "run", "age", "burn_in", "first", "all", "policy", "zeros"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
