"""The examples run as they stand, but for fewer steps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_notebook_on_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its numbers are of the agent that it trains: here one that has learned for half the steps."""
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "memory.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[0].count('"300k"') == 1
    for source in (code[0].replace('"300k"', '"150k"'), *code[1:]):
        exec(compile(source, "memory.ipynb", "exec"), names)
    assert len(plt.get_fignums()) == 2
    plt.close("all")
    said = capsys.readouterr().out
    never, at_forks, at_cues = (
        float(value) for value in re.findall(r"memory reset .*: mean return (-?[\d.]+)", said)
    )
    assert never > 0.5 and at_cues > 0.5 and at_forks < 0.4 and "are told apart" in said


def test_the_search_says_once_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "optuna_search.py"), "--env", "CartPole-v1", "--learnin", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "error: unknown option --learnin" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_search_with_optuna_goes_on_where_it_stopped(tmp_path: Path) -> None:
    script = (EXAMPLES / "optuna_search.py").read_text()
    assert script.count("n_trials=20") == 1
    (tmp_path / "search.py").write_text(script.replace("n_trials=20", "n_trials=1"))
    options = "--env CartPole-v1 --core lstm --num-envs 4 --batch-size 4 --device cpu --log-seconds 0"
    for steps, trials in ((800, 1), (800, 2), (840, 1)):  # other options are another study
        folder = tmp_path / "runs" / "search" / f"{options.replace('--', '').replace(' ', '-')}-steps-{steps}"
        done = subprocess.run(
            [sys.executable, "search.py", *options.split(), "--steps", str(steps)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert len(list(folder.glob("trial-*"))) == trials
        assert re.search(r"^best: \d+\.?\d* with \{'learning_rate': ", done.stdout, re.M)
