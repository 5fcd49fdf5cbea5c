"""Runs that learn from fresh and replayed unrolls: what a step learns from, and how they go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_in_process import EXACT, Killed, assert_a_kill_changes_nothing, kill_at, run
from training_process import CARTPOLE, TINY, newest, rows

from deltabeast.agents import Agent, Learner, PartialUpdate, Unroll
from deltabeast.agents.cpu.cache import NO_CACHE
from deltabeast.agents.replay import Place, ReplayBuffer
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.training.cpu_parts import cache_spec
from deltabeast.launch.training.plan import agent_spec, make_env, per_process, resolve
from deltabeast.launch.training.reuse import REFILLS, batches_of_updates, make_replay, replay_notes

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

REPLAY = ("--replay-ratio", "1", "--replay-buffer", "100")
"""Five batches of CARTPOLE."""
MATCH = ("--env", "training_envs:Match-v0", *TINY)
LAYOUTS = {
    "one unroll an update": (4, 4, 1),
    "unrolls cut into four": (8, 2, 1),
    "two unrolls joined": (2, 4, 1),
    "actors joined out of step": (2, 4, 3),
    "cut unrolls in turns": (4, 2, 2),
}
"""Environments, batch size, actors."""
SOME_LAYOUTS = [
    "one unroll an update",
    "actors joined out of step",
    *(
        pytest.param(layout, marks=pytest.mark.long)
        for layout in ("unrolls cut into four", "two unrolls joined", "cut unrolls in turns")
    ),
]


def sizes(layout: str) -> list[str]:
    names = ("--num-envs", "--batch-size", "--num-actors")
    return [str(word) for pair in zip(names, LAYOUTS[layout], strict=True) for word in pair]


def made(*given: str) -> tuple[TrainConfig, Agent]:
    config = parse(["train", *CARTPOLE, *given])
    resolve(config)
    with closing(make_env(config, 1)) as env:
        torch.manual_seed(0)
        return config, Agent(agent_spec(config, env))


def named_batch(config: TrainConfig, agent: Agent, version: int) -> Unroll:
    """Return a batch whose rewards say when it acted and in which environment: 10 version + b."""
    B, T = config.batch_size, config.unroll_length
    unroll = Unroll.empty(T, torch.zeros(B, 4), 2, agent.initial_state(B), version)
    return replace(unroll, reward=(10.0 * version + torch.arange(B)).expand(T + 1, B).clone())


def learned(monkeypatch: pytest.MonkeyPatch) -> list[Unroll]:
    """Collect what a process's learner learns from."""
    batches: list[Unroll] = []
    backward: Callable[[Learner, Unroll], PartialUpdate] = Learner.backward

    def patched(learner: Learner, batch: Unroll) -> PartialUpdate:
        batches.append(batch)
        return backward(learner, batch)

    monkeypatch.setattr(Learner, "backward", patched)
    return batches


@pytest.mark.parametrize(("ratio", "passes", "size"), [("1", 1, 4), ("0.5", 2, 2), ("3", 3, 1)])
def test_every_pass_has_each_fresh_trajectory_once_beside_its_replayed_ones(
    ratio: str, passes: int, size: int
) -> None:
    """In as many steps of the optimizer where there is nothing to replay."""
    given = ("--passes", str(passes), "--minibatch-size", str(size), "--replay-ratio", ratio)
    config, agent = made(*given)
    replay = make_replay(config, agent, 0)
    for version in range(3):
        batch = named_batch(config, agent, version)
        parts = [*batches_of_updates(config, batch, version, replay)]
        assert len(parts) == passes * 4 // size
        assert all(part.num_envs == size * (1 + float(ratio) * (version > 0)) for part in parts)
        names = sorted(int(name) for part in parts for name in part.reward[0])
        fresh = [name for name in names if name >= 10 * version]
        assert fresh == sorted(passes * [10 * version + b for b in range(4)])
        assert all(part.counted is None for part in parts[:-1])
        assert parts[-1].counted in (batch, "itself")


def test_processes_draw_from_their_own_shares_on_their_own() -> None:
    config, agent = made("--num-envs", "32", "--batch-size", "32", *REPLAY, "--replay-buffer", "1k")
    share = per_process(config, 4)
    drawn = []
    for process in range(2):
        replay = make_replay(share, agent, process)
        assert replay is not None
        for version in range(9):
            *_, part = batches_of_updates(share, named_batch(share, agent, version), version, replay)
        assert len(replay) == 6 and part.num_envs == 16
        drawn.append(part.reward[0].tolist()[8:])
    assert drawn[0] != drawn[1]


def test_a_run_learns_from_fresh_and_replayed_unrolls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = learned(monkeypatch)
    run(tmp_path, *CARTPOLE, *REPLAY, "--steps", "160", "--log-seconds", "0")
    assert [batch.num_envs for batch in batches] == [4] + [8] * 7
    logged = rows(tmp_path)
    assert [int(row["step"]) for row in logged] == [20 * n for n in range(1, 9)]
    assert all(float(row["policy_lag"]) == 0 for row in logged)
    for version, (batch, row) in enumerate(zip(batches, logged, strict=True)):
        if version:
            assert batch.replayed is not None
            acted = batch.replayed[4:].tolist()
            assert all(max(0, version - 4) <= each < version for each in acted)
            assert float(row["replay_age"]) == pytest.approx(version - sum(acted) / 4, rel=1e-4)
    assert logged[0]["replay_age"] == ""
    assert [float(row["reuse"]) for row in logged] == [1.0] + [2.0] * 7
    assert "the replay buffer takes " in capsys.readouterr().out


