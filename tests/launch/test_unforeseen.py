"""What ends a command though nothing foresaw it is a line with a remedy; bugs keep their traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from command_line import run

from deltabeast.envs import EnvironmentFailed
from deltabeast.launch import cli
from deltabeast.launch.failures import explain
from deltabeast.launch.processes.child import ChildDied, RemoteTraceback
from deltabeast.launch.training.engine import ActorError, actor_failed

NO_MEMORY = "out of memory; give it less to do, or more memory"
SMALLER = "out of memory: give a smaller --unroll-length, --num-envs or --batch-size"
LONG = "l" * 300


def refused(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (refused(errno.EACCES, "runs/a"), "runs/a: Permission denied; make it readable, or give another", 2),
        (refused(errno.ENAMETOOLONG, LONG), f"{LONG[:200]}...: File name too long; give a shorter one", 2),
        (refused(errno.EIO, "runs/a"), "runs/a: Input/output error", 2),
        (
            refused(errno.EMFILE),
            "Too many open files; raise the limit of open files (ulimit -n), or give fewer --num-workers, "
            "or --threads",
            1,
        ),
        (
            RuntimeError("can't start new thread"),
            "can't start new thread; raise the limit of processes (ulimit -u), or give fewer --num-workers, "
            "or --threads",
            1,
        ),
        (RuntimeError("Symlink loop from '/a/b'"), "Symlink loop from '/a/b'; give another path", 2),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            "no folder for temporary files can be written; set TMPDIR to one that can",
            1,
        ),
        (MemoryError(), NO_MEMORY, 1),
        (torch.OutOfMemoryError("CUDA"), NO_MEMORY, 1),
        (ChildDied("environment 2 died: exit code 3"), "environment 2 died: exit code 3", 1),
        (ActorError("worker 1 (process 3) died: exit code 3"), "worker 1 (process 3) died: exit code 3", 1),
        (actor_failed("actor 0", MemoryError()), SMALLER, 1),
    ],
)  # fmt: skip
def test_what_the_machine_refuses_is_a_line(error: Exception, line: str, code: int) -> None:
    assert explain(error) == ("", line, code)


def test_whose_code_failed_is_shown_its_traceback() -> None:
    failed = EnvironmentFailed("Its-v0: step failed: KeyError: 3", "Traceback of its own")
    assert explain(failed) == ("Traceback of its own", "Its-v0: step failed: KeyError: 3", 1)
    assert explain(actor_failed("actor 0", failed)) == explain(failed)
    elsewhere = ActorError("worker 1 failed: KeyError(3)")
    elsewhere.__cause__ = RemoteTraceback("Traceback of a worker")
    assert explain(elsewhere) == ("Traceback of a worker", "worker 1 failed: KeyError(3)", 1)
    try:
        raise KeyError("core")
    except KeyError as error:
        trace, line, code = explain(error)
    assert (
        trace.startswith("Traceback") and line.startswith("KeyError: 'core'; the lines above") and code == 1
    )


@pytest.mark.parametrize("command", ["info", "eval", "compare", "export", "card", "train --config"])
def test_a_path_that_is_too_long_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = run(capsys, *command.split(), "x" * 300, *(["to"] if command == "export" else []))
    assert (code, out) == (2, "") and error.count("\n") == 1
    assert "File name too long" in error and not list(tmp_path.iterdir())


def test_a_bug_ends_in_a_line_below_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_config: object) -> None:
        raise ZeroDivisionError("by \x1b[31m zero")

    monkeypatch.setitem(cli.RUN, "games", breaks)
    code, _, error = run(capsys, "games")
    *above, last = error.splitlines()
    assert code == 1 and above[0] == "Traceback (most recent call last):" and "in breaks" in error
    assert last.startswith("deltabeast: error: ZeroDivisionError: by ") and "\x1b" not in error
