"""What a newcomer's command reached, and random play beside it: python results/first-hour/table.py RUNS OUT

Adds to OUT/scores.csv, and prints the table.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deltabeast.envs import make_vector_env
from deltabeast.launch.runs.directory import read_config
from deltabeast.launch.runs.log import read_rows

GAMES = 1_000
WANTED = {
    "CartPole-v1": "475",
    "Acrobot-v1": "-100",
    "popgym:popgym-RepeatPreviousEasy-v0": "0.9",
    "minigrid:MiniGrid-Empty-8x8-v0": "0.9",
    "minatar:MinAtar/Breakout-v1": "10",
    "LunarLander-v3": "",
    "popgym:popgym-PositionOnlyCartPoleEasy-v0": "",
    "minatar:MinAtar/SpaceInvaders-v1": "",
    "flappy_bird_gymnasium:FlappyBird-v0": "",
    "minigrid:MiniGrid-MemoryS7-v0": "",
}
"""What a score should be at least, in the order of the table; of the last five nothing was fixed before."""
OPTIONS = {"flappy_bird_gymnasium:FlappyBird-v0": {"use_lidar": False}}


class Result(NamedTuple):
    """A run: how long it took, and what its agent scored in 100 greedy games."""

    env: str
    core: str
    seed: int
    minutes: float
    score: float


def main(runs: Path, out: Path) -> None:
    table = out / "scores.csv"
    before = [
        Result(r["env"], r["core"], int(r["seed"]), float(r["minutes"]), float(r["score"]))
        for r in rows(table)
    ]
    new = [result_of(path) for path in sorted(runs.glob("*/*/seed-*/eval/*.json"))]
    results = sorted({result[:3]: result for result in (*before, *new)}.values())
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([Result._fields, *results])
    print(
        "| environment | wanted | random play | core | minutes | greedy return of 100 games |\n"
        "|---|---|---|---|---|---|"
    )
    for env in sorted({result.env for result in results}, key=[*WANTED].index):
        chance = f"{random_play(env):.3g}"
        for core in ("lstm", "rdn"):
            of_core = [result for result in results if (result.env, result.core) == (env, core)]
            minutes = ", ".join(f"{result.minutes:.1f}" for result in of_core)
            scores = ", ".join(f"{result.score:.4g}" for result in of_core)
            print(f"| `{env}` | {WANTED[env]} | {chance} | {core} | {minutes} | {scores} |")


def rows(table: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(table.read_text().splitlines())] if table.exists() else []


def result_of(evaluation: Path) -> Result:
    run = evaluation.parents[1]
    config = read_config(run)
    score = json.loads(evaluation.read_text())["results"]["trained"]["summary"]["game"]["overall_mean"]
    return Result(config["env"], config["core"], config["seed"], round(minutes_of(run), 2), round(score, 4))


def minutes_of(run: Path) -> float:
    """Add up each start's minutes: from its event file, made before the first step, to its last row."""
    starts = sorted(int(path.name.split(".")[3]) for path in run.glob("events.out.tfevents.*"))
    times = [float(row["time"]) for row in read_rows(run / "logs.csv")]
    ends = [max((t for t in times if t < stop), default=0.0) for stop in (*starts[1:], math.inf)]
    return sum(max(0.0, end - start) for start, end in zip(starts, ends, strict=True)) / 60


def random_play(env_id: str) -> float:
    """Play games with actions drawn alike, and return the mean of their returns."""
    env = make_vector_env(env_id=env_id, num_envs=GAMES, options=OPTIONS.get(env_id))
    env.reset(seed=1)
    rng, first = np.random.default_rng(1), np.full(GAMES, np.nan)
    while np.isnan(first).any():
        *_, info = env.step(rng.integers(0, env.single_action_space.n, GAMES))
        ended = info.get("_game_return", np.zeros(GAMES, bool)) & np.isnan(first)
        first[ended] = info.get("game_return", first)[ended]
    env.close()
    return float(first.mean())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
