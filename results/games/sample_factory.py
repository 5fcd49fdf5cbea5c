"""Train Sample Factory, tuned as for ../laptop, on a game; write the scores of whole games by agent steps.

    python results/games/sample_factory.py SCORES.csv PYTHON GAME SEED STEPS

What it prints is the return of one life, its rewards clipped, so the scores come from its summaries: means of
the last 100 games, as `deltabeast train` logs them. There are none until 100 games have ended, or 11 within 5
minutes. Its learning rate ends at three quarters of what it was: its schedule counts frames, four a step.
../throughput/peers.py has the environment of PYTHON.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

RESULTS = Path(__file__).parents[1]
sys.path.insert(0, str(RESULTS / "laptop"))
from time_to_score import ALLOCATOR, TUNED  # noqa: E402

FRAMES = 4
"""Frames an agent step: what Sample Factory counts."""
SCORE = "policy_stats/avg_RecordEpisodeStatistics_reward"


def main() -> None:
    if len(sys.argv) != 6:
        raise SystemExit(__doc__)
    out, python, game, seed, steps = Path(sys.argv[1]), os.path.abspath(sys.argv[2]), *sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        options = [
            f"--env=atari_{game.replace('_', '')}",
            "--device=cpu",
            "--experiment=run",
            f"--seed={seed}",
            f"--train_dir={folder}",
            f"--train_for_env_steps={FRAMES * int(steps)}",
            *TUNED,
        ]
        subprocess.run(
            [python, str(RESULTS / "throughput" / "sample_factory_atari.py"), *options],
            check=True,
            cwd=folder,
            env={**os.environ, **ALLOCATOR},
        )
        summaries = EventAccumulator(str(next(Path(folder).rglob(".summary/0"))))
        summaries.Reload()
        scores = summaries.Scalars(SCORE)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("step", "time", "game_return"))
        writer.writerows(
            (each.step // FRAMES, f"{each.wall_time:.1f}", f"{each.value:.3f}") for each in scores
        )


if __name__ == "__main__":
    main()
