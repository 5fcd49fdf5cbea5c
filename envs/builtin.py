"""The environments of this package, as Gymnasium finds them: `deltabeast/Swap-v0` and its like."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from .sequences import GENERATORS
from .sequences.code import NOTHING
from .sequences.sequences import NO_TARGET, Integers, Task

SEQUENCES = {kind.__name__: kind for kind in GENERATORS.values()}
"""tasks by the names of their environments"""


class SequenceEnv(gymnasium.Env[Integers, np.int64]):
    """One sequence an episode; a right answer to the token just shown is worth 1, where one is asked for.

    Observations are a token's symbols. The answer `unpaid` is worth nothing, right or not.
    """

    def __init__(self, task: Task, unpaid: int = NO_TARGET) -> None:
        self.observation_space = spaces.MultiDiscrete(list(task.symbols))
        self.action_space = spaces.Discrete(task.classes)
        self._task, self._unpaid = task, unpaid

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        super().reset(seed=seed)
        self._sequence, self._step = self._task.sample(self.np_random, 1), 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Integers, float, bool, bool, dict[str, Any]]:
        asked = self._sequence.target[self._step, 0]
        reward = float(asked not in (NO_TARGET, self._unpaid) and action == asked)
        done = self._step + 1 == len(self._sequence.tokens)
        self._step += not done
        return self._seen(), reward, done, False, {}

    def _seen(self) -> Integers:
        return np.array(np.unravel_index(self._sequence.tokens[self._step, 0], self._task.symbols))


def make_sequence_env(name: str, **options: Any) -> SequenceEnv:
    """Make a task's environment; `options` are those of the task."""
    # Most of a program prints nothing, which would pay an agent that says so always.
    return SequenceEnv(SEQUENCES[name](**options), NOTHING if name == "Code" else NO_TARGET)


def register_environments() -> None:
    here = __package__
    for name in SEQUENCES:
        gymnasium.register(
            f"deltabeast/{name}-v0", f"{here}.builtin:make_sequence_env", kwargs={"name": name}
        )
    for name in ("EndlessTMaze", "ColorCubes"):
        gymnasium.register(f"deltabeast/{name}-v0", f"{here}.rewriting:{name}")
    long = {"length": 32}
    gymnasium.register("deltabeast/EndlessTMazeLong-v0", f"{here}.rewriting:EndlessTMaze", kwargs=long)
