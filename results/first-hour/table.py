"""What a newcomer's command reached, and random play beside it: python results/first-hour/table.py RUNS OUT

Adds to OUT/scores.csv, and prints the table.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deltabeast.envs import make_vector_env
from deltabeast.launch.runs.directory import read_config
from deltabeast.launch.runs.log import read_rows

GAMES = 1_000
WANTED = {
    "CartPole-v1": 475,
    "Acrobot-v1": -100,
    "popgym:popgym-RepeatPreviousEasy-v0": 0.9,
    "minigrid:MiniGrid-Empty-8x8-v0": 0.9,
    "minatar:MinAtar/Breakout-v1": 10,
}


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
            print(f"| `{env}` | {WANTED[env]:g} | {chance} | {core} | {minutes} | {scores} |")


def rows(table: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(table.read_text().splitlines())] if table.exists() else []


def result_of(evaluation: Path) -> Result:
    """Minutes are from the first event file, made once environment and agent are, to the last row."""
    run = evaluation.parents[1]
    config = read_config(run)
    start = min(int(path.name.split(".")[3]) for path in run.glob("events.out.tfevents.*"))
    score = json.loads(evaluation.read_text())["results"]["trained"]["summary"]["game"]["overall_mean"]
    minutes = (float(read_rows(run / "logs.csv")[-1]["time"]) - start) / 60
    return Result(config["env"], config["core"], config["seed"], round(minutes, 2), round(score, 4))


def random_play(env_id: str) -> float:
    """Play games with actions drawn alike, and return the mean of their returns."""
    env = make_vector_env(env_id=env_id, num_envs=GAMES)
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
