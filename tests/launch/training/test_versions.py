"""Runs of other versions: a checkpoint whose parts are missing or of another kind is refused in one line."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_in_process import FEEDFORWARD, run
from training_process import newest

from deltabeast.launch.errors import UsageError

ARGUMENTS = ("--env", "CartPole-v1", *FEEDFORWARD)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions") / "run"
    run(folder, *ARGUMENTS, "--steps", "40")
    return folder


def change(run_dir: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the state of training, with its checksum right."""
    path = max((run_dir / "checkpoints").iterdir())
    state = torch.load(path / "state.pt", weights_only=True)
    edit(state)
    torch.save(state, path / "state.pt")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"]["state.pt"] = hashlib.sha256((path / "state.pt").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda state: state.pop("scores"), "scores"),
        (lambda state: state.update(scores={}), "scores"),
        (lambda state: state.pop("learner"), "learner"),
        (lambda state: state["learner"].pop("version"), "learner"),
        (lambda state: state["learner"].update(optimizer={}), "learner"),
        (lambda state: state.pop("actors"), "actors"),
        (lambda state: state.update(actors=[{"x": 1}]), "actors"),
        (lambda state: state.update(torch_rng=state["torch_rng"][:10]), "torch_rng"),
        (lambda state: state.update(torch_rng=[1, 2]), "torch_rng"),
    ],
)
def test_a_part_that_is_missing_or_of_another_kind_is_named(
    edit: Callable[[dict[str, Any]], Any], part: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    change(tmp_path / "run", edit)
    before = (tmp_path / "run" / "logs.csv").read_bytes()
    said = f"cannot resume .*: {part} in its state.pt is missing or of another kind"
    with pytest.raises(UsageError, match=said) as raised:
        run(tmp_path / "run", *ARGUMENTS, "--steps", "80")
    assert "\n" not in str(raised.value) and (tmp_path / "run" / "logs.csv").read_bytes() == before


def test_a_state_without_parts_is_no_export(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    change(tmp_path / "run", lambda state: state.clear())
    with pytest.raises(UsageError, match="holds an agent, without the state of its training"):
        run(tmp_path / "run", *ARGUMENTS, "--steps", "80")


def test_a_part_that_is_not_asked_for_does_no_harm(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    change(tmp_path / "run", lambda state: state["learner"].update(new=1))
    run(tmp_path / "run", *ARGUMENTS, "--steps", "80")
    assert newest(tmp_path / "run")[0] == 80


def test_a_run_of_a_newer_version_is_said_to_be_one(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(UsageError, match=r"is of a newer version of deltabeast \(format 99.*; update"):
        run(tmp_path / "run", *ARGUMENTS, "--steps", "80")
