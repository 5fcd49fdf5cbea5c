"""The environments of this package, as Gymnasium finds them: `deltabeast/Swap-v0` and its like."""

from __future__ import annotations

from typing import Any

import gymnasium

from .sequences import DRAWN
from .sequences.code import NOTHING
from .sequences.environment import SequenceEnv
from .sequences.sequences import NO_TARGET

SEQUENCES = {kind.__name__: kind for kind in DRAWN.values()}
"""tasks by the names of their environments"""


def make_sequence_env(name: str, **options: Any) -> SequenceEnv:
    """Make a task's environment; `options` are those of the task."""
    # Most of a program prints nothing, which would pay an agent that says so always.
    return SequenceEnv(SEQUENCES[name](**options), NOTHING if name == "Code" else NO_TARGET)


def register_environments() -> None:
    here = __package__
    for name in SEQUENCES:
        gymnasium.register(f"deltabeast/{name}-v0", f"{here}.own:make_sequence_env", kwargs={"name": name})
    for name in ("EndlessTMaze", "ColorCubes"):
        gymnasium.register(f"deltabeast/{name}-v0", f"{here}.rewriting:{name}")
    long = {"length": 32}
    gymnasium.register("deltabeast/EndlessTMazeLong-v0", f"{here}.rewriting:EndlessTMaze", kwargs=long)
