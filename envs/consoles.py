"""Emulators stepped from Python, for modes and difficulties, which ALE's own vector environment lacks.

`Consoles` takes the place of `ale_py.AtariVectorEnv` in `AtariGames`, and gives the same observations,
rewards, flags and infos, at half the speed. No-ops and sticky actions are other draws of the same chances.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt

from .games import action_set, load_game

Frame = npt.NDArray[np.uint8]
Step = tuple[Frame, npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]

CHOICES = {"mode": "getAvailableModes", "difficulty": "getAvailableDifficulties"}
"""What may be chosen of a game, and which of the emulator's methods lists its values."""


class EmulatorSettings(NamedTuple):
    """How the games are played and shown: the parameters of `AtariVectorEnv` of these names."""

    game: str
    img_height: int
    img_width: int
    grayscale: bool
    stack_num: int
    frameskip: int
    maxpool: bool
    repeat_action_probability: float
    noop_max: int
    full_action_space: bool
    max_num_frames_per_episode: int
    life_loss_info: bool


def check_choices(game: str, choices: Mapping[str, Any]) -> dict[str, int]:
    """Return the mode and difficulty of a game as numbers, from words or numbers. Raises ValueError."""
    checked = {}
    for name, value in choices.items():
        if name not in CHOICES:
            raise ValueError(f"{game} has no option {name!r}; games have {' and '.join(CHOICES)}")
        offered = sorted(getattr(load_game(game), CHOICES[name])())
        if str(value) not in map(str, offered):
            raise ValueError(f"{game} has no {name} {value}; it has {', '.join(map(str, offered))}")
        checked[name] = int(value)
    return checked


class Consoles:
    """N games, played in threads, that begin again in the step in which they end."""

    def __init__(
        self, settings: EmulatorSettings, choices: Mapping[str, int], num_envs: int, num_threads: int
    ) -> None:
        self._consoles = [_Console(settings, choices) for _ in range(num_envs)]
        self._pool = ThreadPoolExecutor(num_threads)

    def reset(
        self, *, seed: npt.NDArray[np.int64] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Begin games everywhere, or where `options["reset_mask"]` says; `seed` has one for each of those."""
        rows = options["reset_mask"] if options else np.ones(len(self._consoles), bool)
        chosen = [console for console, row in zip(self._consoles, rows, strict=True) if row]
        list(self._pool.map(_Console.begin, chosen, [None] * len(chosen) if seed is None else seed.tolist()))
        return self._shown(), self._infos()

    def step(self, actions: npt.NDArray[np.int64]) -> Step:
        rewards, lost, over, cut = zip(
            *self._pool.map(_Console.step, self._consoles, actions.tolist()), strict=True
        )
        terminated, truncated = np.array(lost), np.array(cut)
        last = {"final_obs": self._shown()} if (terminated | truncated).any() else {}
        ended = [console for console, done in zip(self._consoles, over, strict=True) if done]
        list(self._pool.map(_Console.begin, ended))
        return self._shown(), np.array(rewards, np.int32), terminated, truncated, {**self._infos(), **last}

    def _shown(self) -> Frame:
        return np.stack([console.frames for console in self._consoles])

    def _infos(self) -> dict[str, Any]:
        counts = np.array([console.counts() for console in self._consoles], np.int32).T
        return dict(zip(("lives", "frame_number", "episode_frame_number"), counts, strict=True))


class _Console:
    """One game."""

    def __init__(self, settings: EmulatorSettings, choices: Mapping[str, int]) -> None:
        self._settings, self._choices = settings, choices
        self._random = np.random.default_rng()
        self._load(0)
        size = (settings.img_height, settings.img_width, *([] if settings.grayscale else [3]))
        self.frames = np.zeros((settings.stack_num, *size), np.uint8)
        """oldest first"""

    def _load(self, seed: int) -> None:
        settings = self._settings
        sticky, limit = settings.repeat_action_probability, settings.max_num_frames_per_episode
        self._ale = load_game(settings.game, seed, sticky, limit, self._choices)
        self._actions = action_set(self._ale, settings.full_action_space)

    def begin(self, seed: int | None = None) -> None:
        """Begin a game, after no-ops, before which the stack is black."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
            self._load(seed)
        self._ale.reset_game()
        for _ in range(self._random.integers(max(1, self._settings.noop_max))):
            self._ale.act(ale_py.Action.NOOP)
            if self._ale.game_over():
                self._ale.reset_game()
        self.frames = np.zeros_like(self.frames)
        self._show([self._screen()])

    def step(self, action: int) -> tuple[int, bool, bool, bool]:
        """Hold an action; return the reward, whether the life or the game was lost, whether the game is over,
        and whether the limit on its frames ended it."""
        lives, reward, screens = self._ale.lives(), 0, []
        for left in reversed(range(self._settings.frameskip)):
            reward += self._ale.act(self._actions[action])
            if left < 2 or self._ale.game_over():
                screens.append(self._screen())
            if self._ale.game_over():
                break
        self._show(screens[-2:] if self._settings.maxpool else screens[-1:])
        lost = self._settings.life_loss_info and self._ale.lives() < lives
        cut = self._ale.game_truncated()
        over = self._ale.game_over()
        return reward, lost or (over and not cut), over, cut

    def counts(self) -> tuple[int, int, int]:
        return self._ale.lives(), self._ale.getFrameNumber(), self._ale.getEpisodeFrameNumber()

    def _screen(self) -> Frame:
        return self._ale.getScreenGrayscale() if self._settings.grayscale else self._ale.getScreenRGB()

    def _show(self, screens: list[Frame]) -> None:
        screen = np.maximum.reduce(screens)
        size = self._settings.img_height, self._settings.img_width
        newest = screen if screen.shape[:2] == size else _resized(screen, *size)
        self.frames = np.concatenate([self.frames[1:], newest[None]])


def _resized(screen: Frame, height: int, width: int) -> Frame:
    """Resize by area interpolation: a new pixel is the mean of what it covers."""
    rows, columns = _shares(screen.shape[0], height), _shares(screen.shape[1], width)
    narrow = np.sum([screen[:, at] * share for at, share in columns], axis=0)
    return np.rint(np.sum([narrow[at] * share[:, None] for at, share in rows], axis=0)).astype(np.uint8)


def _shares(size: int, new: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """For the first, second, ... old pixel that each new one covers: which it is, and its share, `[new]`."""
    scale = size / new
    low, high = np.arange(new) * scale, (np.arange(new) + 1) * scale
    shares = []
    for step in range(int(np.ceil(scale)) + 1):
        at = np.floor(low).astype(np.int64) + step
        covered = np.clip(np.minimum(high, at + 1) - np.maximum(low, at), 0, None) / scale
        shares.append((np.minimum(at, size - 1), covered.astype(np.float32)))
    return shares
