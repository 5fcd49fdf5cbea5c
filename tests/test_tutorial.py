"""The tutorial's code, block after block, as a reader runs it, with fewer cores, seeds, steps and games."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = (Path(__file__).parents[1] / "docs" / "first-core.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL, re.DOTALL)


def shorter(script: str) -> str:
    for long, short in (
        ("palimpsest:Palimpsest linear_transformer delta_net", "palimpsest:Palimpsest"),
        ("1 2 3", "1"),
        ("--steps 300k", "--steps 1k"),
        ("--episodes 10", "--episodes 2"),
    ):
        assert script.count(long) <= 1
        script = script.replace(long, short)
    return script


def test_the_tutorial_from_the_first_block_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    core, check = blocks("python")
    (tmp_path / "palimpsest.py").write_text(core)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(check, "first-core.md", "exec"), {})
    assert "steps and unroll agree" in capsys.readouterr().out
    train, compare, evaluate = blocks("sh")
    assert "--steps 300k" in train and compare in evaluate + "\n"  # so the last one does both
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for script in (train, evaluate):
        done = subprocess.run(
            ["bash", "-euc", shorter(script)],
            env={**os.environ, "PATH": path, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "runs" / "comparison" / "report.md").read_text()
    assert "palimpsest:Palimpsest" in report
    sys.modules.pop("palimpsest")
