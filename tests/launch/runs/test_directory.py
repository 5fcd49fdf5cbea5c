"""The run directory: claimed by one process, and written without following links."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest
from training_in_process import EXACT, on_update, run
from training_process import CARTPOLE, rows

from deltabeast.agents import Learner, files
from deltabeast.launch.config import ProbeConfig, TrainConfig
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.output import warnings_in_lines
from deltabeast.launch.parsing import parse
from deltabeast.launch.probe.command import probe
from deltabeast.launch.runs import directory
from deltabeast.launch.runs.directory import claim, is_claimed, read_config, versions, write_config


def test_a_claim_is_renewed_where_its_lock_is_gone_but_not_where_another_has_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with claim(run_dir) as first:
        assert not first.renew()
        (run_dir / ".lock").unlink()
        assert first.renew() and not first.renew() and is_claimed(run_dir)
        run_dir.rename(tmp_path / "moved")
        with claim(run_dir), pytest.raises(UsageError, match="another process trains in"):
            first.renew()
    assert not is_claimed(run_dir)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_trained_on_and_said(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    files.say_once.cache_clear()
    with pytest.warns(UserWarning, match="has no locks"), claim(tmp_path):
        assert not is_claimed(tmp_path)


def test_what_a_file_system_does_not_promise_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    files.say_once.cache_clear()
    with warnings.catch_warnings(), warnings_in_lines():
        warnings.simplefilter("always")
        files.say_once("no locks")
        files.say_once("no locks")
    assert capsys.readouterr().err == "deltabeast: warning: no locks\n"


def test_a_run_directory_is_not_locked_through_a_link(tmp_path: Path) -> None:
    """As a tar from elsewhere may hold."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=r"\.lock is a link to .*; give another"), claim(tmp_path / "run"):
        pass
    (tmp_path / "run" / ".lock").unlink()
    for name in ("config.json", ".config.json"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    write_config(tmp_path / "run", TrainConfig(env="CartPole-v1"))
    assert read_config(tmp_path / "run")["env"] == "CartPole-v1"
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_run_that_lost_its_directory_to_another_stops_and_leaves_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    other = ExitStack()

    def lose(learner: Learner) -> None:
        if learner.version == 3:
            run_dir.rename(tmp_path / "moved")
            other.enter_context(claim(run_dir))

    on_update(monkeypatch, lose)
    with other, pytest.raises(RunError, match="another process trains in"):
        run(run_dir, *CARTPOLE, *EXACT, "--steps", "400")
    assert [path.name for path in run_dir.iterdir()] == [".lock"]
    assert rows(tmp_path / "moved")[-1]["step"] == "60"


@pytest.mark.parametrize("content", ['{"hidden_size": 64}', '{"config": {"lr": 1}}', "broken", "[1]"])
def test_somebodys_config_is_not_written_over(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(
        UsageError, match=r"config\.json is no configuration of a run; give another --run-dir"
    ):
        run(tmp_path, *CARTPOLE, *EXACT, "--steps", "20")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == content


def test_a_damaged_config_of_a_run_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, *CARTPOLE, *EXACT, "--steps", "20")
    (tmp_path / "config.json").write_text("edited, wrongly")
    run(tmp_path, *CARTPOLE, *EXACT, "--steps", "40")
    assert (tmp_path / "config.damaged.json").read_text() == "edited, wrongly"
    assert (
        read_config(tmp_path)["steps"] == "40"
        and "the original is config.damaged.json now" in capsys.readouterr().out
    )


@pytest.mark.parametrize("below", ["seed-1", "rdn/seed-1", "pong/rdn/seed-1", "runs/pong/rdn/seed-1"])
def test_a_folder_of_runs_does_not_become_one(tmp_path: Path, below: str) -> None:
    (tmp_path / below).mkdir(parents=True)
    write_config(tmp_path / below, TrainConfig(env="CartPole-v1"))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=f"holds runs, {tmp_path / below}; give one of them, or another"):
        run(tmp_path, *CARTPOLE, *EXACT, "--steps", "20")
    with pytest.raises(UsageError, match="holds runs"):
        probe(ProbeConfig("swap", run_dir=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([Path(below).parts[0], "package"])
    shutil.rmtree(tmp_path / below)
    run(tmp_path, *CARTPOLE, *EXACT, "--steps", "20")


def test_a_run_is_not_put_into_another(tmp_path: Path) -> None:
    write_config(tmp_path, TrainConfig(env="CartPole-v1"))
    for inner in (tmp_path / "inner", tmp_path / "checkpoints" / "deep"):
        with pytest.raises(UsageError, match=f"is inside the run {tmp_path}; give another"):
            run(inner, *CARTPOLE, *EXACT, "--steps", "20")
        assert not inner.exists()


def test_a_link_to_nothing_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match=r"link is a link to .*gone, which is not there"):
        run(tmp_path / "link", *CARTPOLE, *EXACT, "--steps", "20")


def test_the_home_folder_is_found_where_no_shell_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse(["train", "--env", "CartPole-v1", "--run-dir=~/x"]).run_dir == tmp_path / "x"


def test_of_the_last_two_checkpoints_none_is_known_to_be_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, *CARTPOLE, *EXACT, "--steps", "20")
    run(tmp_path, *CARTPOLE, *EXACT, "--steps", "40")
    whole, damaged = sorted((tmp_path / "checkpoints").iterdir())
    (damaged / "weights.safetensors").write_bytes(b"other")
    run(tmp_path, *CARTPOLE, *EXACT, "--steps", "60")
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == [whole.name, f"{damaged.name}.damaged", f"{60:012d}"]
    assert f"{damaged.name}.damaged now" in capsys.readouterr().out


def test_edited_code_is_not_that_of_its_commit_nor_of_another_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a checkout's subfolder as in its root; pages beside the package do not matter."""
    (tmp_path / "vendored").mkdir()
    here, code, page = (
        tmp_path / "vendored" / name for name in ("launch/runs/directory.py", "agents/losses.py", "README.md")
    )
    monkeypatch.setattr(directory, "__file__", str(here))
    assert versions()["commit"] is None  # no checkout
    for path in (here, code, page):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("loss = 1\n")
    author = ("-c", "user.name=n", "-c", "user.email=e")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-q", "-m", "Begin")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    commit = versions()["commit"]
    assert len(commit) == 12
    page.write_text("loss = 2\n")
    assert versions()["commit"] == commit
    edited = []
    for text in ("loss = 2\n", "loss = 3\n", "loss = 2\n"):
        code.write_text(text)
        edited.append(versions()["commit"])
    code.unlink()
    edited.append(versions()["commit"])
    assert all(each.startswith(f"{commit}-dirty-") for each in edited)
    assert edited[0] == edited[2] and len(set(edited)) == 3
    code.write_text("loss = 1\n")
    assert versions()["commit"] == commit
