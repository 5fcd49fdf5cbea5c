"""The agents that are kept in results/atari: anyone can repeat what their cards say, without training."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from deltabeast.envs import game_info
from deltabeast.launch.cli import main

AGENTS = Path(__file__).parents[3] / "results" / "atari" / "agents"
*OTHERS, LAST = sorted(path.name for path in AGENTS.iterdir())


def sampled(folder: Path) -> dict[str, Any]:
    """Return the results of the newest evaluation with sampled actions."""
    found = [json.loads(file.read_text()) for file in folder.glob("eval/*.json")]
    newest = max((each for each in found if not each["greedy"]), key=lambda each: str(each["time"]))
    results: dict[str, Any] = newest["results"]["trained"]
    return results


def games(results: dict[str, Any]) -> list[float]:
    return [score for row in results["game"]["returns"] for score in row]


@pytest.mark.parametrize("core", [*(pytest.param(core, marks=pytest.mark.long) for core in OTHERS), LAST])
def test_a_kept_agent_plays_as_its_card_says(core: str, tmp_path: Path) -> None:
    """In other games than those that the card counts, which are drawn anew from the evaluation's seed: their
    median is where nine in ten of the card's are. A mean would follow the one game in fifty that is lost.
    """
    copy = tmp_path / core
    shutil.copytree(AGENTS / core, copy)
    stated = sampled(copy)
    low, high = stated["summary"]["game"]["interval"]
    assert f"{low:.1f} to {high:.1f}" in (copy / "README.md").read_text()
    main(
        ["eval", str(copy), "--sample", "--episodes", "1", "--repeats", "5", "--seed", "7", "--device", "cpu"]
    )
    before, again = games(stated), games(sampled(copy))
    assert len(again) == 5 and len(before) == 50
    twentieths = statistics.quantiles(before, n=20)
    assert twentieths[0] <= statistics.median(again) <= twentieths[-1], (before, again)
    random = game_info("pong").random
    assert random is not None and min(again) > random + 10


@pytest.mark.parametrize("core", [*OTHERS, LAST])
def test_a_kept_agent_is_small(core: str) -> None:
    assert sum(file.stat().st_size for file in (AGENTS / core).rglob("*") if file.is_file()) <= 3e6
