"""The local engine: actors in turns, in threads, in groups; updates that are enqueued or compiled."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from training_in_process import FEEDFORWARD, as_on_a_gpu, run
from training_process import (
    CARTPOLE,
    TINY,
    assert_same_run,
    rows,
)

from deltabeast.agents import Actor, Agent, AgentSpec
from deltabeast.agents.accelerate import ALL
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.agents.cpu.cache import NO_CACHE
from deltabeast.agents.cpu.verify import NUM_ENVS
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.parsing import parse
from deltabeast.launch.training import cpu_parts, plan
from deltabeast.launch.training.local import engine as local_engine
from deltabeast.launch.training.local import workers as local_workers
from deltabeast.launch.training.local.engine import LocalEngine
from deltabeast.launch.training.plan import resolve
from deltabeast.launch.training.run import Run

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "device", "more", "wanted"),
    [
        (32, 32, "cuda", {}, 2),
        (256, 32, "cuda", {}, 2),
        (2, 32, "cuda", {}, 2),
        (1, 32, "cuda", {}, 1),
        (33, 33, "cuda", {}, 1),
        (48, 16, "cuda", {}, 1),  # 24 and 16: no whole batches
        (32, 32, "cuda", {"overlap": "off"}, 1),
        (32, 32, "cuda", {"deterministic": True}, 1),
        (32, 32, "cpu", {}, 1),
        (32, 32, "cpu", {"overlap": "on"}, 1),
    ],
)
def test_a_gpu_has_the_environments_in_two_groups(
    num_envs: int, batch_size: int, device: str, more: dict[str, Any], wanted: int
) -> None:
    config = TrainConfig(num_envs=num_envs, batch_size=batch_size, **more)
    assert plan.env_groups(config, torch.device(device)) == wanted


@pytest.mark.parametrize(
    ("stem", "num_envs", "more", "wanted"),
    [
        ("nature", 8, {}, True),
        ("nature", 7, {}, False),  # too few to pay
        ("residual", 4, {}, True),
        ("residual", 3, {}, False),
        ("nature", 8, {"precision": "bf16"}, True),
        ("nature", 7, {"precision": "bf16"}, False),
        ("shallow", 8, {}, True),
        ("shallow", 7, {}, False),
        ("shallow", 32, {"precision": "bf16"}, False),  # never measured
        ("small", 32, {}, False),
        ("mlp", 32, {}, False),
        ("nature", 8, {"batch_size": 16}, True),
        ("nature", 8, {"batch_size": 4}, False),  # the second batch would be learned by changed weights
        ("nature", 8, {"num_actors": 2}, True),
        ("nature", 8, {"deterministic": True}, False),
        ("nature", 8, {"overlap": "on"}, False),
        ("nature", 8, {"compile": "on"}, False),
    ],
)
def test_trunk_features_are_cached_where_the_learner_has_the_same_weights_and_it_pays(
    stem: str, num_envs: int, more: dict[str, Any], wanted: bool
) -> None:
    shape = {"small": (3, 5, 5), "mlp": (5,)}.get(stem, (4, 84, 84))
    agent = Agent(AgentSpec(shape, 4, core="feedforward", stem=stem))
    config = TrainConfig(num_envs=num_envs, **{"batch_size": num_envs, **more})
    agent.autocast_dtype = torch.bfloat16 if config.precision == "bf16" else None
    assert bool(cpu_parts.cache_spec(config, torch.device("cpu"), agent).trunk) == wanted
    assert not any(cpu_parts.cache_spec(config, torch.device("cuda"), agent))


@pytest.mark.parametrize(
    ("more", "projection", "core"),
    [
        ({}, True, True),
        ({"batch_size": 8}, False, False),  # unrolls are joined
        ({"batch_size": 2}, False, False),
        ({"num_actors": 2}, True, True),
        ({"deterministic": True}, False, False),  # Ray's learner caches nothing: the same bits are promised
        ({"bptt": "per_step"}, True, False),
        ({"overlap": "on"}, False, False),
        ({"compile": "on"}, False, False),
    ],
)
def test_activations_are_cached_where_the_learner_has_the_same_weights(
    more: dict[str, Any], projection: bool, core: bool
) -> None:
    config = TrainConfig(num_envs=4, **{"batch_size": 4, **more})
    agent = Agent(AgentSpec((5,), 4, core="lstm", stem="mlp"))
    assert cpu_parts.cache_spec(config, torch.device("cpu"), agent) == (False, projection, core)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), marks=pytest.mark.long),
        pytest.param(("--num-actors", "2"), marks=pytest.mark.long),
        ("--batch-size", "8"),
        ("--bptt", "per_step"),
    ],
)
def test_training_from_cached_features_is_training(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features were cached in one run and not in the other; the logs agree to rounding."""
    arguments = ("--game", "pong", "--stem", "nature", *TINY, *more, "--steps", "80", "--log-seconds", "0")
    computed = []
    trunk_features = FastAgent.trunk_features

    def counted(fast: FastAgent, observation: torch.Tensor) -> torch.Tensor:
        if len(observation) != NUM_ENVS:  # with which a run begins, by which both are compared
            computed.append(len(observation))
        return trunk_features(fast, observation)

    monkeypatch.setattr(FastAgent, "trunk_features", counted)
    monkeypatch.setitem(cpu_parts.CACHING_PAYS_FROM, "nature", {None: 4})
    run(tmp_path / "cached", *arguments)
    assert set(computed) == {4}, "only ever computed step by step"
    monkeypatch.setattr("deltabeast.launch.training.local.engine.cache_spec", lambda *_: NO_CACHE)
    run(tmp_path / "anew", *arguments)
    assert max(computed) > 4
    cached, anew = ([_learned(row) for row in rows(tmp_path / name)] for name in ("cached", "anew"))
    assert len(cached) >= 2
    for one, other in zip(cached, anew, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    assert cached[0] != cached[1]


def _learned(row: dict[str, str]) -> dict[str, float]:
    names = ("total_loss", "policy_loss", "baseline_loss", "entropy", "grad_norm", "policy_lag")
    return {name: float(row[name]) for name in names if row[name]}


def test_groups_train_as_one_actor_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of each actor's environments, all of them different, put together in every batch."""
    monkeypatch.setattr("deltabeast.launch.training.local.engine.env_groups", lambda config, device: 2)
    arguments = (*FEEDFORWARD, "--overlap", "on", "--num-actors", "2", "--steps", "400", "--log-seconds", "0")
    with ExitStack() as stack:
        config = parse(["train", "--env", "training_envs:Match-v0", *arguments, "--run-dir", str(tmp_path)])
        plan.resolve(config)
        engine = LocalEngine(config, stack)
        training = Run(config, engine, stack)
        assert [actor.num_envs for actor in engine.actors] == [2, 2, 2, 2]
        frames = torch.cat([torch.from_numpy(actor.observation) for actor in engine.actors])
        assert len(frames) == 8 and not torch.equal(frames[:2], frames[2:4])
        training.run()
    assert [int(row["step"]) for row in rows(tmp_path)] == list(range(20, 401, 20))


def test_actors_in_threads_learn_with_a_bounded_lag(tmp_path: Path) -> None:
    arguments = ("--core", "feedforward", "--num-envs", "8", "--batch-size", "16", "--unroll-length", "10")
    arguments = ("--env", "training_envs:Match-v0", *arguments, "--num-actors", "2", "--overlap", "on")
    run(tmp_path, *arguments, "--steps", "8k", "--learning-rate", "0.002", "--log-seconds", "0")
    logged = rows(tmp_path)
    assert float(logged[-1]["game_return"]) > 8.0, "random play scores 5"
    lags = [float(row["policy_lag_max"]) for row in logged]
    assert 0 < max(lags) <= 4
    assert all(float(row["policy_lag"]) <= float(row["policy_lag_max"]) for row in logged)
    shares = [
        float(logged[-1][f"share_{part}"]) for part in ("emulation", "inference", "learning", "waiting")
    ]
    assert all(0 <= share <= 1 for share in shares)


def test_lockstep_has_no_lag(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "100", "--log-seconds", "0")
    assert all(float(row["policy_lag_max"]) == 0.0 for row in rows(tmp_path))
    assert all(float(row["log_rho_abs_max"]) < 1e-4 for row in rows(tmp_path))


@pytest.mark.usefixtures("updates_in_pytorch")
def test_a_run_is_the_same_with_updates_that_are_enqueued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns, with checkpoints and rows of the log in between, and a resume."""
    monkeypatch.setattr("deltabeast.launch.training.local.engine.cache_spec", lambda *_: NO_CACHE)  # as there
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD, "--overlap", "off", "--log-seconds", "0",
                 "--milestone-steps", "100")  # fmt: skip
    for name in ("plain", "gpu"):
        if name == "gpu":
            as_on_a_gpu(monkeypatch)
        for steps in ("400", "800"):
            run(tmp_path / name, *arguments, "--steps", steps)
    assert_same_run(tmp_path / "plain", tmp_path / "gpu")


def test_who_waits_for_the_compiler_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda run, **options: asked.append(run.__name__) or run)
    for wanted, steps, told in (("auto", "20", 0), ("on", "40", 1), ("on", "40", 0)):
        run(tmp_path, *CARTPOLE, "--steps", steps, "--compile", wanted)
        assert capsys.readouterr().out.count("compiling: the first update takes a minute") == told
    assert asked == ["loss", "rmsprop_if_finite"] * 2


@pytest.mark.parametrize("exact", [(), ("--deterministic",)])
def test_episodes_that_begin_anew_are_others(
    exact: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint without them: else an environment that crashes now and then would show its first games
    again and again."""
    seeds: list[int] = []

    class Seeded(Actor):
        def __init__(self, *given: Any, seed: int, **more: Any) -> None:
            seeds.append(seed)
            super().__init__(*given, seed=seed, **more)

    monkeypatch.setattr(local_engine, "Actor", Seeded)
    monkeypatch.setattr(local_workers, "Actor", Seeded)
    for step in (0, 40, 80):
        config = parse(["train", *CARTPOLE, *exact, "--run-dir", str(tmp_path)])
        resolve(config)
        with ExitStack() as stack:
            engine = LocalEngine(config, stack)
            agent = engine.agent
            learner = plan.make_learner(agent, config, 200)
            learner.steps = step
            rng = {"torch_rng": torch.get_rng_state(), "cuda_rng": None}
            state = {"learner": learner.state_dict(), "actors": None, "turn": 0, **rng}
            engine.start(agent, state if step else None, print)
            gradients = torch.empty(sum(parameter.numel() for parameter in agent.parameters()))
            local_workers.Worker(config, 2, 1, step, agent, gradients, ALL, 1)
    assert len(seeds) == 6 and len(set(seeds[1::2])) == 3
    assert len(set(seeds[::2])) == (1 if exact else 3), "bit for bit"
