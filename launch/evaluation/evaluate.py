"""Evaluate a player: play episodes, in this process or in several, and collect the returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ...envs.checks import environment_seeds
from .play import Player, Repeat, Repeats, Setup
from .processes import play_in_processes
from .returns import Evaluation, Returns


def evaluate(
    player: Player,
    make_env: Callable[[int], VectorEnv],
    episodes: int = 30,
    repeats: int = 5,
    greedy: bool = True,
    seed: int = 1,
    max_episode_steps: int = 1_000_000,
    discard_negative: bool = False,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int, int], None] | None = None,
    processes: int = 1,
) -> Evaluation:
    """Play `episodes` consecutive episodes in each of `repeats` environments.

    Every environment plays its own fixed number of episodes: taking whichever episodes end first would
    favour short ones. `make_env(n)` gives a vector environment of n rows that restarts episodes in the same
    step; it is closed at the end. An episode is what lies between two `done`s of the environment: a life
    under some protocols, a game under others.

    discard_negative: leave out episodes with a negative return and play others for them.
    progress: called now and then with the episodes played and to play, and the steps played.
    processes: how many share the environments, a core each: the same episodes, except rounding. Player and
    make_env must then be picklable.

    An episode longer than `max_episode_steps` agent steps is aborted, and counted as unfinished; the others
    are scored. An agent may wait for ever in each, so a repeat stops once its unfinished episodes, if more
    than one, outnumber its finished ones; at the first one where no environment can be reset alone.

    Raises RunError if a process dies, EnvironmentFailed.
    """
    seeds = environment_seeds(seed, repeats).tolist()
    rows = [Repeat(i, row_seed, np.random.default_rng([seed, i])) for i, row_seed in enumerate(seeds)]
    shares = np.array_split(np.arange(repeats), min(processes, repeats))
    parts = [Repeats([rows[i] for i in share], episodes) for share in shares]

    def tell(done: Sequence[int], steps: Sequence[int]) -> None:
        if progress is not None:
            progress(sum(done), episodes * repeats, sum(steps))

    setup = Setup(player, make_env, greedy, max_episode_steps, discard_negative, device)
    if len(parts) == 1:
        parts[0].play(setup, lambda done, steps: tell([done], [steps]))
    else:
        parts = play_in_processes(setup, parts, tell)
        rows = [row for part in parts for row in part.rows]
    return Evaluation(
        episodes,
        repeats,
        _returns(rows, "life"),
        _returns(rows, "game"),
        **{name: sum(getattr(part, name) for part in parts) for name in _COUNTS},
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


_COUNTS = ("discarded_negative", "discarded_wrapped", "score_wraps", "steps", "unfinished")


def _returns(rows: list[Repeat], kind: str) -> Returns:
    """Collect the returns and lengths of one kind of episode."""
    return Returns(
        [getattr(row, f"{kind}_returns") for row in rows], [getattr(row, f"{kind}_lengths") for row in rows]
    )
