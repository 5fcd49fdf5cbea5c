"""Vector environments of every autoreset mode, as the agents read them: where an episode ended, the
observation is the first one of the next.

Gymnasium has three modes. SAME_STEP is that form. DISABLED leaves it to whoever steps to reset those that
ended. NEXT_STEP returns the last observation with the flags, and spends the next step on the reset:
it ignores the action, and returns the first observation with reward 0.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from .masks import joined, without

Env = VectorEnv[Any, Any, Any]
Flags = npt.NDArray[np.bool_]
Step = tuple[Any, npt.NDArray[Any], Flags, Flags, dict[str, Any]]


def in_same_step(env: Env) -> Env:
    """Return `env` itself if it is SAME_STEP, or an adapter that presents it so.

    Observations are arrays or flat tuples of arrays. Raises ValueError for an environment that does not
    declare its mode.
    """
    declared = env.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(declared)
    except ValueError:
        modes = ", ".join(str(each) for each in AutoresetMode)
        raise ValueError(
            f"its metadata['autoreset_mode'] is {declared!r}, which does not say what it returns where an "
            f"episode ends; set it to one of {modes}"
        ) from None
    if mode == AutoresetMode.NEXT_STEP:
        return DelayedEnds(env)
    return MaskedResets(env) if mode == AutoresetMode.DISABLED else env


class DelayedEnds(VectorWrapper[Any, Any, Any]):
    """A NEXT_STEP environment whose episodes end a step later, when it has reset.

    Environments end at different times and all of them are stepped, so the step that one spends on its reset
    cannot be left out. It becomes the last one of the old episode, on the last observation: `resetting`
    marks it, since the action had no effect, and nothing is earned. No state then reads an observation of
    another episode. The value's target there is 0, or after a truncation the value itself, from which nothing
    is learned.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._none = np.zeros(env.num_envs, bool)
        self._last: Any = None
        self._ended = self._none, self._none
        self.resetting = self._none
        """environments whose last step was their reset"""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._ended = self._none, self._none
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Step:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        over, self._ended = self._ended, (np.array(terminated, bool), np.array(truncated, bool))
        self.resetting = over[0] | over[1]
        if self.resetting.any():
            infos = {**infos, **final_observations(self, self._last, self.resetting)}
        if np.any(self._ended):
            self._last = deepcopy(observations)
            infos = without(infos, self._ended[0] | self._ended[1])  # nothing is chosen at the end
        return observations, np.where(self.resetting, 0.0, rewards), *over, infos


class MaskedResets(VectorWrapper[Any, Any, Any]):
    """A DISABLED environment that is reset where episodes end, by `options={"reset_mask": [N] bool}`."""

    def step(self, actions: Any) -> Step:
        last, rewards, terminated, truncated, infos = self.env.step(actions)
        done = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        if not done.any():
            return last, rewards, terminated, truncated, infos
        is_one = not isinstance(last, tuple)
        before = tuple(np.array(part) for part in ((last,) if is_one else last))
        after, reset_infos = self.env.reset(options={"reset_mask": done})
        parts = (after,) if is_one else after
        if not all(np.array_equal(new[~done], old[~done]) for new, old in zip(parts, before, strict=True)):
            raise ValueError(
                "its reset changed environments outside options['reset_mask'], which a DISABLED one must "
                "leave as they are; heed the mask, or declare the autoreset mode that it has"
            )
        ends = final_observations(self, before[0] if is_one else before, done)
        infos = {**infos, **reset_infos, **ends, **joined(infos, reset_infos, done)}
        return after, rewards, terminated, truncated, infos


def final_observations(env: Env, observations: Any, ended: Flags) -> dict[str, Any]:
    """Return the infos in which SAME_STEP environments report the last observations of what `ended`."""
    final = np.full(env.num_envs, None, object)
    items = list(iterate(env.observation_space, observations))
    for row in np.flatnonzero(ended):
        final[row] = items[row]
    return {"final_obs": final, "_final_obs": ended}
