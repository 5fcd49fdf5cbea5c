"""Log now and then how far back an agent's readings reach: of one environment, in its last 1,000 steps."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...agents import Agent, Unroll
from ...cores.base import State
from ...cores.provenance import can_be_replayed, linear_forms
from ...cores.reading_age import median_age, reading_ages, share_beyond

BEYOND = (10, 100, 1000)
"""Ages of which the part that is older is logged."""
_READINGS = 32
"""The last steps, whose readings are explained."""
_SHARE_OF_TIME = 0.005


class _Part(NamedTuple):
    """What the agent was given in an unroll of the environment, each with a batch of one.

    Any of them may be the oldest one when readings are explained, so each has the state at its beginning.
    """

    observation: Tensor
    reward: Tensor
    done: Tensor
    state: State
    number: int
    """of the unroll, counted from the environment's first"""

    @property
    def steps(self) -> int:
        return len(self.done)


class ReadingAges:
    """The latest steps of one environment, and when to explain what the agent reads in them.

    They are computed again with the weights that the agent has then: the learner's newest, on a cluster those
    that the first actor acts with. The oldest ones begin with the state that an actor had there. Explaining
    takes at most 0.5% of the time in the mean.
    """

    def __init__(self, agent: Agent, env: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """`env` is the environment's number in `Unroll.origin`."""
        self._agent, self._env, self._clock = agent, env, clock
        self._parts: deque[_Part] = deque()
        self._due = clock()
        self._off = False

    def add(self, unroll: Unroll) -> None:
        """Take the environment's steps from a batch, if it has them."""
        if self._off or unroll.origin is None:
            return
        for column, (env, number) in enumerate(unroll.origin.tolist()):
            if env == self._env:
                self._append(unroll, column, number)

    def _append(self, unroll: Unroll, column: int, number: int) -> None:
        if self._parts and number != self._parts[-1].number + 1:
            self._parts.clear()
        row = slice(column, column + 1)
        observation, reward, done = (
            x[:-1, row].clone() for x in (unroll.observation, unroll.reward, unroll.done)
        )
        state = tuple(part[row].clone() for part in unroll.state)
        self._parts.append(_Part(observation, reward, done, state, number))
        while self._steps - self._parts[0].steps >= BEYOND[-1] + _READINGS:
            self._parts.popleft()

    @property
    def _steps(self) -> int:
        return sum(part.steps for part in self._parts)

    def sample(self) -> dict[str, float]:
        """Return what to log, if it is time; else nothing.

        `read_age` is the median age in steps of what is read, `read_beyond_10` and so on are the parts that
        are older. Nothing for a core without fast weights or attention.
        """
        begun = self._clock()
        if self._off or begun < self._due or self._steps < BEYOND[-1] + _READINGS:
            return {}
        by_age = self._by_age()
        if by_age is None:
            self._off = True
            self._parts.clear()
            return {}
        found = {f"read_beyond_{age}": share_beyond(by_age, age) for age in BEYOND}
        found = {"read_age": min(median_age(by_age), BEYOND[-1] + 1.0), **found}
        now = self._clock()
        self._due = now + (now - begun) / _SHARE_OF_TIME
        return {name: value for name, value in found.items() if math.isfinite(value)}

    @torch.no_grad()
    def _by_age(self) -> Tensor | None:
        """Compute the ages of the last readings; None where the core's are no sums of what it wrote."""
        agent = self._agent
        observation, reward, done = (
            torch.cat([getattr(part, name) for part in self._parts]) for name in _Part._fields[:3]
        )
        x = agent.core_inputs(observation.squeeze(1), reward.squeeze(1)).unsqueeze(1)
        forms = linear_forms(agent.core, x, self._parts[0].state, done)
        some = [form for form in forms if form is not None and can_be_replayed(form)]
        return reading_ages(some, self._steps - _READINGS).cpu() if some else None
