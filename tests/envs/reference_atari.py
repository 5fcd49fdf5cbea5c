"""The published environment, written plainly: one game, one emulator, one method a wrapper.

It shares nothing with the package but the emulator's grayscale palette and the numbers under test.
"""

from collections import deque

import ale_py
import numpy as np
from ale_py import roms


def area_taps(size: int, new_size: int) -> tuple[np.ndarray, np.ndarray]:
    """[taps, new_size] each: the old pixels under a new one, and their shares, as in area interpolation.

    In single precision, and from the first pixel to the last: the rounding is then OpenCV's.
    """
    scale = size / new_size
    low, high = np.arange(new_size) * scale, (np.arange(new_size) + 1) * scale
    pixels = np.floor(low).astype(int) + np.arange(int(np.ceil(scale)) + 1)[:, None]
    shares = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None) / scale
    return np.minimum(pixels, size - 1), shares.astype(np.float32)


def resize(screen: np.ndarray) -> np.ndarray:
    """To 84 x 84, without BLAS, whose threads get in each other's way."""
    rows, row_shares = area_taps(screen.shape[0], 84)
    columns, column_shares = area_taps(screen.shape[1], 84)
    screen = screen.astype(np.float32)
    narrow = sum(screen[:, p] * share for p, share in zip(columns, column_shares, strict=True))
    return sum(narrow[p] * share[:, None] for p, share in zip(rows, row_shares, strict=True))


def frames_before_noops(game: str, mode: int | None = None) -> int:
    """The emulator's count once it has pressed the buttons that start a game, if any, and chosen its mode."""
    ale = ale_py.ALEInterface()
    ale.loadROM(roms.get_rom_path(game))
    if mode is not None:
        ale.setMode(mode)
    ale.reset_game()
    return ale.getEpisodeFrameNumber()


class ReferenceGame:
    """`noops` is filled by the test: how many frames to wait after each of a game's resets."""

    def __init__(
        self,
        game: str,
        *,
        skip: int = 4,
        sticky: float = 0.0,
        full: bool = False,
        seed: int = 0,
        life_ends_episode: bool = True,
        press_fire: bool = True,
        repeat_first: bool = True,
        stack: int = 4,
    ) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(roms.get_rom_path(game))
        minimal = self.ale.getMinimalActionSet()
        self.actions = self.ale.getLegalActionSet() if full else minimal
        self.fire = press_fire and len(minimal) > 2 and minimal[1].name == "FIRE"
        self.skip = skip
        self.life_ends_episode = life_ends_episode
        self.repeat_first = repeat_first
        self.noops: deque[list[int]] = deque()
        self.lives = 0
        self.game_really_over = True
        self.frames: deque[np.ndarray] = deque(maxlen=stack)
        self.black: deque[bool] = deque(maxlen=stack)

    # No-op reset
    def noop_reset(self) -> np.ndarray:
        for frames in self.noops.popleft():
            self.ale.reset_game()
            for _ in range(frames):
                self.ale.act(ale_py.Action.NOOP)
                if self.ale.game_over():
                    self.ale.reset_game()
        return self.ale.getScreenGrayscale()

    # Max and skip
    def skip_step(self, action: int) -> tuple[np.ndarray, float, bool]:
        total, screens = 0.0, []
        for _ in range(self.skip):
            total += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                break
        return np.maximum.reduce(screens[-2:]), total, self.ale.game_over()

    # Episodic life
    def life_step(self, action: int) -> tuple[np.ndarray, float, bool]:
        screen, reward, done = self.skip_step(action)
        self.game_really_over = done
        lives = self.ale.lives()
        if self.life_ends_episode and 0 < lives < self.lives:
            done = True
        self.lives = lives
        return screen, reward, done

    def life_reset(self) -> np.ndarray:
        if self.game_really_over:
            screen = self.noop_reset()
        else:
            screen, _, _ = self.skip_step(0)
        self.lives = self.ale.lives()
        return screen

    # Fire reset
    def fire_reset(self) -> np.ndarray:
        screen = self.life_reset()
        if self.fire:
            minimal = self.ale.getMinimalActionSet()
            for button in (1, 2):
                screen, _, done = self.life_step(list(self.actions).index(minimal[button]))
                if done:
                    screen = self.life_reset()
        return screen

    # Warp and stack
    def warp(self, screen: np.ndarray) -> np.ndarray:
        return np.rint(resize(screen)).astype(np.int16)

    def reset(self, black: bool = False) -> np.ndarray:
        frame = self.warp(self.fire_reset())
        for _ in range(4):
            self.frames.append(frame if self.repeat_first else np.zeros_like(frame))
            self.black.append(black)
        self.frames.append(frame)
        return self.seen()

    def step(self, action: int, black: bool = False) -> tuple[np.ndarray, float, bool]:
        screen, reward, done = self.life_step(action)
        self.frames.append(self.warp(screen))
        self.black.append(black)
        return self.seen(), reward, done

    # Flicker, whose chance is the caller's: `black` is whether the newest screen is
    def seen(self) -> np.ndarray:
        return np.stack([0 * f if b else f for f, b in zip(self.frames, self.black, strict=True)])
