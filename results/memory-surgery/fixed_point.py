"""Do writes shrink in a long game, as if the memory approached a fixed point (Zhong et al. 2025, 2.2.2)?

    python results/memory-surgery/fixed_point.py RUN [RUN ...] [--games 3] [--shuffled] [--figure PNG]

RUN is an Atari agent with fast weights. It plays whole games, with sampled actions; printed is by how much a
step changes a head's fast weights W, relative to their norm: |W_t - W_{t-1}| / |W_t|. A change that falls
like 1/t is that of a sum that only grows; one that stays says that old writes go on being replaced. Medians
over heads and episodes in stretches of an episode, by layer, and the norm.

The inputs of a game are not stationary. With --shuffled they are: the core is given what it was given in the
first steps of a game, drawn at random with replacement. Beside it then stands where W would come to rest if
writes W + (u - W e) kᵀ as those of these steps went on forever, E[u kᵀ] E[e kᵀ]⁻¹: the norm of this fixed
point, and in how many steps it is approached, 1 / λ of the eigenvalues λ of E[e kᵀ], in the middle direction
and in the slowest.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deltabeast.cores.linear_form import DeltaForm
from deltabeast.cores.observe import watch_memory
from deltabeast.cores.provenance import linear_forms
from deltabeast.launch.evaluation.environments import env_maker
from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.evaluation.recording import game
from deltabeast.launch.evaluation.stretch import play_stretch
from deltabeast.launch.evaluation.video import play_game

EDGES = (1, 4, 16, 64, 256, 1024, 4096)
"""Steps of an episode between which medians are taken."""
MOST_STEPS = 20_000
SHUFFLED = 1_200


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


@torch.inference_mode()
def measure_shuffled(run: Path, draws: int) -> tuple[str, np.ndarray, np.ndarray]:
    """Return what `measure` does, of a core whose inputs are drawn from those of SHUFFLED steps of a game."""
    agent = load(run, "latest", None, print).agent.eval()
    env = env_maker(agent.spec, agent.spec.protocol, 1)(1)
    play = play_stretch(agent, env, 1, greedy=False, episodes=1, most_steps=SHUFFLED)
    inputs = play.inputs("cpu")
    x = agent.core_inputs(*inputs[:2])
    begins = torch.arange(len(x)).unsqueeze(1) == 0
    for n, form in enumerate(linear_forms(agent.core, x.unsqueeze(1), agent.initial_state(1), begins)):
        if isinstance(form, DeltaForm) and (form.writes.decay == 1).all():
            middle, slowest, norm = (float(each.median()) for each in resting(form))
            print(f"layer {n + 1}: fixed point {norm:.3g}, in {middle:.3g} to {slowest:.3g} steps")
    changes, norms = [], []
    for seed in range(1, draws + 1):
        order = torch.randint(len(x), (EDGES[-1],), generator=torch.Generator().manual_seed(seed))
        state, begins = agent.initial_state(1), torch.ones(1, dtype=torch.bool)
        steps = []
        with watch_memory(agent.core) as memory:
            for t in order:
                _, state = agent.core.step(x[t : t + 1], state, begins)
                begins = torch.zeros_like(begins)
                steps.append([torch.stack((layer.change[0], layer.norm[0])) for layer in memory])
        both = np.array([[layer.numpy() for layer in layers] for layers in steps])  # [T, layers, 2, heads]
        changes.append(both[:, :, 0])
        norms.append(both[:, :, 1])
    return agent.spec.core, np.stack(changes, 2), np.stack(norms, 2)


def resting(form: DeltaForm) -> tuple[Tensor, Tensor, Tensor]:
    """Return in how many steps a head's fixed point is approached, in the middle direction and in the
    slowest, and its norm: `[H]` each."""
    k, u, e = (x[:, 0, :, 0].double() for x in (form.writes.k, form.writes.u, form.writes.e))
    erased, written = (torch.einsum("tha,thb->hab", x, k) / len(k) for x in (e, u))
    steps = 1 / torch.linalg.eigvalsh((erased + erased.mT) / 2)  # e is β k: it is symmetric
    norm = torch.linalg.solve(erased.mT, written.mT).norm(dim=(-2, -1))
    return steps.median(-1).values, steps[:, 0], norm


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
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--figure", metavar="PNG", type=Path)
    options = parser.parse_args()
    found = []
    for run in options.runs:
        found.append((measure_shuffled if options.shuffled else measure)(run, options.games))
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
