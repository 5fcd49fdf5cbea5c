"""Output that goes away while a command works."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO

import pytest
from rich.console import Console
from training_in_process import EXACT
from training_process import CARTPOLE, newest, rows

from deltabeast.launch.cli import main
from deltabeast.launch.output import outlived
from deltabeast.launch.training.panel import Panel


def nobody_reads() -> IO[str]:
    """A pipe whose reader has ended."""
    there, here = os.pipe()
    os.close(there)
    return os.fdopen(here, "w")


def on_a_full_disk() -> IO[str]:
    return Path("/dev/full").open("w")


def closed() -> IO[str]:
    stream = nobody_reads()
    stream.close()
    return stream


GONE = pytest.mark.parametrize(
    ("gone", "why"),
    [
        (nobody_reads, "Broken pipe"),
        pytest.param(
            on_a_full_disk,
            "No space left on device",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only"),
        ),
        (closed, "I/O operation on closed file"),
    ],
    ids=["pipe", "disk", "closed"],
)


@GONE
def test_what_cannot_be_shown_is_told_once_and_ends_nothing(
    gone, why, capsys: pytest.CaptureFixture[str]
) -> None:
    with redirect_stdout(gone()), outlived():
        for line in ("one", "two"):
            print(line, flush=True)
            Console().print(line)  # whose own answer to a broken pipe is to exit
            print(line, flush=True)
    said = f"deltabeast: no output is shown from here on ({why}); what is under way goes on\n"
    assert capsys.readouterr().err == said


@GONE
def test_a_live_panel_is_outlived(gone, why, capsys: pytest.CaptureFixture[str]) -> None:
    """Which takes standard output for itself, and gives it back."""
    with redirect_stdout(gone()), outlived():
        mine = sys.stdout
        with Panel("pong", 1000, console=Console(force_terminal=True, width=80)) as panel:
            panel.update(10, {"sps": 1.0})
            panel.message("it goes on")
            print("as does this")
        assert sys.stdout is mine
    assert why in capsys.readouterr().err


def test_what_is_there_is_shown_and_asked_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "ascii")) as stream, outlived():
        print("shown", flush=True)
        assert sys.stdout.encoding == "ascii" and not sys.stdout.isatty()
    assert stream.buffer.getvalue() == b"shown\n" and not capsys.readouterr().err


def test_standard_error_may_be_gone_too() -> None:
    for gone in (nobody_reads, closed):
        with redirect_stdout(nobody_reads()) as out, redirect_stderr(gone()) as error, outlived():
            print("out", flush=True)
            print("error", file=sys.stderr, flush=True)
        for stream in (out, error):
            stream.close()  # which writes what waits in its buffer


@GONE
def test_a_run_outlives_what_shows_it(gone, why, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_stdout(gone()):
        main(["train", *CARTPOLE, *EXACT, "--steps", "60", "--run-dir", str(tmp_path)])
    assert newest(tmp_path)[0] == 60 and [row["step"] for row in rows(tmp_path)] == ["20", "40", "60"]
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and why in error


def test_an_evaluation_outlives_what_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", *CARTPOLE, *EXACT, "--steps", "20", "--run-dir", str(tmp_path)])
    with redirect_stdout(nobody_reads()):
        main(["eval", str(tmp_path), "--episodes", "1", "--repeats", "1"])
    assert len(list((tmp_path / "eval").glob("*.json"))) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "code"), [(["train", "--game", "pnog"], 2), (["nothing"], 2)])
def test_an_error_that_nobody_reads_has_its_code(arguments: list[str], code: int) -> None:
    with (
        redirect_stdout(nobody_reads()),
        redirect_stderr(nobody_reads()),
        pytest.raises(SystemExit) as ended,
    ):
        main(arguments)
    assert ended.value.code == code
