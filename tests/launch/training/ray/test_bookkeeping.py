"""Accounts of unrolls, restarts, the sharding of a run over a cluster: what needs no cluster."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from deltabeast.launch.config import TrainConfig
from deltabeast.launch.parsing import parse
from deltabeast.launch.training import ray as cluster
from deltabeast.launch.training.randomness import actor_seed
from deltabeast.launch.training.ray import restarts
from deltabeast.launch.training.ray.ledger import Ledger, ShardId
from deltabeast.launch.training.ray.resources import check_cluster, check_resources, learner_device, sharding
from deltabeast.launch.training.ray.restarts import BUDGET, Restarts


def config(*given: str) -> TrainConfig:
    return parse(["train", "--game", "pong", "--engine", "ray", *given])


# Ledger


def test_every_unroll_is_counted_once_whatever_comes(seed: int) -> None:
    """Actors die, replies come twice, late or never: against plain sets."""
    ledger = Ledger()
    lives = {actor: 0 for actor in range(3)}
    made: dict[tuple[int, int], int] = {}
    accepted: list[ShardId] = []
    never_came = refused = 0
    for _ in range(2000):
        actor = random.randrange(3)
        chance = random.random()
        if chance < 0.05:
            lives[actor] += random.randrange(1, 3)
        elif chance < 0.15 and accepted:
            again = random.choice(accepted)
            assert not ledger.accept(again)
            refused += 1
        elif chance < 0.2:
            stale = ShardId(actor, lives[actor] - 1, 10**6)
            if made.get((actor, lives[actor])):  # the ledger knows of the later life
                assert not ledger.accept(stale)
                refused += 1
        else:
            key = (actor, lives[actor])
            gap = random.choice([0] * 9 + [2])
            never_came += gap
            identity = ShardId(*key, made.get(key, 0) + gap)
            made[key] = identity.sequence + 1
            assert ledger.accept(identity)
            accepted.append(identity)
    assert len(set(accepted)) == len(accepted)
    assert ledger.counts["doubled"] == refused and ledger.counts["lost"] == never_came
    gone = set(random.sample(accepted, 20))
    ledger.mark_died(gone)
    ledger.mark_learned([identity for identity in accepted if identity not in gone])
    assert not ledger.waiting
    assert ledger.counts["died"] == 20 and ledger.counts["learned"] == len(accepted) - 20
    with pytest.raises(KeyError):
        ledger.mark_learned([accepted[0]])


def test_a_roll_back_undoes_and_forgets_nothing() -> None:
    ledger = Ledger()
    unrolls = [ShardId(0, 0, n) for n in range(7)]
    for identity in unrolls:
        ledger.accept(identity)
    ledger.mark_learned(unrolls[:2])
    saved = dict(ledger.counts)
    ledger.mark_learned(unrolls[2:5])
    ledger.roll_back(saved)
    assert ledger.counts == {"learned": 2, "lost": 0, "doubled": 0, "undone": 3, "died": 0}
    assert ledger.waiting == {*unrolls[5:]}
    ledger.mark_learned(unrolls[5:])
    assert ledger.counts["learned"] == 4
    assert not ledger.accept(unrolls[3]), "what was undone does not come again"


# Restarts


def test_delays_double_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    life = Restarts(clock=lambda: now)
    delays = [life.died() for _ in range(BUDGET)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert life.died() is None
    assert life.total == BUDGET + 1


def test_a_healthy_life_clears_the_account_but_time_alone_does_not() -> None:
    now = 0.0
    life = Restarts(clock=lambda: now)
    life.began()
    assert life.died() == 1
    now += 2 * restarts.HEALTHY  # it never began: it cannot be placed, or dies in its first breath
    assert life.died() == 2
    life.began()
    now += restarts.HEALTHY - 1
    assert life.died() == 4
    life.began()
    now += restarts.HEALTHY
    assert life.died() == 1
    assert life.total == 4


# Sharding and resources


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "learners", "expected"),
    [
        (32, 32, 1, (32, 1, 1)),
        (32, 32, 2, (16, 2, 1)),
        (8, 32, 2, (8, 1, 2)),
        (1, 32, 1, (1, 1, 32)),
        (128, 32, 2, (16, 8, 1)),
        (32, 128, 4, (32, 1, 1)),
    ],
)
def test_columns_add_up(num_envs: int, batch_size: int, learners: int, expected: Sequence[int]) -> None:
    sizes = ("--num-envs", str(num_envs), "--batch-size", str(batch_size), "--num-learners", str(learners))
    found = sharding(config(*sizes))
    assert (found.columns, found.per_unroll, found.per_update) == tuple(expected)
    assert found.columns * found.per_unroll == num_envs
    assert found.columns * found.per_update * learners == batch_size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--num-learners", "3"), "--num-learners 3: it must divide --batch-size 32"),
        (("--num-learners", "0"), "--num-learners 0; it must be at least 1"),
        (("--num-learners", "2", "--num-envs", "24", "--batch-size", "24"), None),
        (("--num-learners", "2", "--num-envs", "8", "--batch-size", "24"), "8 and 12 columns for each of 2"),
        (("--num-workers", "2"), "--num-workers: only with --engine local"),
        (("--overlap", "on"), "--overlap: only with --engine local; with ray say --num-actors"),
        (("--actor-cpus", "0"), "--actor-cpus 0.0; it must be positive"),
        (("--learner-cpus", "-1"), "--learner-cpus -1.0; it must be positive"),
        (("--actor-gpus", "2"), "--actor-gpus 2.0; it must be from 0 to 1: an actor uses at most one GPU"),
    ],
)
def test_what_a_cluster_cannot_keep_is_refused(given: Sequence[str], message: str | None) -> None:
    if message is None:
        check_cluster(config(*given))
        return
    with pytest.raises(ValueError, match=message):
        check_cluster(config(*given))


def test_no_room_is_told_before_anything_waits() -> None:
    total, largest = {"CPU": 8.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}
    check_resources(config("--num-actors", "7"), "cuda", total, largest)
    for given, device, message in (
        (("--num-actors", "8"), "cpu", "1 x 1 CPU for learners and 8 x 1 for actors: there are 8, at most 4"),
        (("--learner-cpus", "5"), "cpu", "at most 4 on one node.*--learner-cpus"),
        (("--num-learners", "2"), "cuda", "2 x 1 GPU for learners and 1 x 0 for actors: there are 1.*device"),
        (("--actor-gpus", "0.5"), "cuda", "1 x 0.5 for actors"),
    ):
        with pytest.raises(ValueError, match=message):
            check_resources(config(*given), device, total, largest)


def test_learners_take_gpus_where_there_are_enough() -> None:
    one, two = {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}
    assert learner_device(config(), one) == "cuda"
    assert learner_device(config("--device", "cpu"), one) == "cpu"
    assert learner_device(config("--num-learners", "2"), one) == "cpu"
    assert learner_device(config("--actor-gpus", "0.5", "--num-actors", "2"), two) == "cuda"
    assert learner_device(config("--actor-gpus", "0.5", "--num-actors", "2"), one) == "cpu"
    with pytest.raises(ValueError, match="choose auto, cpu or cuda"):
        learner_device(config("--device", "cuda:1"), two)


def test_no_two_lives_of_any_actor_play_the_same_games() -> None:
    lives = [(i, life, step) for i in range(20) for life in range(4) for step in (0, 1000, 2000)]
    seeds = [actor_seed(1, *life) for life in lives]
    assert len(set(seeds)) == len(lives)
    assert actor_seed(7, 3, 0, 0) == 7003, "as with the local engine"
    assert all(0 <= seed < 2**63 for seed in seeds)


# Examples


def test_ray_accepts_the_example_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    util = pytest.importorskip("ray.autoscaler._private.util")
    text = (Path(cluster.__file__).parent / "ray_up.yaml").read_text()
    config = util.prepare_config(yaml.safe_load(text))
    util.validate_config(config)
    assert config["provider"]["type"] == "local" and config["max_workers"] == 2
    with pytest.raises(Exception, match="head_start_ray_command_s"):
        util.validate_config({**config, "head_start_ray_command_s": []})


def slurm(folder: Path, **stands_in: str) -> subprocess.CompletedProcess[str]:
    """Our script in a job of two nodes, with stand-ins for the commands it calls."""
    for name, body in {"scontrol": "echo first; echo second", **stands_in}.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    script = Path(cluster.__file__).parent / "slurm.sh"
    job = {"JOB_ID": "4012345", "JOB_NODELIST": "x", "CPUS_PER_TASK": "5", "GPUS_ON_NODE": "2"}
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **{f"SLURM_{n}": v for n, v in job.items()}}
    given = ["bash", script, "--game", "gopher"]
    return subprocess.run(given, env=environment, capture_output=True, text=True, timeout=60)


ADDRESS = '[ "${@: -2:1}" = hostname ] && echo 192.0.2.7 2001:db8::7 && exit'
"""What srun answers first."""


def test_the_slurm_script_starts_a_cluster_and_trains_on_it(tmp_path: Path) -> None:
    """The stand-ins write down what they were told; where training ends, the nodes are stopped."""
    told = tmp_path / "told"
    until_all_told = f"until [ $(wc -l < {told}) = 3 ]; do sleep 0.01; done; exit 7"
    done = slurm(
        tmp_path,
        srun=f'{ADDRESS}\necho "$@" >> {told}',
        ray="",
        deltabeast=f'echo deltabeast "$@" >> {told}; {until_all_told}',
    )
    assert done.returncode == 7, done.stderr
    lines = told.read_text()
    assert "deltabeast train --engine ray --ray-address 192.0.2.7:22345 --game gopher\n" in lines
    step = "--nodes=1 --ntasks=1 --cpus-per-task=5 --overlap -w"
    assert f"{step} first ray start --head --node-ip-address=192.0.2.7 --port=22345" in lines
    room = "--num-cpus=5 --num-gpus=2 --block\n"
    assert f"{step} second ray start --address=192.0.2.7:22345 {room}" in lines


def test_the_slurm_script_does_not_wait_for_a_head_that_failed(tmp_path: Path) -> None:
    done = slurm(tmp_path, srun=f"{ADDRESS}\necho port in use >&2; exit 1", ray="exit 1", deltabeast="exit 7")
    assert done.returncode == 1 and "port in use" in done.stderr
