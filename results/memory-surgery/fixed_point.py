"""Do writes shrink in a long game, as if the memory approached a fixed point (Zhong et al. 2025, 2.2.2)?

    python results/memory-surgery/fixed_point.py RUN [RUN ...] [--games 3] [--figure PNG]

RUN is an Atari agent with fast weights. It plays whole games, with sampled actions; printed is by how much a
step changes a head's fast weights W, relative to their norm: |W_t - W_{t-1}| / |W_t|. A change that falls
like 1/t is that of a sum that only grows; one that stays says that old writes go on being replaced. Medians
over heads and episodes in stretches of an episode, by layer, and the norm.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.evaluation.recording import game
from deltabeast.launch.evaluation.video import play_game

EDGES = (1, 4, 16, 64, 256, 1024, 4096)
"""Steps of an episode between which medians are taken."""
MOST_STEPS = 20_000


def measure(run: Path, games: int) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the core, and change and norm of each step of an episode `[steps, layers, games, heads]`.

    nan where a game was shorter.
    """
    loaded = load(run, "latest", None, print)
    agent, protocol = loaded.agent.eval(), loaded.agent.spec.protocol
    changes, norms = [], []
    for seed in range(1, games + 1):
        trace = play_game(agent, game(agent.spec, protocol), seed, False, MOST_STEPS)
        change, norm = trace.of_heads("change"), trace.of_heads("norm")
        starts = [*np.flatnonzero(trace.begins), len(trace.begins)]
        for begin, end in itertools.pairwise(starts):
            changes.append(change[begin:end])
            norms.append(norm[begin:end])
    steps = max(map(len, changes))
    return agent.spec.core, *(
        np.stack([_padded(each, steps) for each in found], 2) for found in (changes, norms)
    )


def _padded(x: np.ndarray, steps: int) -> np.ndarray:
    return np.concatenate([x, np.full((steps - len(x), *x.shape[1:]), np.nan)])


def stretches(x: np.ndarray) -> list[list[float]]:
    """Return the median of each stretch, by layer."""
    parts = [x[low:high] for low, high in itertools.pairwise(EDGES) if low < len(x)]
    return [[float(np.nanmedian(part[:, layer])) for part in parts] for layer in range(x.shape[1])]


def draw(found: Sequence[tuple[str, np.ndarray, np.ndarray]], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(found), figsize=(3.1 * len(found), 2.7), sharey=True, layout="constrained"
    )
    for panel, (core, change, _) in zip(np.atleast_1d(axes), found, strict=True):
        middle = [(a + b) / 2 for a, b in itertools.pairwise(EDGES)]
        for layer, values in enumerate(stretches(change)):
            panel.plot(middle[: len(values)], values, "o-", label=f"layer {layer + 1}", markersize=4)
        panel.plot(middle, [0.7 / t for t in middle], "--", color="#9ca3af", label="1/t")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(core, fontsize=10)
        panel.set_xlabel("step of the episode")
        panel.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(axes)[0].set_ylabel("change of a step, relative")
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8)
    figure.savefig(target, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+")
    parser.add_argument("--games", type=int, default=3)
    parser.add_argument("--figure", metavar="PNG", type=Path)
    options = parser.parse_args()
    found = []
    for run in options.runs:
        found.append(measure(run, options.games))
        core, change, norm = found[-1]
        print(f"\n{run}: {core}, {change.shape[2]} episodes of up to {len(change):,} steps")
        titles = [f"{low} to {high - 1}" for low, high in itertools.pairwise(EDGES)]
        print(f"{'steps':16}" + "".join(f"{title:>14}" for title in titles))
        for name, values in (("change", change), ("norm", norm)):
            for layer, row in enumerate(stretches(values)):
                print(f"{name}, layer {layer + 1:<3}" + "".join(f"{value:14.3g}" for value in row))
    if options.figure:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
