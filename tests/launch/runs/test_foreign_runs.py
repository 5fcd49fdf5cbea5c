"""Runs whose files hold what was never written there: one line for it, and no word of it in a command."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from deltabeast.agents import Agent, AgentSpec, save_checkpoint
from deltabeast.launch import parsing
from deltabeast.launch.comparison.grouping import compare
from deltabeast.launch.comparison.probes import Probe, read_probe
from deltabeast.launch.comparison.reading import read_runs
from deltabeast.launch.comparison.scores import score_board
from deltabeast.launch.config import ProbeConfig, TrainConfig
from deltabeast.launch.errors import UsageError
from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.runs.consent import consent
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.runs.directory import eval_command, resume_command, write_config

SPEC = AgentSpec((4,), 2, "feedforward", "mlp", env_id="CartPole-v1")
EVALUATION = {
    "protocol": None,
    "greedy": True,
    "step": 100,
    "repeats": 1,
    "episodes": 2,
    "seed": 1,
    "time": "now",
    "results": {"trained": {"summary": {"life": None, "game": {"count": 2, "mean": 9.0, "std": 1.0}}}},
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    save_checkpoint(run, 100, Agent(SPEC), {})
    write_config(run, TrainConfig(env="CartPole-v1", core="feedforward", steps="200"))
    (run / "logs.csv").write_text("step,time,game_return,episodes\n50,1,8,9\n100,2,9,20\n")
    (run / "eval").mkdir()
    (run / "eval" / "a.json").write_text(json.dumps(EVALUATION))
    return run


def put(file: Path, keys: str, value: Any) -> None:
    """Set a field, by its path, in a JSON file."""
    content = json.loads(file.read_text())
    *above, last = keys.split(".")
    inner = content
    for key in above:
        inner = inner[key]
    inner[last] = value
    file.write_text(json.dumps(content))


def look(run_dir: Path) -> dict[str, str]:
    """What `info` says, once `compare` has read the run as well."""
    runs, _, _ = read_runs([str(run_dir)])
    score_board(compare(runs))
    return dict(describe_run(run_dir))


NEWEST = "checkpoints/000000000100"
FIELDS = {
    "config.json": (
        *("config.preset", "config.env", "config.core", "config.core_options", "config.steps", "config.seed"),
        *("config", "versions", "versions.commit", "auto", "command", "format"),
    ),
    "eval/a.json": ("protocol", "step", "time", "results", "results.trained.summary"),
    f"{NEWEST}/agent.json": ("game", "core", "observation_shape", "stem", "env_options"),
    f"{NEWEST}/manifest.json": ("sha256",),
}


@pytest.mark.parametrize(("file", "field"), [(file, field) for file in FIELDS for field in FIELDS[file]])
def test_a_field_of_another_kind_is_no_traceback(file: str, field: str, run_dir: Path) -> None:
    whole = (run_dir / file).read_text()
    for value in (None, True, -1, 1e308, "", "\x1b]0;x\x07\n", [], [1], {"a": 1}, 10**400, float("nan")):
        (run_dir / file).write_text(whole)
        put(run_dir / file, field, value)
        assert look(run_dir)["run"] == str(run_dir)


def test_a_checkpoint_that_does_not_say_its_step_is_one_line(run_dir: Path) -> None:
    for step in (None, "x", [1], 1.5):
        put(run_dir / f"{NEWEST}/manifest.json", "step", step)
        with pytest.raises(UsageError, match=r"manifest\.json does not say after which step"):
            load(run_dir / NEWEST, "latest", None, print)


@pytest.mark.parametrize("cell", ["inf", "nan", "1e999", "-1e308", "x", ""])
def test_a_cell_that_is_no_number_is_none(cell: str, run_dir: Path) -> None:
    (run_dir / "logs.csv").write_text(f"step,time,game_return,episodes\n50,1,8,9\n100,2,9,{cell}\n")
    said = look(run_dir)
    assert said["return"].startswith("9.0 (last ") and "step 100" in said["return"]


def test_a_pipe_in_the_place_of_a_file_hangs_nothing(run_dir: Path) -> None:
    names = ("config.json", "eval/a.json", f"{NEWEST}/weights.safetensors", "logs.csv")
    for name in names:
        (run_dir / name).unlink()
        os.mkfifo(run_dir / name)
    lines = describe_run(run_dir)
    damaged = " ".join(text for label, text in lines if label == "damaged")
    assert "config.json cannot be read" in damaged and "weights.safetensors of the newest" in damaged


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("core_options", {"hidden_size": 16, "--core": "helper:Core"}),
        ("core_options", {"a": "--core=helper:Core"}),
        ("core_options", {"a": "-h"}),
        ("num_envs", "many"),
        ("engine", "--core"),
    ],
)
def test_what_no_option_takes_is_in_no_command(name: str, value: Any, run_dir: Path) -> None:
    before = look(run_dir)
    assert "deltabeast train --env CartPole-v1 --core feedforward" in before["to go on"]
    put(run_dir / "config.json", f"config.{name}", value)
    after = look(run_dir)
    assert "to go on" not in after and "helper" not in after.get("next", "")
    assert f"config.json: {name} is " in after["damaged"] and "no command goes on with it" in after["damaged"]


def test_values_that_look_like_options_stay_values(run_dir: Path) -> None:
    saved = {"env": "--core=helper:Core", "device": "-x", "core": "rdn", "game": None}
    config = parsing.parse(shlex.split(resume_command(saved, Path("-r")))[1:])
    assert (config.env, config.device, config.core, config.run_dir) == (*list(saved.values())[:3], Path("-r"))
    command = eval_command(Path("-r"), *consent("--checkpoint=a:B", "--sample:c"))
    given = parsing.parse(shlex.split(command)[1:])
    assert (given.run, given.checkpoint, given.sample) == (Path("./-r"), "latest", False)
    assert (given.trust_core, given.trust_env) == ("--checkpoint=a:B", "--sample:c")


@pytest.fixture
def probe_dir(tmp_path: Path) -> Path:
    run = tmp_path / "probe"
    run.mkdir()
    config = ProbeConfig("swap", {"longest": 32}, core="lstm", core_options={"hidden_size": 8}, seed=2)
    write_config(run, config, command="probe", metric="loss", model="core", updates=9)
    (run / "logs.csv").write_text("step,time,loss,best\n3,1,2,2\n6,2,1,1\n")
    scores = {"metric": "loss", "best": 1.0, "updates": 6, "test": {"loss": 0.5}}
    (run / "scores.json").write_text(json.dumps(scores))
    return run


PROBE_FIELDS = {
    "config.json": (
        *(f"config.{name}" for name in ("task", "task_options", "core", "core_options", "seed", "variant")),
        *("config", "metric", "updates", "model", "versions"),
    ),
    "scores.json": ("metric", "best", "updates", "test", "test.loss"),
}


@pytest.mark.parametrize(
    ("file", "field"), [(file, field) for file in PROBE_FIELDS for field in PROBE_FIELDS[file]]
)
def test_a_field_of_a_probe_of_another_kind_is_no_traceback(file: str, field: str, probe_dir: Path) -> None:
    before = read_probe(probe_dir)
    assert isinstance(before, Probe) and (before.value, before.seed, before.ended) == (0.5, 2, True)
    assert ("ended with", "loss (test) 0.5 after 6 updates") in describe_run(probe_dir)
    whole = (probe_dir / file).read_text()
    for value in (None, True, -1, 1e308, "", "\x1b]0;x\x07\n", [], [1], {"a": 1}, 10**400, float("nan")):
        (probe_dir / file).write_text(whole)
        put(probe_dir / file, field, value)
        read = read_probe(probe_dir)
        assert isinstance(read, Probe) or read.startswith(f"{probe_dir}: left out; ")
        assert describe_run(probe_dir)[0] == ("run", str(probe_dir))
