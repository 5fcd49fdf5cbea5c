"""The command line in the process of the tests."""

from __future__ import annotations

import pytest

from deltabeast.launch import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, and what was printed and complained of."""
    code = 0
    try:
        cli.main(arguments)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line by which the command refuses wrong arguments."""
    capsys.readouterr()
    code, _, error = run(capsys, *arguments)
    assert code == 2 and error.count("\n") == 1, error
    return error
