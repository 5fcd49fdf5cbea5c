"""How far back readings reach, in a run's log: of the right steps, in time, and at little cost."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_in_process import run
from training_process import CARTPOLE, rows

from deltabeast.agents import Agent, AgentSpec, Unroll, join, split
from deltabeast.cores.provenance import linear_forms
from deltabeast.cores.reading_age import reading_ages
from deltabeast.launch.training.reading_ages import BEYOND, ReadingAges

T, B, NUMBERS = 100, 3, 5


class Clock:
    """Seconds, of which each look takes one."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def agent_of(core: str) -> Agent:
    options = {"hidden_size": 16} if core != "feedforward" else {}
    return Agent(AgentSpec((NUMBERS,), 4, core=core, stem="mlp", core_options=options))


def unroll_of(agent: Agent, number: int, begins: bool = False) -> Unroll:
    """An unroll of environments 0 to B - 1, of which the middle one is number 0."""
    state = tuple(torch.rand_like(part) for part in agent.initial_state(B))
    unroll = Unroll.empty(T, torch.zeros(B, NUMBERS), 4, state, 0)
    origin = torch.tensor([[1, number], [0, number], [2, number]])
    observation, done = torch.randn(T + 1, B, NUMBERS), torch.zeros(T + 1, B, dtype=torch.bool)
    done[T // 2, 1] = begins
    return replace(unroll, observation=observation, reward=torch.randn(T + 1, B), done=done, origin=origin)


def directly(agent: Agent, unrolls: list[Unroll], last: int) -> torch.Tensor:
    """The ages in environment 0 of what is read in the `last` steps, in one piece."""
    (x, reward, done) = (
        torch.cat([getattr(each, name)[:-1, 1] for each in unrolls])
        for name in ("observation", "reward", "done")
    )
    with torch.no_grad():
        inputs = agent.core_input(agent.trunk_features(x), reward).unsqueeze(1)
        state = tuple(part[1:2] for part in unrolls[0].state)
        forms = linear_forms(agent.core, inputs, state, done.unsqueeze(1))
    return reading_ages([form for form in forms if form is not None], len(inputs) - last)


@pytest.mark.parametrize("cut", ["whole", "split", "joined"])
def test_ages_of_the_first_environments_last_steps(cut: str, seed: int) -> None:
    agent = agent_of("linear_transformer")  # which forgets nothing
    ages = ReadingAges(agent, clock=Clock())
    unrolls = [unroll_of(agent, n, begins=cut == "split" and n == 5) for n in range(12)]
    for unroll in unrolls[:11]:
        assert ages.sample() == {}
        batches = {"whole": [unroll], "split": split(unroll, 2)}.get(cut)
        for batch in batches or [join(split(unroll, 1))]:
            ages.add(batch)
    got = ages.sample()
    expected = directly(agent, unrolls[:11], 32)
    assert got["read_age"] == int((expected.cumsum(0) < 0.5).sum())
    for age in BEYOND:
        assert got[f"read_beyond_{age}"] == pytest.approx(float(expected[age + 1 :].sum()), rel=1e-4)
    assert got["read_beyond_10"] > got["read_beyond_1000"]
    assert (got["read_beyond_1000"] == 0) == (cut == "split")  # where an episode began
    ages.add(unrolls[11])  # the oldest unroll goes
    ages._due = 0.0
    later = directly(agent, unrolls[1:12], 32)
    assert ages.sample()["read_beyond_100"] == pytest.approx(float(later[101:].sum()), rel=1e-4)


def test_explaining_waits_for_two_hundred_times_what_it_took(seed: int) -> None:
    agent, clock = agent_of("delta_net"), Clock()
    ages = ReadingAges(agent, clock=clock)
    for number in range(11):
        ages.add(unroll_of(agent, number))
    assert ages.sample()  # from second 2 to second 3
    clock.now = 201
    assert ages.sample() == {}
    clock.now = 203
    assert ages.sample()


def test_steps_that_are_missing_begin_a_new_stretch(seed: int) -> None:
    agent = agent_of("delta_net")
    ages = ReadingAges(agent, clock=Clock())
    for number in [*range(5), *range(6, 16)]:
        ages.add(unroll_of(agent, number))
    assert ages.sample() == {}
    ages.add(replace(unroll_of(agent, 16), origin=None))  # of nobody knows what
    assert ages.sample() == {}
    ages.add(unroll_of(agent, 16))
    assert ages.sample()


@pytest.mark.parametrize("core", ["lstm", "feedforward"])
def test_memories_that_add_nothing_up_have_no_ages(core: str, seed: int) -> None:
    agent = agent_of(core)
    ages = ReadingAges(agent, clock=Clock())
    for number in range(11):
        ages.add(unroll_of(agent, number))
    assert ages.sample() == {}
    assert not ages._parts  # which would take memory for nothing


def test_a_run_logs_them(tmp_path: Path) -> None:
    small = ["--core", "delta_net", "--num-envs", "1", "--batch-size", "1", "--log-seconds", "0"]
    run(tmp_path, *CARTPOLE, *small, "--unroll-length", "100", "--steps", "1200")
    logged = [float(row["read_age"]) for row in rows(tmp_path) if row["read_age"]]
    assert len(logged) == 1
    assert math.isfinite(logged[0])
