"""Do memories stop changing? Prints a table: python results/suite/stagnation.py RUNS [AGE ...]

Plays each trained run below RUNS (the folders of run.sh, with their checkpoints) and prints by how much a
step changes its fast weights, relative to their norm, at some ages of the episode: the median over episodes,
layers and heads. A mean of all that was written changes by less and less, as 1 / age; a memory that goes on
to follow its inputs does not.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from deltabeast.agents import Agent, load_agent
from deltabeast.cores.observe import watch_memory
from deltabeast.envs import make_vector_env

ENVS, STEPS, SEED = 64, 512, 7


@torch.inference_mode()
def changes(agent: Agent) -> dict[int, list[float]]:
    """Play; return `|W_t - W_{t-1}| / |W_t|` of every layer and head, by the step's age in its episode."""
    spec = agent.spec
    env = make_vector_env(
        env_id=spec.env_id, num_envs=ENVS, observations=spec.observations, options=spec.env_options
    )
    rng = torch.Generator().manual_seed(SEED)
    observation, _ = env.reset(seed=SEED)
    state, reward, done = agent.initial_state(ENVS), torch.zeros(ENVS), torch.ones(ENVS, dtype=torch.bool)
    age, found = np.zeros(ENVS, int), defaultdict(list)
    with watch_memory(agent.core) as memory:
        for _ in range(STEPS):
            age = np.where(done.numpy(), 0, age + 1)
            output, state = agent.act(torch.from_numpy(observation), reward, done, state, generator=rng)
            if not memory:  # no fast weights: a recurrent network, or no memory
                break
            change = torch.stack([step.change for step in memory], 1).flatten(1).numpy()
            for row, at in enumerate(age):
                found[int(at)].extend(change[row].tolist())
            observation, rewards, terminated, truncated, _ = env.step(output.action.numpy())
            reward, done = (torch.from_numpy(x) for x in (rewards.astype(np.float32), terminated | truncated))
    env.close()
    return found


def main(runs: Path, ages: list[int]) -> None:
    print(f"| task | memory | {' | '.join(f'age {age}' for age in ages)} |\n|---|---|{'--:|' * len(ages)}")
    print(f"| | a mean of all writes | {' | '.join(f'{1 / (age + 1):.3f}' for age in ages)} |")
    by_series = defaultdict(list)
    for path in sorted(runs.glob("*/*/seed-*/config.json")):
        by_series[path.parts[-4], path.parts[-3]].append(path.parent)
    for (task, series), folders in by_series.items():
        agents = [load_agent(folder) for folder in folders]
        if any(agent.spec.env_id is None for agent in agents):
            print(f"{task}/{series}: left out, as a game; run.sh trains on environments", file=sys.stderr)
            continue
        found = defaultdict(list)
        for agent in agents:
            for age, values in changes(agent).items():
                found[age].extend(values)
        # Attention and recurrent networks have no fast weights that change.
        if any(map(any, found.values())):
            medians = (f"{np.median(found[age]):.3f}" if found[age] else "" for age in ages)
            print(f"| {task} | {series} | {' | '.join(medians)} |")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), [int(age) for age in sys.argv[2:]] or [1, 4, 16, 48])
