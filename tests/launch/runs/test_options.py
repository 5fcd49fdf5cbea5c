"""Every option of `train` declares what it decides, and resuming, comparing and engines go by that."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from comparison_runs import make_run

from deltabeast.agents.manifest import checkpoint_paths, read_spec
from deltabeast.cores import make_core
from deltabeast.launch.cli import main
from deltabeast.launch.comparison.runs import read_run
from deltabeast.launch.config import Formerly, Only, Scope, TrainConfig
from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.runs.directory import read_config, resume_command, write_config
from deltabeast.launch.runs.options import (
    DEFAULTS,
    FORMER,
    LEGACY_VALUES,
    OPTIONS,
    declarations,
    former_values,
    given_only_for,
)
from deltabeast.launch.training.plan import (
    agent_spec,
    hyperparameters,
    learner_config,
    make_env,
    resolve,
)
from deltabeast.launch.training.resume import check_same_options, restore_former_options
from deltabeast.launch.training.sweep import runs_of

OTHERS: dict[str, Any] = {
    **{"game": "pong", "env": "CartPole-v1", "core": "lstm", "core_options": {"hidden_size": 8}},
    **{"stem": "small", "observations": "picture", "normalise_observations": "on"},
    **{"protocol": "ale-standard", "cores": ("rdn", "lstm"), "seeds": 3, "resume": "must"},
    **{"preset": "published", "steps": "3M", "engine": "ray", "device": "cpu", "precision": "fp32"},
    **{
        "num_workers": 2,
        "threads": 2,
        "ray_address": "auto",
        "overlap": "off",
        "compile": "off",
        "fused": "off",
        "bptt": "per_step",
        "minibatch_size": 16,
        "replay_buffer": "3M",
        "replay_max_age": 3,
        "burn_in": 50,
        "optimizer": "adam",
    },
    **{"run_dir": Path("elsewhere"), "milestone_steps": "3M", "frame_stack": 1, "num_actions": 6},
    **{
        "env_options": {"mode": 1},
        "config": Path("some.json"),
        "track": "wandb",
        "eval_every": "3M",
        "profile": 2,
    },
    **{"truncation": "terminal"},
}
"""Another value than the default, where half of the default or its negation is none."""


def other(name: str) -> Any:
    default = getattr(TrainConfig(), name)
    return (
        OTHERS[name] if name in OTHERS else not default if isinstance(default, bool) else default * 2 or 0.5
    )


MAY_CHANGE = {
    # the checkpoint's agent is compared
    *(
        "game",
        "env",
        "env_options",
        "core",
        "core_options",
        "stem",
        "protocol",
        "frame_stack",
        "flicker",
        "blink",
    ),
    "num_actions",
    *("observations", "normalise_observations", "normalise_values"),
    *("steps", "device", "precision", "num_envs", "num_actors", "num_workers", "threads"),
    *("engine", "ray_address"),
    *("actor_cpus", "actor_gpus", "num_learners", "learner_cpus", "overlap", "compile", "fused"),
    "deterministic",
    *("run_dir", "resume", "cores", "seeds", "preset", "config", "show_config"),
    *("checkpoint_minutes", "milestone_steps", "log_seconds", "track"),
    *("eval_every", "video", "profile"),
}
"""The options in which a run may go on otherwise."""

AVERAGED_OVER = {
    *("seed", "device", "deterministic", "preset"),
    *("run_dir", "resume", "checkpoint_minutes", "milestone_steps", "log_seconds", "cores", "seeds"),
    *(
        "num_workers",
        "threads",
        "compile",
        "fused",
        "ray_address",
        "num_learners",
        "config",
        "show_config",
        "track",
    ),
    *("eval_every", "video", "profile"),
    *("actor_cpus", "actor_gpus", "learner_cpus"),
}
"""The options in which runs of one series may differ."""


def test_a_field_that_declares_nothing_is_refused() -> None:
    @dataclass
    class Silent:
        speed: Annotated[int, Scope.SPEED] = 1
        new: int = 2

    @dataclass
    class Undecided:
        new: Annotated[int, Scope.SPEED, Scope.LEARNING] = 2

    for config in (Silent, Undecided):
        with pytest.raises(TypeError, match=rf"^{config.__name__}\.new must declare what it decides, once"):
            declarations(config)


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_a_run_goes_on_only_as_the_same_experiment(name: str, tmp_path: Path) -> None:
    rdn = make_core("rdn", 3, hidden_size=4, num_heads=1, num_layers=1, ff_size=4)
    saved, changed = vars(TrainConfig()), replace(TrainConfig(), **{name: other(name)})
    if name in MAY_CHANGE:
        check_same_options(saved, changed, rdn, tmp_path)
    else:
        with pytest.raises(UsageError, match=rf"holds a run with --(no-)?{name.replace('_', '-')}"):
            check_same_options(saved, changed, rdn, tmp_path)


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_runs_are_one_series_exactly_if_they_learn_alike(name: str, tmp_path: Path) -> None:
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    config = json.loads((paths[1] / "config.json").read_text())
    value = other(name) if other(name) != LEGACY_VALUES[name] else DEFAULTS[name]
    config["config"] |= {name: str(value) if name in ("run_dir", "config") else value}
    (paths[1] / "config.json").write_text(json.dumps(config))
    if OPTIONS[name].decides is Scope.AGENT:  # a checkpoint has the say
        for spec in paths[1].glob("checkpoints/*/agent.json"):
            spec.unlink()
    first, second = (read_run(path)[0] for path in paths)
    assert first is not None and second is not None
    same = (first.game, first.core, first.protocol, first.settings) == (
        second.game, second.core, second.protocol, second.settings
    )  # fmt: skip
    assert same == (name in AVERAGED_OVER)
    assert not set(first.settings) & AVERAGED_OVER


def test_what_a_younger_option_formerly_was_is_declared_beside_its_default() -> None:
    @dataclass
    class Config:
        old: Annotated[int, Scope.SPEED] = 1
        new: Annotated[str, Scope.LEARNING, Formerly("before")] = "now"

    assert former_values(declarations(Config)) == {"new": "before"}


@pytest.mark.parametrize(
    ("saved", "typed", "then"),
    [({}, 0.99, 0.9), ({"discount": 0.9}, 0.99, 0.9), ({"discount": 0.99}, 0.99, 0.99), ({}, 0.5, 0.5)],
)
def test_a_run_older_than_an_option_goes_on_as_it_did(
    saved: dict[str, float], typed: float, then: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMER, "discount", 0.9)
    config = TrainConfig(game="pong", run_dir=tmp_path, discount=typed)
    restore_former_options(config)
    assert config.discount == typed  # there is no run yet

    (tmp_path / "config.json").write_text(json.dumps({"config": {"game": "pong", **saved}}))
    restore_former_options(config)
    assert config.discount == then


NEW = {"reward_clip": 0.0, "truncation": "bootstrap"}


@pytest.mark.parametrize(
    ("words", "saved", "learns"),
    [
        ("--game pong", None, (1.0, "bootstrap")),
        ("--env CartPole-v1", None, (0.0, "bootstrap")),
        ("--env CartPole-v1 --preset none", None, (1.0, "bootstrap")),
        ("--env CartPole-v1", {}, (1.0, "terminal")),  # a run that is older than both options
        ("--env CartPole-v1", {"preset": "gymnasium", **NEW}, (0.0, "bootstrap")),
        ("--env CartPole-v1 --reward-clip 3", None, (3.0, "bootstrap")),
        ("--game pong --reward-clip 0 --truncation terminal", None, (0.0, "terminal")),
        ("--game pong --preset published", None, (1.0, "terminal")),
    ],
)
def test_what_is_learned_of_rewards_and_limits_follows_from_the_environment_and_the_run(
    words: str, saved: dict[str, Any] | None, learns: tuple[float, str], tmp_path: Path
) -> None:
    if saved is not None:
        (tmp_path / "config.json").write_text(json.dumps({"config": {"env": "CartPole-v1", **saved}}))
    config = parse(["train", *words.split(), "--run-dir", str(tmp_path)])
    resolve(config)
    assert (config.reward_clip, config.truncation) == learns
    assert learner_config(config, 1).truncation == learns[1]
    with closing(make_env(replace(config, num_envs=1), 1)) as env:
        spec = agent_spec(replace(config, reward_scale=0.5), env)
    assert (spec.reward_clip, spec.reward_scale) == (learns[0], 0.5)


@pytest.mark.parametrize("words", ["--reward-clip -1", "--reward-clip inf", "--reward-scale 0"])
def test_rewards_are_scaled_and_clipped_by_positive_numbers(words: str) -> None:
    with pytest.raises(UsageError, match=f"^{words.split()[0]} .*; it must"):
        resolve(parse(["train", "--env", "CartPole-v1", *words.split()]))


def test_an_engine_refuses_what_it_would_pass_over() -> None:
    everything = TrainConfig(**{name: other(name) for name in OPTIONS})
    ray = ["ray_address", "actor_cpus", "actor_gpus", "num_learners", "learner_cpus"]
    assert given_only_for("ray", everything) == ray
    assert given_only_for("local", everything) == ["num_workers", "threads", "overlap", "profile"]
    assert given_only_for("ray", TrainConfig()) == [] == given_only_for("local", TrainConfig())
    assert Only("ray") != Only("local")


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_the_command_to_go_on_repeats_what_the_run_is(name: str, tmp_path: Path) -> None:
    config = replace(TrainConfig(game="pong"), **{name: other(name)})
    write_config(tmp_path, config)
    words = resume_command(read_config(tmp_path), tmp_path).split()[1:]
    again = parse(words)
    for option in ("core_options", "env_options"):
        setattr(again, option, {key: int(value) for key, value in getattr(again, option).items()})
    once = {"cores": (), "seeds": None, "resume": "auto", "run_dir": tmp_path}
    once |= {"config": None, "show_config": False, "profile": 0}
    if name == "env":  # of a run that began without the preset that --env begins from now
        config.preset = "none"
    assert again == replace(config, **once) or name == "preset"
    assert (f"--{name.replace('_', '-')}" in words) == (name not in once or name == "run_dir") or name in (
        "deterministic", "rmsprop_corrected"
    )  # fmt: skip


def test_typed_core_options_survive_the_command_to_go_on(tmp_path: Path) -> None:
    given = {"size": 8, "scale": 0.5, "gate": True, "mode": "a b"}
    write_config(tmp_path, TrainConfig(game="pong", core_options=given))
    assert read_config(tmp_path)["core_options"] == given
    command = resume_command(read_config(tmp_path), tmp_path)
    assert "--core-options size 8 scale 0.5 gate True mode 'a b' --run-dir" in command


def test_a_sweep_reads_core_options_for_each_of_its_cores() -> None:
    sweep = TrainConfig(game="pong", cores=("rdn", "delta_net"), core_options={"num_heads": "2"})
    assert [run.core_options for run in runs_of(sweep)] == [{"num_heads": 2}] * 2
    refused = r"^core 'lstm' has no option 'num_heads'; it has hidden_size, chrono$"
    with pytest.raises(ValueError, match=refused):
        runs_of(replace(sweep, cores=("rdn", "lstm")))


def test_tensorboard_shows_no_bookkeeping() -> None:
    class Agent:
        class spec:
            stem = "mlp"

        @staticmethod
        def parameters() -> list[Any]:
            return []

    shown = hyperparameters(TrainConfig(game="pong", run_dir=Path("x")), Agent())  # type: ignore[arg-type]
    assert {"game", "core", "seed", "learning_rate", "num_envs", "compile", "parameters"} <= shown.keys()
    assert not {"run_dir", "resume", "log_seconds", "cores", "milestone_steps"} & shown.keys()


def test_a_run_keeps_its_core_options_with_their_types(tmp_path: Path) -> None:
    """Under whatever spelling they are given, and as version 0.1.0 wrote them: 1 for true."""
    words = "train --env CartPole-v1 --core gated_feedforward --num-envs 2 --batch-size 2 --unroll-length 5"
    words += f" --num-workers 1 --device cpu --run-dir {tmp_path / 'run'}"

    def train(steps: int, *options: str) -> None:
        main([*words.split(), "--steps", str(steps), "--core-options", "hidden_size", "8", *options])

    expected = {"hidden_size": 8, "output_gate": True}
    train(10, "output_gate", "1")
    spec = checkpoint_paths(tmp_path / "run")[-1] / "agent.json"
    for options in (read_config(tmp_path / "run")["core_options"], read_spec(spec.parent)["core_options"]):
        assert options == expected and options["output_gate"] is True
    spec.write_text(spec.read_text().replace("true", "1"))
    manifest = json.loads((spec.parent / "manifest.json").read_text())
    manifest["sha256"]["agent.json"] = hashlib.sha256(spec.read_bytes()).hexdigest()
    (spec.parent / "manifest.json").write_text(json.dumps(manifest))
    train(20, "output_gate", "true")
    assert checkpoint_paths(tmp_path / "run")[-1].name == f"{20:012d}"
    with pytest.raises(SystemExit):
        train(30, "output_gate", "false")
