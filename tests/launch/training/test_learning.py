"""Training learns: from images, and what only a memory can know."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltabeast.launch.cli import main
from deltabeast.launch.runs.log import read_rows


def last_score(run_dir: Path, *arguments: str) -> float:
    main(["train", *arguments, "--device", "cpu", "--log-seconds", "1", "--run-dir", str(run_dir)])
    return read_rows(run_dir / "logs.csv")[-1]["game_return"]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.long)])
def test_an_agent_learns_what_it_sees(precision: str, tmp_path: Path, seed: int) -> None:
    """Guessing scores 16.7 of 50."""
    score = last_score(
        tmp_path / "run",
        *("--env", "training_envs:WhichThird-v0", "--core", "feedforward", "--stem", "nature"),
        *("--steps", "4k", "--num-envs", "8", "--batch-size", "8", "--unroll-length", "20"),
        *("--discount", "0", "--learning-rate", "2e-3", "--seed", str(seed), "--precision", precision),
    )
    assert score > 25


def test_codes_in_small_images_are_told_apart(tmp_path: Path, seed: int) -> None:
    """Guessing scores 25 of 50, and so does what sees 5 and 6 as nearly the same brightness."""
    score = last_score(
        tmp_path / "run",
        *("--env", "training_envs:WhichCode-v0", "--core", "feedforward", "--steps", "12k"),
        *("--num-envs", "8", "--batch-size", "8", "--unroll-length", "20", "--learning-rate", "2e-3"),
        *("--discount", "0", "--seed", str(seed)),
    )
    assert score > 32


@pytest.mark.parametrize(
    ("core", "learns"),
    [pytest.param("lstm", True, marks=pytest.mark.long), ("rdn", True), ("feedforward", False)],
)
def test_only_a_memory_recalls(core: str, learns: bool, tmp_path: Path, seed: int) -> None:
    """Guessing scores 5 of 10."""
    score = last_score(
        tmp_path / "run",
        *("--env", "training_envs:Recall-v0", "--core", core, "--steps", "30k", "--discount", "0"),
        *("--num-envs", "16", "--batch-size", "16", "--unroll-length", "20", "--seed", str(seed)),
        *("--entropy-cost", "0.01", "--learning-rate", "1e-3"),
    )
    assert score > 8 if learns else 4 < score < 6
