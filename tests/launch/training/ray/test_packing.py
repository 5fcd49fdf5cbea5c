"""What travels between machines is small, and comes out as it went in."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from training_envs import Match  # noqa: F401  # registers its environments

from deltabeast.agents import Actor, Agent, AgentSpec, Episodes, Unroll, split
from deltabeast.agents.truncations import Truncations
from deltabeast.agents.weights import WeightStore
from deltabeast.envs import make_vector_env
from deltabeast.launch.training.flat_parameters import FlatWeights, flatten, unflatten
from deltabeast.launch.training.ray.packing import Stacks, pack, unpack

CPU = torch.device("cpu")


def unroll(observation: torch.Tensor, state: tuple[torch.Tensor, ...] = ()) -> Unroll:
    T, B = observation.shape[0] - 1, observation.shape[1]
    return Unroll(
        observation,
        torch.randn(T + 1, B),
        torch.rand(T + 1, B) < 0.3,
        torch.randint(6, (T, B)),
        torch.randn(T, B, 6),
        torch.rand(T, B) < 0.1,
        torch.randn(T, B),
        state,
        version=7,
        episodes=Episodes([1.5], [2.5], [3], 1),
    )


def assert_same(one: Unroll, other: Unroll) -> None:
    for name, value in vars(one).items():
        again = getattr(other, name)
        if isinstance(value, torch.Tensor):
            assert value.dtype == again.dtype and torch.equal(value, again), name
        elif name == "state":
            assert len(value) == len(again)
            assert all(torch.equal(a, b) for a, b in zip(value, again, strict=True))
        else:
            assert value == again, name


def test_last_observations_of_truncated_episodes_travel_too(seed: int) -> None:
    seen = torch.randint(256, (3, 4, 5, 5), dtype=torch.uint8)
    ends = Truncations(torch.tensor([0, 4, 2]), torch.tensor([1, 1, 0]), seen)
    given = unroll(torch.randint(256, (6, 3, 4, 5, 5), dtype=torch.uint8))
    given = replace(given, origin=torch.tensor([[3, 8], [4, 8], [5, 8]]))
    packed = pack(replace(given, truncations=ends))
    out = unpack(packed, CPU)
    assert all(map(torch.equal, out.truncations, ends))
    assert packed.nbytes - pack(given).nbytes == sum(x.nbytes for x in ends)
    out.truncations.observation.zero_()  # memory of its own
    assert all(map(torch.equal, unpack(packed, CPU).truncations, ends))
    assert_same(replace(out, truncations=None), given)


def stacks(T: int, B: int, C: int, begun: np.ndarray) -> torch.Tensor:
    """Stacks of random frames `[T, B, C, 8, 9]`; where `begun` `[T, B]`, of the newest frame alone."""
    frame = torch.randint(256, (T, B, C, 8, 9), dtype=torch.uint8).numpy()
    for t in range(1, T):
        frame[t, :, :-1] = frame[t - 1, :, 1:]
        for b in np.flatnonzero(begun[t]):
            frame[t, b, :-1] = frame[t, b, -1] if random.random() < 0.7 else 0
    return torch.from_numpy(frame)


BEGUN = {
    "never": lambda T, B: np.zeros((T, B), bool),
    "at every step": lambda T, B: np.ones((T, B), bool),
    "at the first step": lambda T, B: np.arange(T)[:, None] + np.zeros(B) == 1,
    "at the last step": lambda T, B: np.arange(T)[:, None] + np.zeros(B) == T - 1,
    "anywhere": lambda T, B: torch.rand(T, B).numpy() < 0.3,
}


@pytest.mark.parametrize("where", BEGUN)
@pytest.mark.parametrize(("T", "B", "C"), [(2, 1, 2), (11, 3, 4), (6, 4, 3), (7, 2, 1)])
def test_stacks_come_out_bit_by_bit(where: str, T: int, B: int, C: int, seed: int) -> None:
    begun = BEGUN[where](T, B) & (C > 1)  # a single screen is always the newest
    given = unroll(stacks(T, B, C, begun), (torch.randn(B, 2, 3), torch.randn(B, 5)))
    packed = pack(given)
    assert isinstance(packed.arrays[0], Stacks)
    assert_same(unpack(packed, CPU), given)
    assert np.array_equal(packed.arrays[0].begun, begun[1:].nonzero())


def test_stacks_that_never_shift_come_out_too(seed: int) -> None:
    given = unroll(torch.randint(256, (6, 3, 4, 5, 5), dtype=torch.uint8))
    assert_same(unpack(pack(given), CPU), given)


@pytest.mark.parametrize("shape", [(6, 3, 2), (1, 3, 4, 84, 84), (6, 3, 4, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_other_observations_pass_as_they_are(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> None:
    given = unroll((torch.rand(shape) * 256).to(dtype))
    packed = pack(given)
    assert isinstance(packed.arrays[0], np.ndarray)
    assert_same(unpack(packed, CPU), given)


def test_what_is_unpacked_may_be_written(seed: int) -> None:
    """Memory of the object store may not, and torch would warn."""
    given = unroll(torch.rand(4, 2, 3), (torch.rand(2, 3),))
    packed = pack(given)
    for array in packed.arrays:
        array.flags.writeable = False
    out = unpack(packed, CPU)
    out.observation.add_(1.0)
    out.state[0].add_(1.0)
    assert_same(unpack(packed, CPU), given)


@pytest.mark.parametrize("core", ["rdn", "lstm"])
def test_an_atari_step_takes_at_most_7500_bytes(core: str, seed: int) -> None:
    """Of the published sizes, core state and all, with lives that end; and as much when it is cut."""
    env = make_vector_env("breakout", num_envs=4, num_threads=1)
    agent = Agent(AgentSpec((4, 84, 84), 4, core, "nature")).requires_grad_(False)
    actor = Actor(env, agent, WeightStore(agent), 50, seed=seed)
    for _ in range(3):
        collected = actor.collect()
    env.close()
    assert collected.done.any(), "resets are among them"
    packed = [pack(part) for part in split(collected, 2)]
    assert_same(unpack(pack(collected), CPU), collected)
    for part, original in zip(packed, split(collected, 2), strict=True):
        assert_same(unpack(part, CPU), original)
    assert sum(part.nbytes for part in packed) / collected.num_steps < 7500 / 2
    stacks = packed[0].arrays[0]
    frames = sum(len(blob.data) for blob in (stacks.first, stacks.newest))
    assert frames / (collected.num_steps / 2) < 1000, "compressed"


def test_weights_travel_whole(seed: int) -> None:
    spec = AgentSpec((3,), 2, "rdn", "mlp", {"hidden_size": 8, "num_heads": 2, "ff_size": 8, "num_layers": 1})
    agent, other = Agent(spec), Agent(spec)
    flat = flatten(agent)
    flat.flags.writeable = False
    store = FlatWeights()
    store.take(3, flat)
    assert store.pull(other) == 3
    for a, b in zip(agent.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        next(agent.parameters()).add_(1.0)
    assert not np.array_equal(flatten(agent), flat), "a copy"
    assert store.pull(agent) == 3
    assert not np.array_equal(flatten(agent), flat), "what has been pulled is not pulled again"
    unflatten(agent, flat)
    assert np.array_equal(flatten(agent), flat)
