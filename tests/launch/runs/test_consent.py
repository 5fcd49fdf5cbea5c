"""A run from elsewhere brings code along: nothing of it runs, unless the user names it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import reference_torchbeast as reference
import torch
from training_process import newest, rows

from deltabeast.agents import (
    Agent,
    AgentSpec,
    UntrustedCore,
    checkpoint,
    load_agent,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)
from deltabeast.launch.cli import main
from deltabeast.launch.comparison import scores
from deltabeast.launch.comparison.runs import read_run
from deltabeast.launch.errors import UsageError
from deltabeast.launch.evaluation import command as eval_run
from deltabeast.launch.runs.consent import check_env

PLANTED = """
import os, pathlib
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from deltabeast.cores.feedforward import Feedforward

with (pathlib.Path(__file__).parent / "ran").open("a") as file:
    file.write(f"{os.getpid()}\\n")

class X(Feedforward):
    pass

gymnasium.register("Planted-v0", entry_point=CartPoleEnv, max_episode_steps=5)
"""
SPEC = AgentSpec((4,), 2, "feedforward", "mlp", env_id="CartPole-v1")
SIZES = ("--num-envs", "2", "--batch-size", "2", "--unroll-length", "5", "--device", "cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder one stands in: what was downloaded lies there, code beside a run."""
    (tmp_path / "evil.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as the installed command has it
    yield tmp_path
    sys.modules.pop("evil", None)
    gymnasium.registry.pop("Planted-v0", None)


def ran(here: Path) -> int:
    """The number of processes that the planted code ran in."""
    return len(set((here / "ran").read_text().split())) if (here / "ran").exists() else 0


def bring(here: Path, **names: Any) -> Path:
    """A run whose checkpoint names other things than it was saved with, all its checksums right."""
    path = save_checkpoint(here / "run", 100, Agent(SPEC), {})
    spec = json.loads((path / "agent.json").read_text()) | names
    (path / "agent.json").write_text(json.dumps(spec))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"]["agent.json"] = hashlib.sha256((path / "agent.json").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def listing(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}


def refused(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """The one line that the command says, with code 2."""
    with pytest.raises(SystemExit) as raised:
        main(shlex.split(command))
    said = capsys.readouterr().err
    assert raised.value.code == 2 and said.count("\n") == 1, said
    return said


CORES = (
    "eval run",
    "eval run --checkpoint 100",
    "eval run/checkpoints/000000000100 --video 1",
    "eval run --trust-core other:X",
    "eval run --trust-env evil:X",
)


@pytest.mark.parametrize("command", CORES)
def test_a_core_that_a_checkpoint_names_is_not_imported_unasked(
    here: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bring(here, core="evil:X")
    before = listing(here / "run")
    said = refused(capsys, command)
    assert f"{path.relative_to(here)} has a core that would be imported, evil:X," in said
    assert "--trust-core evil:X" in said and "trust_core='evil:X' in Python" in said
    assert ran(here) == 0 and listing(here / "run") == before


def test_training_does_not_import_another_core_than_it_was_given(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring(here, core="evil:X")
    said = refused(capsys, shlex.join(["train", "--env", "CartPole-v1", *SIZES, "--run-dir", "run"]))
    assert "run holds a run with core evil:X, not rdn; give another --run-dir, or --core evil:X if" in said
    assert ran(here) == 0 and not (here / "run/config.json").exists()


def test_libraries_are_asked_as_well(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bring(here, core="evil:X")
    monkeypatch.syspath_prepend(here)
    for name in (None, "evil:Y"):
        for load, place in ((load_agent, here / "run"), (load_agent, path), (load_checkpoint, path)):
            with pytest.raises(UntrustedCore, match="evil:X"):
                load(place, trust_core=name)
        with pytest.raises(UntrustedCore, match="evil:X"):
            load_latest(here / "run", trust_core=name)
    assert ran(here) == 0
    assert load_agent(here / "run", trust_core="evil:X").spec == replace(SPEC, core="evil:X")
    assert ran(here) == 1


@pytest.mark.parametrize("module", ["evil", "evil.part", "json.tool", ".evil"])
def test_an_environment_from_here_or_from_within_a_package_is_not_imported_unasked(
    here: Path, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bring(here, env_id=f"{module}:Planted-v0")
    said = refused(capsys, "eval run --trust-env evil:Other-v0")
    assert f"{path.relative_to(here)} has an environment that would be imported, {module}:Planted-v0" in said
    assert f"--trust-env {module}:Planted-v0" in said
    assert ran(here) == 0 and not (here / "run/eval").exists() and "json.tool" not in sys.modules


def test_an_installed_environment_needs_no_word(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless one of its name lies here and would come first, as with `python -m`."""
    installed = here / "site"
    installed.mkdir()
    (here / "evil.py").rename(installed / "evil.py")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(installed)
        (here / "evil").mkdir()  # results, say
        bring(here, env_id="evil:Planted-v0")
        main(["eval", "run", "--episodes", "1", "--repeats", "1", "--device", "cpu"])
        assert ran(installed) == 1 and len(list((here / "run/eval").iterdir())) == 1
        sys.modules.pop("evil")
        (here / "evil.py").touch()
        patch.syspath_prepend("")
        with pytest.raises(UsageError, match="--trust-env evil:Planted-v0"):
            check_env("evil:Planted-v0", {}, None, here)
    check_env("gymnasium:CartPole-v1", {}, None, here)
    check_env("CartPole-v1", {"map_name": "8x8", "size": 3}, None, here)


@pytest.mark.parametrize(
    ("env_id", "options"), [("os:mkdir", {"path": "made"}), ("CartPole-v1", {"env_id": "evil:Planted-v0"})]
)
def test_a_run_calls_no_function_and_names_no_code_by_an_option(
    env_id: str, options: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring(here, env_id=env_id, env_options=options)
    config = {"env": env_id, "env_options": options}
    (here / "file.json").write_text(json.dumps(config))
    for command, remedy in (
        ("eval run --episodes 1 --device cpu", f"--trust-env {env_id}"),
        ("train --config file.json --show-config", f"--env {env_id}"),
    ):
        said = refused(capsys, command)
        assert "importing runs code" in said and remedy in said
    assert not (here / "made").exists() and not (here / "ran").exists()
    check_env(env_id, options, env_id, here)


@pytest.mark.usefixtures("quick_children")
def test_what_is_named_is_evaluated_in_as_many_processes_as_ever(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_run, "available_cores", lambda: 2)
    bring(here, core="evil:X", env_id="evil:Planted-v0")
    words = "eval run --trust-core evil:X --trust-env evil:Planted-v0 --episodes 25 --repeats 2 --device cpu"
    main(shlex.split(words))
    (path,) = (here / "run/eval").iterdir()
    assert json.loads(path.read_text())["results"]["trained"]["game"]["lengths"] == [[5] * 25] * 2
    assert ran(here) == 3


@pytest.mark.usefixtures("quick_children")
def test_training_with_a_core_of_ones_own_asks_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a resume, nor a worker's process; and in the end it says how to evaluate."""
    words = ["train", "--env", "evil:Planted-v0", "--core", "evil:X", *SIZES, "--run-dir", "run"]
    main([*words, "--num-workers", "2", "--steps", "40"])
    assert ran(here) == 2
    main([*words, "--num-workers", "1", "--steps", "80"])
    assert newest(here / "run")[0] == 80 == int(rows(here / "run")[-1]["step"])
    said = capsys.readouterr().out.split()
    assert " ".join(said).endswith("deltabeast eval run --trust-core evil:X --trust-env evil:Planted-v0")


@pytest.mark.parametrize("command", ["info run", "compare run", "games", "import-torchbeast", "eval run"])
def test_nothing_is_imported_from_the_folder_one_stands_in(
    here: Path, command: str, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Of that folder's modules none can be found, under whatever name other packages look for theirs."""
    bring(here, core="evil:X" if command != "eval run" else "feedforward")
    (here / "run/config.json").write_text(
        json.dumps({"config": {"env": "evil:Planted-v0", "core": "evil:X", "steps": "200"}})
    )
    (here / "run/logs.csv").write_text("step,time,game_return\n100,1,1\n")
    if command == "import-torchbeast":
        content = {
            "model_state_dict": reference.random_weights("lstm", 8),
            "flags": {"env": "evil:Planted-v0"},
        }
        torch.save(content, here / "evil.tar")
        command += " evil.tar --game gopher --run-dir imported"
    elif command == "eval run":
        command += " --episodes 1 --repeats 1 --device cpu"
    main(command.split())
    assert ran(here) == 0
    assert os.getcwd() not in sys.path and importlib.util.find_spec("evil") is None
    if command == "info run":
        assert "evil:X" in capsys.readouterr().out, "it is named, not imported"


def test_commands_to_evaluate_name_what_they_would_import(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring(here, core="evil:X", env_id="evil:Planted-v0")
    config = {"env": "evil:Planted-v0", "core": "evil:X", "steps": "100"}
    (here / "run/config.json").write_text(json.dumps({"config": config}))
    (here / "run/logs.csv").write_text("step,time,game_return\n100,1,1\n")
    wanted = "deltabeast eval run --trust-core evil:X --trust-env evil:Planted-v0"
    main(["info", "run"])
    assert wanted in capsys.readouterr().out
    run, _ = read_run(Path("run"))
    assert run is not None and wanted in scores._not_evaluated(run, None, greedy=True)
    (here / "run/logs.csv").unlink()
    assert f"`{wanted}`" in read_run(Path("run"))[1][0]
    assert ran(here) == 0


def test_a_cores_options_are_listed_where_the_command_names_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (here / "evil.py").open("a") as file:
        file.write(
            "class Mine(X):\n    'Somebody\\'s own.'\n    def __init__(self, input_size, size=3): pass\n"
        )
    main(["cores", "evil:Mine"])
    said = capsys.readouterr().out
    assert said.startswith("evil:Mine: Somebody's own\n") and ran(here) == 1
    assert next(line.split() for line in said.splitlines() if line.startswith("size")) == ["size", "any", "3"]


def test_a_core_of_another_type_is_damage(here: Path) -> None:
    path = bring(here, core=torch.pi)  # type: ignore[arg-type]
    with pytest.raises(checkpoint.CheckpointError, match=r"agent\.json is damaged"):
        load_checkpoint(path)
