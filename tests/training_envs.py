"""Environments that are learned in seconds, or that fail in one particular way: `training_envs:Match-v0`.

And a core that draws from torch's global generator.
"""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import random
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from deltabeast.cores import Core, State
from deltabeast.envs import make_vector_env

FAILS_AT: float = 93
"""Steps of one environment before it fails, in the middle of an episode."""
RELEASED = threading.Event()
"""Ends the waiting of Stalls-v0."""


class Match(gymnasium.Env[np.ndarray, int]):
    """Ten steps, a point for each action that equals the bit shown."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.total = 0

    def _observe(self) -> np.ndarray:
        self.bit = int(self.np_random.integers(2))
        return np.array([1.0, -1.0] if self.bit else [-1.0, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.bit)
        self.count += 1
        self.total += 1
        return self._observe(), reward, self.count == 10, False, {}


class Unpaid(Match):
    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, _, *rest = super().step(action)
        return frame, 0.0, *rest  # type: ignore[return-value]


class Raises(Match):
    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.total >= FAILS_AT:
            raise KeyError("the emulator broke")
        return super().step(action)


class FailsBeside(Match):
    """Only where another process started this one."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.total >= FAILS_AT and multiprocessing.parent_process() is not None:
            raise RuntimeError("the joystick broke")
        return super().step(action)


class NanReward(Match):
    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, reward, *rest = super().step(action)
        return frame, float("nan") if self.total == FAILS_AT else reward, *rest  # type: ignore[return-value]


class NanObservation(Match):
    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, *rest = super().step(action)
        if self.total == FAILS_AT:
            frame = np.full_like(frame, np.nan)
        return frame, *rest  # type: ignore[return-value]


class Overflows(Match):
    """Shows a finite number that no network of float32 can take."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, *rest = super().step(action)
        if self.total == FAILS_AT:
            frame = np.full_like(frame, np.finfo(np.float32).max)
        return frame, *rest  # type: ignore[return-value]


class OverflowsBeside(Overflows):
    """Only where another process started this one."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        alone = multiprocessing.parent_process() is None
        return Match.step(self, action) if alone else super().step(action)


class SometimesEndless(Match):
    """The third of its episodes, and every third after it, does not end, and pays at each step."""

    episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode = 0 if seed is not None else self.episode + 1
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, reward, over, *rest = super().step(action)
        endless = self.episode % 3 == 2
        return frame, 1.0 if endless else reward, over and not endless, *rest  # type: ignore[return-value]


class Strays(Match):
    """Shows numbers beyond its bounds."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, *rest = super().step(action)
        return 3 * frame, *rest  # type: ignore[return-value]


class Odd(Match):
    """Is cut after 5 to 8 steps; shows masks from the third on, after its first few episodes."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        shown = super().reset(seed=seed)
        self.length = int(self.np_random.integers(5, 9))
        return shown

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, reward, *_ = super().step(action)
        mask = (
            {"action_mask": np.array([1, self.count % 2])}
            if self.count > 2 and self.total > 3 * self.length
            else {}
        )
        return frame, reward, False, self.count >= self.length, mask


class ShowsSeeds(gymnasium.vector.VectorEnv):
    single_observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.array(seed, np.float32)[:, None], {}


def maps_nothing(num_envs: int) -> Any:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    mmap.mmap = refuse  # type: ignore[assignment,misc]
    return ShowsSeeds(num_envs)


