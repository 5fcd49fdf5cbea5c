"""The agents that are kept in results/atari: anyone can repeat what their cards say, without training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deltabeast.envs import game_info
from deltabeast.launch.cli import main

AGENTS = Path(__file__).parents[3] / "results" / "atari" / "agents"
CORES = sorted(path.name for path in AGENTS.iterdir())


def sampled(folder: Path) -> dict[str, Any]:
    """Summarise the games of the newest evaluation with sampled actions."""
    found = [json.loads(file.read_text()) for file in folder.glob("eval/*.json")]
    newest = max((each for each in found if not each["greedy"]), key=lambda each: str(each["time"]))
    summary: dict[str, Any] = newest["results"]["trained"]["summary"]["game"]
    return summary


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["interval"][0] <= other["interval"][1] and other["interval"][0] <= one["interval"][1])


# The LSTM's games are the shortest.
@pytest.mark.parametrize(
    ("core", "games"), [("lstm", 3), *(pytest.param(core, 10, marks=pytest.mark.long) for core in CORES)]
)
def test_a_kept_agent_plays_as_its_card_says(core: str, games: int, tmp_path: Path) -> None:
    """In other games than those that the card counts, which are drawn anew from the evaluation's seed."""
    copy = tmp_path / core
    shutil.copytree(AGENTS / core, copy)
    stated = sampled(copy)
    assert f"{stated['interval'][0]:.1f} to {stated['interval'][1]:.1f}" in (copy / "README.md").read_text()
    main(
        [
            "eval",
            str(copy),
            "--sample",
            "--episodes",
            "1",
            "--repeats",
            str(games),
            "--seed",
            "7",
            "--device",
            "cpu",
        ]
    )
    again = sampled(copy)
    assert again["count"] == games and overlap(stated, again), (stated["interval"], again["interval"])
    random = game_info("pong").random
    assert random is not None and again["interval"][0] > random + 10


@pytest.mark.parametrize("core", CORES)
def test_a_kept_agent_is_small(core: str) -> None:
    assert sum(file.stat().st_size for file in (AGENTS / core).rglob("*") if file.is_file()) <= 3e6