def test_the_first_update_is_that_of_a_run_without_replay(tmp_path: Path) -> None:
    for name, given in (("with", (*REPLAY, "--burn-in", "5")), ("without", ())):
        run(tmp_path / name, *CARTPOLE, *EXACT, *given, "--steps", "20")
    (_, one, _), (_, other, _) = newest(tmp_path / "with"), newest(tmp_path / "without")
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_burn_in_goes_through_the_steps_before(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consecutive unrolls of an environment share an observation, however they are cut and joined."""
    found: list[int] = []
    original = ReplayBuffer._predecessors

    def checked(buffer: ReplayBuffer, place: Place) -> list[Place]:
        chain = original(buffer, place)
        unroll = buffer._gather([place, *chain])
        for x in (unroll.observation, unroll.reward, unroll.done):
            assert torch.equal(x[0, :-1], x[-1, 1:])
        found.append(len(chain))
        return chain

    monkeypatch.setattr(ReplayBuffer, "_predecessors", checked)
    steps = 40 * LAYOUTS[layout][1] * 5
    given = (*sizes(layout), "--replay-ratio", "2", "--replay-buffer", str(steps // 2), "--burn-in", "10")
    run(tmp_path, *CARTPOLE, *given, "--steps", str(steps))
    assert {*found} == {0, 1, 2} and sum(number == 2 for number in found) > len(found) / 4


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_a_killed_run_goes_on_with_its_buffer(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    batch_size = LAYOUTS[layout][1]
    steps = ("--steps", str(14 * batch_size * 5), "--checkpoint-minutes", "0", "--seed", str(seed))
    buffer = ("--replay-ratio", "1", "--replay-buffer", str(6 * batch_size * 5), "--burn-in", "5")
    given = (*CARTPOLE, *EXACT, *sizes(layout), *steps, *buffer)
    assert_a_kill_changes_nothing(tmp_path, monkeypatch, given, 11)
    stored = newest(tmp_path / "other")[2]["replay"]
    assert len(stored) == 1 and stored[0]["added"] == 14 and len(stored[0]["versions"]) == 6


def test_a_killed_run_of_minibatches_goes_on_with_its_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (*CARTPOLE, *EXACT, *REPLAY, "--passes", "2", "--minibatch-size", "2", "--replay-max-age", "9")
    given += ("--steps", "160", "--checkpoint-minutes", "0", "--optimizer", "adam")
    assert_a_kill_changes_nothing(tmp_path, monkeypatch, given, 17)
    assert newest(tmp_path / "other")[2]["learner"]["version"] == 32


def test_without_deterministic_the_buffer_fills_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (*CARTPOLE, *REPLAY, "--log-seconds", "0", "--checkpoint-minutes", "0")
    with monkeypatch.context() as patch:
        kill_at(patch, 5)
        with pytest.raises(Killed):
            run(tmp_path, *given, "--steps", "160")
    assert REFILLS not in capsys.readouterr().out and "replay" not in newest(tmp_path)[2]
    batches = learned(monkeypatch)
    run(tmp_path, *given, "--steps", "160")
    assert capsys.readouterr().out.count(REFILLS) == 1
    assert [batch.num_envs for batch in batches] == [4] + [8] * 2
    with pytest.raises(UsageError, match=r"holds a run with --replay-ratio 1\.0, not --replay-ratio 2"):
        run(tmp_path, *given, "--replay-ratio", "2", "--steps", "200")


@pytest.mark.usefixtures("quick_children")
def test_workers_replay_from_buffers_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of the optimizer are as many in each, from the first batch on and after a resume."""
    batches = learned(monkeypatch)
    given = (*MATCH, *REPLAY, "--burn-in", "5", "--passes", "2", "--minibatch-size", "2")
    given += ("--log-seconds", "0")
    run(tmp_path, *given, "--num-workers", "2", "--steps", "160")
    run(tmp_path, *given, "--num-workers", "2", "--steps", "200")
    assert newest(tmp_path)[2]["learner"]["version"] == 40
    assert [batch.num_envs for batch in batches] == [1] * 4 + [2] * 28 + [1] * 4 + [2] * 4
    logged = rows(tmp_path)
    assert [int(row["step"]) for row in logged] == [20 * n for n in range(1, 11)]
    ages = [row["replay_age"] for row in logged]
    assert ages[0] == ages[8] == "" and all(0 < float(age) < 24 for age in ages[1:8] + ages[9:])
    assert [float(row["reuse"]) for row in logged] == [2.0] + [4.0] * 7 + [2.0, 4.0]


def test_nothing_is_cached_that_the_learner_could_not_use() -> None:
    cpu = torch.device("cpu")
    for given, wanted in (((), False), (REPLAY, True)):
        config, agent = made(*given)
        assert (cache_spec(config, cpu, agent) == NO_CACHE) == wanted


def test_the_memory_that_a_buffer_takes_is_told_in_advance() -> None:
    config, agent = made(*REPLAY)
    with closing(make_env(config, 1)) as env:
        (note,) = replay_notes(config, env, agent, torch.device("cpu"))
        assert replay_notes(replace(config, replay_ratio=0.0), env, agent, None) == []
    replay = make_replay(config, agent, 0)
    assert replay is not None
    replay.add(named_batch(config, agent, 0))
    taken = sum(ring.nbytes for ring in replay._rings)
    assert f"takes {taken / 1024:.1f} KiB of memory" in note or f"takes {taken / 1024:.0f} KiB" in note


def test_what_is_replayed_stays_within_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: Sequence[Unroll] = learned(monkeypatch)
    run(tmp_path, *CARTPOLE, *REPLAY, "--replay-max-age", "2", "--steps", "160")
    drawn = [(version, batch.replayed) for version, batch in enumerate(batches) if batch.replayed is not None]
    lags = {version - acted for version, replayed in drawn for acted in replayed[4:].tolist()}
    assert lags == {1, 2} and len(drawn) == 7
