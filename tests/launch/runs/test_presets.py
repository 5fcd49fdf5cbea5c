"""`--preset published` is the publication's training: every setting of it is set, or a named exception."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from random_batches import make_batch

from deltabeast.agents import Agent, AgentSpec, Learner
from deltabeast.agents.vtrace import vtrace_from_log_rhos
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.runs.directory import resume_command
from deltabeast.launch.runs.presets import (
    NOT_PUBLISHED,
    PRESETS,
    PURPOSES,
    begun_with,
    overridden,
    preset_config,
)
from deltabeast.launch.runs.published import PROTOCOL
from deltabeast.launch.training.command import train
from deltabeast.launch.training.plan import learner_config
from deltabeast.launch.units import parse_steps

PUBLISHED: dict[str, Any] = {
    # the learner's input and its losses
    "unroll_length": 50, "batch_size": 32, "reward_clip": 1.0, "discount": 0.99,
    "truncation": "terminal",
    "clip_rho_threshold": 1.0, "clip_pg_rho_threshold": 1.0, "lambda": 1.0,
    "baseline_cost": 0.5, "entropy_cost": 0.01, "bptt": "per_step", "precision": "fp32", "stem": "residual",
    # RMSProp
    "learning_rate": 6e-4, "alpha": 0.99, "eps": 0.01, "momentum": 0, "centered": False, "weight_decay": 0,
    "rmsprop_corrected": False, "max_grad_norm": 40.0, "annealed_at_half_time": 3e-4,
    # the run
    "steps": 200_000_000, "steps_of_an_update": 1600, "milestone_steps": 50_000_000,
    "checkpoint_minutes": 10.0, "protocol": "paper-code",
    "num_actors": 48, "num_envs": 1, "asynchronous": True,
    "actions_of_amidar_and_james_bond": 6, "gradient_of_the_linear_transformers_query": "current step",
}  # fmt: skip
"""Section 4.4 and appendix C of Irie et al. (2021), and the released code where they leave it open."""
EXCEPTIONS = {
    "num_actors": "actors", "num_envs": "actors", "asynchronous": "actors",
    "actions_of_amidar_and_james_bond": "six_actions",
    "gradient_of_the_linear_transformers_query": "linear_transformer",
}  # fmt: skip


def make_learner(config: TrainConfig, total_steps: int) -> Learner:
    agent = Agent(AgentSpec((5,), 3, "lstm", "mlp"))
    return Learner(agent, learner_config(config, total_steps))


def ours() -> dict[str, Any]:
    """What `train --preset published` makes of it, read where it is used."""
    config = parse(["train", "--game", "gopher", "--preset", "published"])
    total = parse_steps(config.steps)
    learner = make_learner(config, total)
    (group,) = learner.optimizer.param_groups
    defaults = {name: p.default for name, p in inspect.signature(vtrace_from_log_rhos).parameters.items()}
    settings = {**vars(config), **defaults, **vars(learner.config), **group}
    learner.steps = total // 2
    return {
        **settings,
        "lambda": 1.0,  # there is none
        "annealed_at_half_time": learner.learning_rate(),
        "steps": total,
        "milestone_steps": parse_steps(config.milestone_steps),
        "steps_of_an_update": config.unroll_length * config.batch_size,
        "protocol": config.protocol or PROTOCOL,
    }


def test_every_published_setting_is_set_or_a_named_exception() -> None:
    settings = ours()
    differing = {name for name, value in PUBLISHED.items() if settings.get(name) != value}
    assert differing == set(EXCEPTIONS)
    assert {*EXCEPTIONS.values(), "environment"} == set(NOT_PUBLISHED)
    assert set(PRESETS["published"]) <= {*PUBLISHED, "rmsprop_eps"}


def test_its_optimizer_is_torchs_own_from_the_first_step(seed: int) -> None:
    """Annealed per update, clipped at 40, and without the correction that is our default."""
    steps = 10 * make_batch(Agent(AgentSpec((5,), 3, "lstm", "mlp"))).num_steps
    learner = make_learner(preset_config("published"), steps)
    plain = Agent(learner.agent.spec)
    plain.load_state_dict(learner.agent.state_dict())
    optimizer = torch.optim.RMSprop(plain.parameters(), lr=6e-4, alpha=0.99, eps=0.01)
    twin = Learner(plain, learner.config)
    for update in range(3):
        batch = make_batch(learner.agent)
        learner.update(batch)
        optimizer.zero_grad()
        twin.loss(batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 40.0)
        optimizer.param_groups[0]["lr"] = 6e-4 * (1 - update / 10)
        optimizer.step()
        for ours, theirs in zip(learner.agent.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_single_options_override_a_preset_wherever_they_stand() -> None:
    for words in ("--preset published --learning-rate 1e-3", "--learning-rate 1e-3 --preset published"):
        config = parse(["train", "--game", "gopher", *words.split()])
        assert config.learning_rate == 1e-3 and config.rmsprop_corrected is False
        assert overridden(vars(config)) == ["learning_rate 0.001"]
    assert parse(["train", "--game", "gopher"]).rmsprop_corrected
    assert parse(["train", "--preset", "published", "--rmsprop-corrected"]).rmsprop_corrected


def test_info_shows_the_preset_and_the_command_that_goes_on_with_it(tmp_path: Path) -> None:
    words = (
        "train --env CartPole-v1 --core lstm --preset published --stem mlp --steps 40 --num-envs 2 "
        f"--batch-size 2 --unroll-length 5 --num-workers 1 --device cpu --run-dir {tmp_path}/run"
    ).split()
    train(parse(words))
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["preset"] == "published" and config["rmsprop_corrected"] is False
    assert config["core"] == "lstm" and config["bptt"] == "per_step"
    lines = dict(describe_run(tmp_path / "run"))
    assert lines["preset"].startswith("published (as in Irie et al. 2021), but ")
    assert "batch_size 2" in lines["preset"]
    assert "bptt" not in lines["preset"]
    config["steps"] = "80"
    command = resume_command(config, tmp_path / "run").split()[1:]
    again = parse(command)
    assert "--preset published" in " ".join(command) and "rmsprop" not in " ".join(command)
    assert {name: value for name, value in vars(again).items() if name != "run_dir"} == {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in config.items()
        if name != "run_dir"
    }
    train(again)


def test_every_preset_sets_options_that_differ_and_says_what_it_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(PRESETS) == set(PURPOSES)
    for name, options in PRESETS.items():
        config = vars(parse(["train", "--game", "gopher", "--preset", name]))
        assert {option: config[option] for option in options} == options
        assert config != {**vars(TrainConfig(game="gopher")), "preset": name}
    with pytest.raises(SystemExit):
        parse(["train", "--help"])
    shown = " ".join(re.sub(r"[^\x00-\x7f]", " ", capsys.readouterr().out).split())
    assert all(f"{name}:" in shown for name in PRESETS)


ENV = ("train", "--env", "CartPole-v1", "--core", "lstm")


def chosen(*words: str) -> tuple[str | None, float, int]:
    config = parse(words)
    return config.preset, config.learning_rate, config.num_envs


def test_environments_begin_from_a_preset_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    preset = PRESETS["gymnasium"]
    assert chosen(*ENV) == ("gymnasium", preset["learning_rate"], preset["num_envs"])
    assert chosen(*ENV, "--learning-rate", "3e-4") == ("gymnasium", 3e-4, preset["num_envs"])
    assert chosen(*ENV, "--preset", "none") == ("none", TrainConfig.learning_rate, TrainConfig.num_envs)
    assert chosen(*ENV, "--preset", "laptop") == ("laptop", 4e-4, 16)
    assert chosen("train", "--game", "pong") == (None, TrainConfig.learning_rate, TrainConfig.num_envs)
    (tmp_path / "file.json").write_text('{"env": "CartPole-v1", "num_envs": 8}')
    assert chosen("train", "--config", "file.json") == ("gymnasium", preset["learning_rate"], 8)


def test_a_run_goes_on_from_the_preset_with_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--num-envs", "2", "--batch-size", "2", "--unroll-length", "5", "--num-workers", "1")
    run = Path("runs/CartPole-v1/lstm/seed-1")
    train(parse([*ENV, *small, "--steps", "20"]))
    assert dict(describe_run(run))["preset"].startswith("gymnasium (small environments")
    train(parse([*ENV, *small, "--steps", "30"]))

    saved = json.loads((run / "config.json").read_text())
    old = {**vars(TrainConfig(env="CartPole-v1", core="lstm", num_envs=2, batch_size=2, unroll_length=5))}
    old |= {"preset": None, "num_workers": 1, "steps": "30"}
    saved["config"] = {name: value for name, value in old.items() if name in saved["config"]}
    (run / "config.json").write_text(json.dumps(saved))  # as an earlier version began it
    assert chosen(*ENV) == ("none", TrainConfig.learning_rate, TrainConfig.num_envs)
    assert chosen("train", "--config", str(run)) == ("none", TrainConfig.learning_rate, 2)
    assert chosen(*ENV, "--seed", "2")[0] == "gymnasium"
    train(parse([*ENV, *small, "--steps", "40"]))
    with pytest.raises(
        UsageError,
        match=r"with --learning-rate 0\.0006 .*, begun with --preset none; give --learning-rate 0\.0006",
    ):
        train(parse([*ENV, *small, "--steps", "50", "--preset", "gymnasium"]))


def test_the_laptops_preset_trains_and_info_names_it(tmp_path: Path) -> None:
    few = "--num-envs 2 --batch-size 2 --steps 40"  # an emulator takes a fifth of a second to begin
    words = f"train --game pong --preset laptop {few} --device cpu --run-dir {tmp_path}/run"
    train(parse(words.split()))
    lines = dict(describe_run(tmp_path / "run"))
    assert lines["preset"] == f"laptop ({PURPOSES['laptop']}), but steps 40, num_envs 2, batch_size 2"


def test_a_run_begun_with_what_a_presets_name_stood_for_goes_on_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = "--num-envs 2 --batch-size 2 --steps 40 --device cpu --num-workers 1"
    train(parse(f"train --game pong --preset laptop-2026-11 {short}".split()))
    run = Path("runs/pong/rdn/seed-1")
    saved = json.loads((run / "config.json").read_text())
    saved["config"]["preset"] = "laptop"
    del saved["config"]["replay_ratio"]  # an option that runs of then lack
    (run / "config.json").write_text(json.dumps(saved))
    lines = dict(describe_run(run))
    assert lines["preset"].startswith("laptop-2026-11 (") and lines["preset"].endswith(
        "but steps 40, num_envs 2, batch_size 2"
    )
    again = parse(f"train --game pong --preset laptop {short} --steps 80".split())
    assert {name: getattr(again, name) for name in PRESETS["laptop-2026-11"]} == {
        **PRESETS["laptop-2026-11"], "num_envs": 2, "batch_size": 2, "steps": "80",
    }  # fmt: skip
    train(again)
    other_seed = parse(f"train --game pong --preset laptop --seed 2 {short}".split())
    assert other_seed.preset == "laptop" and other_seed.stem == PRESETS["laptop"]["stem"]
    as_it = parse(["train", "--config", str(run), "--seed", "3"])
    assert (as_it.preset, as_it.stem) == ("laptop-2026-11", "nature")


def test_a_run_goes_on_with_the_preset_of_its_time_whatever_it_overrode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/pong/rdn/seed-1")
    run.mkdir(parents=True)
    overrides = ("--stem nature --steps 2M", "--stem shallow --steps 3M --normalise-observations on", "")
    for words in overrides:
        for begun in ("laptop", "laptop-2026-11"):
            command = f"train --game pong --preset {begun} {words}".split()
            (run / "config.json").unlink(missing_ok=True)
            config = {**vars(parse(command)), "run_dir": None, "preset": "laptop"}
            if begun != "laptop":
                for option in ("replay_ratio", "passes"):
                    del config[option]
            (run / "config.json").write_text(json.dumps({"config": config, "versions": {}}))
            again = vars(parse(f"train --game pong --preset laptop {words}".split()))
            assert {name: again[name] for name in PRESETS[begun]} == {
                name: config[name] for name in PRESETS[begun]
            }
            assert again["normalise_observations"] == config["normalise_observations"]
    assert begun_with({"preset": None}) is None and begun_with({"preset": "mine"}) == "mine"


def test_info_lists_options_that_the_preset_does_not_set() -> None:
    config = vars(
        parse(["train", "--game", "pong", "--preset", "laptop", "--discount", "0.9", "--steps", "3M"])
    )
    assert overridden(config) == ["steps 3M", "discount 0.9"]
    assert overridden({**config, "preset": None}) == []


def test_a_preset_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--preset"):
        parse(["train", "--game", "gopher", "--preset", "publishd"])


def test_the_switch_is_in_the_command_that_goes_on() -> None:
    config = {**vars(TrainConfig(game="gopher")), "rmsprop_corrected": False}
    command = resume_command(config, Path("x"))
    assert "--no-rmsprop-corrected" in command
    assert parse(command.split()[1:]).rmsprop_corrected is False


def test_a_run_of_minutes_is_saved_each_minute() -> None:
    assert parse(["train", "--env", "CartPole-v1"]).checkpoint_minutes == 1
    assert parse(["train", "--env", "CartPole-v1", "--preset", "none"]).checkpoint_minutes == 10
