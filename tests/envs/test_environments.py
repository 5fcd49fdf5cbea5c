"""The environments of environments.csv do what the table says; try_environments.py makes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from try_environments import TINY, outcome, read_table

from deltabeast.agents import find_checkpoints
from deltabeast.launch.cli import main

ROWS = read_table()


def need(env_id: str) -> None:
    module, _, _ = env_id.rpartition(":")
    if module:
        pytest.importorskip(module)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # they are the packages'
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["env"])
def test_the_table(row: dict[str, str], seed: int) -> None:
    need(row["env"])
    assert outcome(row["env"]) == (row["outcome"], row["detail"])
    assert "\n" not in row["detail"]


def test_the_table_is_wide_enough() -> None:
    assert len({row["env"] for row in ROWS}) == len(ROWS) >= 40
    assert len({row["package"] for row in ROWS}) >= 5
    assert {row["outcome"] for row in ROWS} == {"trained", "refused"}


@pytest.mark.parametrize(
    ("env_id", "workers", "left_out"),
    [
        ("minigrid:MiniGrid-MemoryS7-v0", 2, ": mission (MissionSpace)"),
        ("minatar:MinAtar/Breakout-v1", 1, None),
        ("popgym:popgym-BattleshipEasy-v0", 1, None),
    ],
)
def test_training_and_evaluating_name_once_what_the_agent_does_not_see(
    env_id: str, workers: int, left_out: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    need(env_id)
    run = str(tmp_path / "run")
    for command in (
        ["train", "--env", env_id, *TINY, "--num-workers", str(workers), "--run-dir", run],
        ["eval", run, "--episodes", "1", "--repeats", "1", "--sample"],
    ):
        main(command)
        said = [line for line in "".join(capfd.readouterr()).splitlines() if "left out" in line]
        warning = "warning: left out of the observations, not being numbers"
        assert said == ([] if left_out is None else [warning + left_out])
    assert find_checkpoints(run)[-1].step == 30
