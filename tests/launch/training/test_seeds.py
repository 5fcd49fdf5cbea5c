"""What follows from a run's seed: the same games and actions, in whatever number of processes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_in_process import EXACT, run
from training_process import TINY, rows

from deltabeast.agents import Actor, Agent, Unroll
from deltabeast.agents.sampling import EnvShard, ShardedRng, exponential
from deltabeast.agents.weights import SharedWeights
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.training.local.sources import Lockstep
from deltabeast.launch.training.plan import (
    agent_spec,
    env_shard,
    make_env,
    per_process,
    resolve,
)
from deltabeast.launch.training.randomness import rng_states, seed_generators, set_rng_states
from deltabeast.launch.training.reuse import batches_of_updates

GLOBAL = ("--env", "training_envs:DrawsGlobally-v0", *TINY)


def batches_of(config: TrainConfig, count: int, index: int, seed: int, how_many: int) -> list[Unroll]:
    """Return the first batches of process `index` of `count`, all of which act with the same weights."""
    part, shard = per_process(config, count), env_shard(config, count, index)
    env = make_env(part, 1, shard)
    torch.manual_seed(0)
    agent = Agent(agent_spec(config, env))
    actor = Actor(env, agent, SharedWeights(), config.unroll_length, seed, env_shard=shard)
    source = iter(Lockstep([actor], part.batch_size))
    found = [next(source) for _ in range(how_many)]
    env.close()
    return found


def test_minibatches_are_drawn_by_seed_and_update_alone() -> None:
    """Alike in a resumed run and in every process, anew for each batch."""
    config = parse(["train", "--env", "training_envs:Match-v0", *TINY, "--minibatch-size", "1"])
    resolve(config)
    batch = batches_of(config, 1, 0, 1, 1)[0]
    batch.reward[0] = torch.arange(batch.num_envs)

    def drawn(seed: int, version: int) -> list[int]:
        parts = batches_of_updates(replace(config, seed=seed, passes=4), batch, version)
        return [int(part.reward[0, 0]) for part in parts]

    assert drawn(1, 8) == drawn(1, 8) and len(drawn(1, 8)) == 4 * batch.num_envs
    assert drawn(1, 8) != drawn(1, 24) and drawn(1, 8) != drawn(2, 8)


MATCH = ("--env", "training_envs:Match-v0")
PONG = ("--game", "pong", "--stem", "nature", "--frame-stack", "1", "--flicker", "0.5")
SIZES = [(4, 4, 2), (6, 2, 2), (2, 4, 2), (6, 6, 3)]


@pytest.mark.parametrize(
    ("played", "num_envs", "batch_size", "count"),
    [(MATCH, *sizes) for sizes in SIZES]
    + [pytest.param(PONG, *sizes, marks=pytest.mark.long if sizes[1] > 2 else ()) for sizes in SIZES],
)
def test_a_batch_is_the_same_whatever_the_number_of_processes(
    played: tuple[str, ...], num_envs: int, batch_size: int, count: int, seed: int
) -> None:
    sizes = ("--num-envs", str(num_envs), "--batch-size", str(batch_size), "--unroll-length", "12")
    config = parse(["train", *played, *TINY, *sizes])
    resolve(config)
    alone = batches_of(config, 1, 0, seed, 3)
    parts = [batches_of(config, count, index, seed, 3) for index in range(count)]
    for number, batch in enumerate(alone):
        # Unrolls that are joined to a batch stand side by side: each process has some columns of each.
        width = min(num_envs, batch_size)
        for name in ("observation", "reward", "done", "action"):
            shared = torch.cat(
                [getattr(part[number], name).unflatten(1, (-1, width // count)) for part in parts], 2
            ).flatten(1, 2)
            assert torch.equal(getattr(batch, name), shared), name
    another = batches_of(config, 1, 0, seed + 1, 3)
    assert any(not torch.equal(one.action, other.action) for one, other in zip(alone, another, strict=True))


def test_columns_of_noise_are_columns_of_one_generators_numbers() -> None:
    indices = np.array([1, 4])
    every = torch.empty(5, 3).exponential_(generator=torch.Generator().manual_seed(3))
    noise = ShardedRng(torch.Generator().manual_seed(3), EnvShard(indices, 5))
    drawn = exponential(torch.empty(2, 3), noise)
    assert torch.equal(drawn, every[[1, 4]])
    assert not torch.equal(exponential(torch.empty(2, 3), noise), drawn)


@pytest.mark.usefixtures("quick_children")
def test_one_worker_and_two_learn_the_same(tmp_path: Path) -> None:
    match = ("--env", "training_envs:Match-v0", *TINY, "--steps", "200", "--log-seconds", "0")
    for name, options in (("1", ()), ("2", ("--num-workers", "2")), ("other", ("--seed", "2"))):
        run(tmp_path / name, *match, *options)
    one, two, other = (
        [(row["step"], float(row["game_return"] or "nan")) for row in rows(tmp_path / name)]
        for name in ("1", "2", "other")
    )
    assert one[2:] == two[2:] != other[2:]  # the first episode takes 10 steps of 4 environments
    losses = [float(row["total_loss"]) for name in ("1", "2") for row in rows(tmp_path / name)]
    assert losses[: len(one)] == pytest.approx(losses[len(one) :], rel=1e-3)


def logged(run_dir: Path) -> list[Any]:
    names = ("step", "game_return", "total_loss", "grad_norm")
    return [tuple(row[name] for name in names) for row in rows(run_dir)]


def test_deterministic_covers_the_generators_that_environments_share(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        run(tmp_path / name, *GLOBAL, *EXACT, "--steps", "200", "--seed", seed)
    assert logged(tmp_path / "a") == logged(tmp_path / "b") != logged(tmp_path / "c")
    with pytest.raises(
        UsageError, match=r"did not repeat itself.*np\.random or random.*without --deterministic"
    ):
        run(tmp_path / "a", *GLOBAL, *EXACT, "--steps", "400")
    run(tmp_path / "a", *GLOBAL, "--steps", "400")


def test_the_global_generators_go_on_where_they_were() -> None:
    def draws() -> tuple[Any, ...]:
        return torch.rand(2).tolist(), np.random.standard_normal(3).tolist(), random.gauss(), random.random()  # noqa: NPY002

    device = torch.device("cpu")
    seed_generators(5)
    first = draws()
    state = rng_states(device)
    then = draws()
    seed_generators(6)
    assert first != draws()
    set_rng_states(state, device)
    assert draws() == then
    seed_generators(5)
    assert draws() == first
