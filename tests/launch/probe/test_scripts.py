"""The scripts of results/probe say how they are used."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "results" / "probe"


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_help(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(f"usage: {script.name}")


@pytest.mark.parametrize(
    ("script", "given", "says"),
    [
        ("stress", "0", "updates 0; give at least 1"),
        ("throughput", "nothing", "unknown task nothing; say one"),
    ],
)
def test_what_cannot_be(
    script: str, given: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, given])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 2 and says in capsys.readouterr().err