class Unpicklable(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__("neither")


def leaves(num_envs: int) -> Any:
    os._exit(3)


def raises_unpicklable(num_envs: int) -> Any:
    raise Unpicklable(1, 2)


def raises_at_length(num_envs: int) -> Any:
    raise ValueError("x" * 1_000_000)


def uneven(num_envs: int) -> Any:
    """Odd environments that are slow now and then, as their actions and number say."""
    env = make_vector_env(env_id="training_envs:Odd-v0", num_envs=num_envs, num_threads=1)
    step = env.step

    def slow(actions: np.ndarray) -> Any:
        time.sleep((actions.sum() + num_envs) % 3 / 500)
        return step(actions)

    env.step = slow  # type: ignore[method-assign]
    return env


class Stalls(Match):
    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.total >= FAILS_AT:
            RELEASED.wait(60)
        return super().step(action)


class Forgets(Match):
    """Does not repeat itself: its seed has no effect."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(seed=None)


class DrawsGlobally(Match):
    """Shows a bit of NumPy's generator, and pays more or less by Python's."""

    def _observe(self) -> np.ndarray:
        self.bit = int(np.random.randint(2))  # noqa: NPY002
        return np.array([1.0, -1.0] if self.bit else [-1.0, 1.0], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, reward * random.random(), *rest  # type: ignore[return-value]


class NoisyCore(Core):
    def __init__(self, input_size: int) -> None:
        super().__init__(input_size, 8)
        self.linear = nn.Linear(input_size, 8)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return ()

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y = self.linear(x)
        return y + 0.1 * torch.randn_like(y), ()


class Numbered(Match):
    """Episodes of five steps. The score of each of a process's first environment says which it is."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Numbered.made += 1
        self.first, self.episode = Numbered.made == 1, 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, _, _, *rest = super().step(action)
        if self.count < 5:
            return frame, 0.0, False, *rest  # type: ignore[return-value]
        if not self.first:
            return frame, 0.0, True, *rest  # type: ignore[return-value]
        time.sleep(0.02)  # numbers must do for a test
        self.episode += 1
        half, process = divmod(os.getpid() % 8192, 4096)
        score = process * 4096.0 + self.episode  # exact in float32
        return frame, -score if half else score, True, *rest  # type: ignore[return-value]


def which(score: float) -> tuple[int, int] | None:
    """Process and number of a finished episode of Numbered-v0, if its score says."""
    process, number = divmod(abs(int(score)), 4096)
    return (process + 4096 * (score < 0), number) if score else None


class WhichThird(gymnasium.Env[np.ndarray, int]):
    """Fifty steps, a point for each action that names the third of the image in which the square lies."""

    observation_space = spaces.Box(0, 255, (1, 84, 84), np.uint8)
    action_space = spaces.Discrete(3)
    size = 20

    def _observe(self) -> np.ndarray:
        self.x, y = (int(n) for n in self.np_random.integers(0, 84 - self.size, 2))
        image = np.zeros((1, 84, 84), np.uint8)
        image[:, y : y + self.size, self.x : self.x + self.size] = 255
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.x * 3 // (84 - self.size))
        self.count += 1
        return self._observe(), reward, self.count == 50, False, {}


class WhichCode(gymnasium.Env[np.ndarray, int]):
    """Fifty steps, a point for each action that says whether a grid of 0 to 2 holds a 5 or a 6."""

    observation_space = spaces.Box(0, 255, (5, 5, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        grid = self.np_random.integers(0, 3, (5, 5, 1), np.uint8)
        self.code = int(self.np_random.integers(5, 7))
        grid[tuple(self.np_random.integers(0, 5, 2))] = self.code
        return grid

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.code - 5)
        self.count += 1
        return self._observe(), reward, self.count == 50, False, {}


class Recall(gymnasium.Env[np.ndarray, int]):
    """A bit is shown once; three blank steps later the action must name it. A new bit every four steps."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        if self.count % 4:
            return np.zeros(2, np.float32)
        self.bit = int(self.np_random.integers(2))
        return np.array([1.0, -1.0] if self.bit else [-1.0, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.bit) if self.count % 4 == 3 else 0.0
        self.count += 1
        return self._observe(), reward, self.count == 40, False, {}


KINDS = (
    *(
        Match,
        Raises,
        FailsBeside,
        NanReward,
        NanObservation,
        Overflows,
        OverflowsBeside,
        SometimesEndless,
        Strays,
        Stalls,
        Unpaid,
        Forgets,
        Numbered,
        Odd,
    ),
    *(WhichThird, WhichCode, Recall, DrawsGlobally),
)
for kind in KINDS:
    if f"{kind.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"{kind.__name__}-v0", entry_point=kind, disable_env_checker=True)
