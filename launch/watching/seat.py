"""One agent in its environment: steps as plain records, and operations on its memory in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from ...agents import Agent
from ...agents.masks import forbid
from ...cores import State
from ...cores.fast_weights import FastWeights, MemoryTrace
from ...cores.linear_form import LinearForm
from ...cores.observe import MemoryStep, watch_memory, watch_traces
from ...cores.surgery import replace_memory, scale_writes
from ..evaluation.examination import divergence
from ..evaluation.play import draw_actions
from .commands import Refused
from .pictures import screen, seen
from .plain import each_rounded, in_ten_thousandths, rounded
from .readings import Readings

Record = dict[str, Any]
"""One step, of plain types."""


class _Done(NamedTuple):
    """The states around the latest step, and whether the core began in it."""

    before: State
    after: State
    begins: Tensor


class Seat:
    """Plays one environment of one row on the CPU, step by step."""

    def __init__(
        self,
        agent: Agent,
        make_envs: Callable[[], tuple[VectorEnv, VectorEnv | None]],
        greedy: bool,
        seed: int,
    ) -> None:
        """`make_envs` returns the environment and, for an Atari game, the same in colour."""
        self.agent = agent.eval()
        self._make_envs, self._greedy = make_envs, greedy
        self._envs: tuple[VectorEnv, VectorEnv | None] | None = None
        self.restart(seed)

    @property
    def begins_next(self) -> bool:
        """Whether the next step begins an episode."""
        return bool(self._over)

    @property
    def has_memory(self) -> bool:
        return bool(self._state)

    def fits(self, other: Seat) -> bool:
        """Return whether the memory of another agent could be this one's."""
        shapes, others = ([part.shape for part in seat._state] for seat in (self, other))
        return bool(shapes) and shapes == others and self.agent.spec.core == other.agent.spec.core

    def restart(self, seed: int) -> None:
        """Begin anew from a seed, as the first repeat of an evaluation with that seed does."""
        envs = seen_env, colour = self._make_envs()
        self.close()
        self._envs = envs
        self._random = np.random.default_rng([seed, 0])
        self._observation, self._infos = seen_env.reset(seed=seed)
        self._screen = None if colour is None else colour.reset(seed=seed)[0]
        self._reward, self._over, self._wipe_next = np.zeros(1, np.float32), True, False
        self._state = self.agent.initial_state(1)
        self._done: _Done | None = None
        self._why_done = "no step was taken yet"  # where there is none
        self._readings = Readings()
        self._step = self._into = self._episode = 0
        self._score, self.games = 0.0, 0
        self._notes: list[str] = []

    def close(self) -> None:
        for env in self._envs or ():
            if env is not None:
                env.close()
        self._envs = None

    def step(self) -> Record:
        """Act once; return what the agent saw, did and remembered. Raises EnvironmentFailed."""
        assert self._envs is not None
        seen_env, colour = self._envs
        begins, self._into = self._over, 0 if self._over else self._into
        picture = seen(self._observation[0]) if self._screen is None else screen(self._screen[0, -1])
        record, action = self._act(begins)
        observation, rewards, terminated, truncated, infos = seen_env.step(action)
        if colour is not None:
            self._screen = colour.step(action)[0]
        self._score += float(rewards[0])
        record |= {
            "step": self._step,
            "into": self._into,
            "begins": begins,
            "episode": self._episode,
            "seen": picture,
            "action": int(action[0]),
            "reward": rounded(float(rewards[0])),
            "score": rounded(self._score, 6),
            "notes": self._notes,
        }
        self._observation, self._reward, self._infos = observation, np.asarray(rewards, np.float32), infos
        self._over = bool(terminated[0] or truncated[0])
        self._episode += self._over
        if infos.get("_game_return", (False,))[0]:
            self._score, self.games = 0.0, self.games + 1
        self._notes, self._step, self._into = [], self._step + 1, self._into + 1
        return record

    def wipe(self) -> str:
        """Let the core begin the next step from its initial state, as in a new episode."""
        self._need_memory()
        self._wipe_next, self._done = True, None
        self._why_done = "the memory is wiped as the next step begins"
        return self._note("memory wiped")

    def undo(self) -> str:
        """Take back what the latest step wrote: the whole change of the memory."""
        self._need_memory()
        if self._done is None:
            raise Refused(f"there is no write to undo: {self._why_done}; let the agent take a step first")
        self._need_running()
        before, after, begins = self._done
        with torch.inference_mode():
            self._state = scale_writes(self.agent.core, before, after, begins, torch.zeros(1))
        self._readings.drop_latest()
        self._done, self._why_done = None, f"what step {self._step - 1:,} wrote was taken back already"
        return self._note(f"what step {self._step - 1:,} wrote was taken back")

    def take_memory(self, other: Seat) -> str:
        """Go on with a copy of another agent's memory."""
        self._need_memory()
        if not self.fits(other):
            raise Refused("the agents' memories differ; watch two runs of one core of one size")
        self._need_running()
        if other._over or other._wipe_next:
            raise Refused("the other's memory is empty as its next step begins; let it take a step first")
        own = self.agent.initial_state(1) if self._wipe_next else self._state
        with torch.inference_mode():
            self._state = replace_memory(self.agent.core, own, other._state)
        self._wipe_next = False
        self._readings.clear()
        self._done, self._why_done = None, "the memory is a copy of the other agent's"
        return self._note("plays on with the memory of the agent beside")

    def use(self, agent: Agent, step: int) -> str:
        """Go on with other weights, and the memory as it is."""
        self.agent = agent.eval()
        return self._note(f"the checkpoint at {step:,} steps plays on")

    def _need_memory(self) -> None:
        if not self._state:
            raise Refused(f"{self.agent.spec.core} has no memory; watch an agent that has one")

    def _need_running(self) -> None:
        if self._over:
            raise Refused(
                "the next step begins an episode, without a memory; let the agent take a step first"
            )

    def _note(self, text: str) -> str:
        self._notes.append(text)
        return f"step {self._step:,}: {text}"

    @torch.inference_mode()
    def _act(self, begins: bool) -> tuple[Record, npt.NDArray[np.int64]]:
        agent, core = self.agent, self.agent.core
        forms: list[LinearForm | None] = []

        def collect(_: int, memory: FastWeights, trace: MemoryTrace) -> None:
            forms.append(memory.linear_form(trace))

        reset = torch.tensor([begins or self._wipe_next])
        x = agent.core_input(
            agent.trunk_features(torch.from_numpy(self._observation)), torch.from_numpy(self._reward)
        )
        with watch_memory(core) as memory, watch_traces(core, collect):
            y, after = core.step(x, self._state, reset)
        wiped, _ = core.step(x, agent.initial_state(1), torch.tensor([True]))
        logits, values = agent.heads(torch.cat((y, wiped)))
        if "action_mask" in self._infos:
            logits = forbid(logits, torch.from_numpy(self._infos["action_mask"]))
        action = logits[:1].argmax(-1).numpy() if self._greedy else draw_actions(logits[:1], [self._random])
        log_policies = logits.double().log_softmax(-1)
        self._readings.add(self._step, forms, bool(reset))
        self._done = _Done(self._state, after, reset)
        self._state, self._wipe_next = after, False
        record: Record = {
            "policy": each_rounded(log_policies[0].exp().tolist()),
            "value": rounded(float(values[0])),
        }
        if after:
            record |= {
                "wiped": each_rounded(log_policies[1].exp().tolist()),
                "kl": rounded(float(divergence(log_policies[0], log_policies[1])), 3),
                "layers": _layers(memory, after),
                "reading": self._reading(),
            }
        return record, action

    def _reading(self) -> Record | None:
        reading = self._readings.explain()
        if reading is None:
            return None
        return {
            "first": reading.first,
            "shares": in_ten_thousandths(reading.fractions),
            "older": in_ten_thousandths([reading.older])[0],
            "sources": reading.sources,
            "age": reading.median_age,
        }


def _layers(memory: list[MemoryStep], state: State) -> list[Record]:
    """What the step did to each layer's memory; of a core without layers the norm of its state."""
    if not memory:
        return [{"norm": [rounded(float(torch.cat([part.flatten() for part in state]).norm()), 3)]}]
    layers = []
    for layer in memory:
        of_heads = {"strength": layer.write_strength, "norm": layer.norm, "change": layer.change}
        if not layer.norm.any():  # attention has no fast weights
            del of_heads["norm"], of_heads["change"]
        layers.append({name: each_rounded(x[0].tolist()) for name, x in of_heads.items() if x is not None})
    return layers
