"""Which run a command goes on with: where it lies, and which options it may not change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from training_in_process import FEEDFORWARD, run
from training_process import (
    CARTPOLE,
    TINY,
)

from deltabeast.agents import find_checkpoints, load_agent
from deltabeast.cores import core_name
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.errors import UsageError
from deltabeast.launch.runs import directory
from deltabeast.launch.runs.directory import default_run_dir, read_config
from deltabeast.launch.training.resume import check_same_agent

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


def test_another_agent_or_a_run_that_must_not_be_there(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "20")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    for arguments, message in (
        ((*CARTPOLE, "--resume", "never"), "already holds a run; give another --run-dir or --seed"),
        ((*CARTPOLE, "--core", "delta_net"), "holds a run with core rdn, not delta_net"),
        (
            tuple("32" if word == "16" else word for word in CARTPOLE),
            "options of the core hidden_size 16, ff_size 16, not hidden_size 32, ff_size 32; give",
        ),
        (("--env", "Acrobot-v1", *TINY), "holds a run with environment CartPole-v1, not Acrobot-v1"),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            run(tmp_path, *arguments, "--steps", "40")
        assert "\n" not in str(raised.value)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    del before[tmp_path / ".lock"], after[tmp_path / ".lock"]
    assert before == after


def test_another_protocol_is_named_as_what_differs(tmp_path: Path) -> None:
    arguments = ("--game", "gopher", "--core", "feedforward", "--stem", "nature", *TINY)
    run(tmp_path / "run", *arguments, "--steps", "20")
    with pytest.raises(UsageError, match="with protocol paper-code, not ale-standard; give another"):
        run(tmp_path / "run", *arguments, "--steps", "40", "--protocol", "ale-standard")
    with pytest.raises(UsageError, match=r"with --flicker 0, not 0.5; give another"):
        run(tmp_path / "run", *arguments, "--steps", "40", "--flicker", "0.5")
    with pytest.raises(
        UsageError, match=r"no environment given.*; `deltabeast info .*/run` prints the command that goes on"
    ):
        run(tmp_path / "run", "--core", "feedforward")


@pytest.mark.parametrize(("core", "remembers"), [("lstm", True), ("feedforward", False)])
def test_a_truncated_lstm_does_not_go_on_as_a_whole_one(core: str, remembers: bool, tmp_path: Path) -> None:
    """An earlier version cut gradients under per_step whatever the core; only a memory makes a difference."""
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD, "--core", core)
    run(tmp_path / "run", *arguments, "--bptt", "per_step", "--steps", "20")
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    assert content["config"]["bptt"] == "per_step"
    run(tmp_path / "run", *arguments, "--steps", "40")  # full is the same without fast weights
    del content["format"]
    path.write_text(json.dumps(content))
    if remembers:
        with pytest.raises(UsageError, match=r"lstm whose gradients .* at every step.*another --run-dir"):
            run(tmp_path / "run", *arguments, "--bptt", "per_step", "--steps", "60")
    else:
        run(tmp_path / "run", *arguments, "--bptt", "per_step", "--steps", "60")
    assert find_checkpoints(tmp_path / "run")[-1].step == (40 if remembers else 60)


def test_a_core_keeps_its_run_under_its_older_spelling(tmp_path: Path) -> None:
    sizes = ("--core-options", "hidden_size", "8", "num_heads", "2", "ff_size", "8", "num_layers", "1")
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD, *sizes, "--core")
    run(tmp_path / "run", *arguments, "rdn-large", "--steps", "20")
    spec = find_checkpoints(tmp_path / "run")[-1].path / "agent.json"
    assert json.loads(spec.read_text())["core"] == "rdn_large"
    run(tmp_path / "run", *arguments, "rdn_large", "--steps", "40")
    assert find_checkpoints(tmp_path / "run")[-1].step == 40


def test_options_at_their_default_are_those_of_the_same_core(tmp_path: Path) -> None:
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD, "--core", "hybrid", "--core-options")
    layers = "gated_delta_net:short_conv=4,rdn"
    given = (*arguments, "hidden_size", "8", "ff_size", "8", "layers")
    run(tmp_path, *given, " gated-delta-net : short_conv=4 , rdn", "num_heads", "4", "--steps", "20")
    spec = load_agent(tmp_path).spec
    expected = {"hidden_size": 8, "ff_size": 8, "layers": layers, "num_heads": 4}
    assert spec.core_options == read_config(tmp_path)["core_options"] == expected
    run(tmp_path, *given, layers, "clock", "0", "--steps", "40")
    message = "the core the default num_heads, not num_heads 2; give another"
    with pytest.raises(UsageError, match=message):
        run(tmp_path, *given, layers, "num_heads", "2")
    earlier = replace(spec, core_options={**expected, "layers": "gated_delta_net:short_conv=4, rdn"})
    check_same_agent(earlier, spec, tmp_path)


def test_a_run_is_found_under_either_spelling_of_its_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new, old = Path("runs/pong/rdn_large/seed-1"), Path("runs/pong/rdn-large/seed-1")
    configs = [TrainConfig(game="pong", core=core) for core in ("rdn-large", "rdn_large")]
    assert [default_run_dir(config) for config in configs] == [new, new]
    old.mkdir(parents=True)
    assert [default_run_dir(config) for config in configs] == [old, old]
    names = ["rdn-large", "delta_net", "my-cores:My_Core", "my_cores:My-Core"]
    assert [directory.core_name(name) for name in names] == [core_name(name) for name in names]


def test_all_options_that_differ_are_named_and_the_preset_that_they_began_with(tmp_path: Path) -> None:
    arguments = ("--env", "CartPole-v1", *FEEDFORWARD, "--core", "delta_net", "--stem", "mlp", "--steps")
    run(tmp_path / "run", *arguments, "20", "--preset", "published", "--discount", "0.5")
    expected = (
        r"with --bptt per_step --discount 0.5 --no-rmsprop-corrected, not --bptt full --discount 0.99 "
        r"--rmsprop-corrected, begun with --preset published; give --"
    )
    with pytest.raises(UsageError, match=expected):
        run(tmp_path / "run", *arguments, "40")
    same = ("--bptt", "per_step", "--discount", "0.5", "--no-rmsprop-corrected")
    run(tmp_path / "run", *arguments, "40", *same)
    assert read_config(tmp_path / "run")["preset"] == "published"


def test_a_run_does_not_go_on_as_another_experiment(tmp_path: Path) -> None:
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD)
    run(tmp_path / "run", *arguments, "--steps", "200")
    for change in (("--discount", "0.5"), ("--learning-rate", "0.1"), ("--seed", "9")):
        with pytest.raises(UsageError, match=rf"{change[0]} .*, not {' '.join(change)}; .*another --run-dir"):
            run(tmp_path / "run", *arguments, "--steps", "400", *change)
    run(tmp_path / "run", *arguments, "--steps", "400", "--log-seconds", "1", "--num-envs", "2")
    assert find_checkpoints(tmp_path / "run")[-1].step >= 400
