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
