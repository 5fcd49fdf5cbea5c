"""`deltabeast eval --video N`: whole games as MP4, beside what the agent's memory does in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import VectorEnv

from ...agents import Agent, files
from ...cores.observe import MemoryStep, watch_memory
from ..errors import RunError, UsageError
from .video_frame import Heads, Lines, Pictures, Strip

EMULATOR_FRAMES_PER_SECOND = 60
"""A video has one picture an agent step and goes at the speed of the game."""

_ENCODING = ["-preset", "veryfast", "-crf", "20"]
"""Options of x264: quick, and letters stay sharp."""
_FILLING = 60
"""Steps after a reset until the memory has filled."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """One game as the agent played it, by agent step."""

    seed: int
    actions: list[int]
    score: list[float]
    """score of the game so far"""
    value: list[float]
    begins: list[bool]
    """whether the step is the first of an episode, before which the memory is empty"""
    memory: list[list[MemoryStep]]
    """what each step did to the memory, by layer; empty for a core outside the backbone"""

    def of_heads(self, name: str) -> Floats | None:
        """Stack a field of the memory's steps, `[T, layers, heads]`; None if this core has none."""
        steps = [[getattr(layer, name) for layer in layers] for layers in self.memory]
        if not steps[0] or steps[0][0] is None:
            return None
        return np.array([[head[0].tolist() for head in layers] for layers in steps])


def need_libraries() -> ModuleType:
    """Import the library that writes MP4. Raises UsageError if it is not installed."""
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401
    except ImportError:
        raise UsageError('--video needs imageio with ffmpeg; pip install "imageio[ffmpeg]"') from None
    return imageio


def play_game(agent: Agent, env: VectorEnv, seed: int, greedy: bool, max_steps: int) -> Trace:
    """Play the first game of an Atari environment of one row, which is closed at the end.

    Raises RunError if it goes on for more than `max_steps` agent steps.
    """
    device = agent.policy.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    trace, total = Trace(seed, [], [], [], [], []), 0.0
    try:
        observation, infos = env.reset(seed=seed)
        reward, done = torch.zeros(1, device=device), torch.ones(1, dtype=torch.bool, device=device)
        state = agent.initial_state(1)
        with watch_memory(agent.core) as memory, torch.inference_mode():
            while len(trace.actions) < max_steps:
                trace.begins.append(bool(done))
                seen = torch.from_numpy(observation).to(device)
                output, state = agent.act(seen, reward, done, state, greedy, generator)
                before = infos["game_frames"][0]
                observation, rewards, terminated, truncated, infos = env.step(output.action.cpu().numpy())
                total += float(rewards[0])
                trace.actions.append(int(output.action))
                trace.score.append(total)
                trace.value.append(float(output.baseline))
                trace.memory.append(list(memory))
                if infos["game_frames"][0] < before:
                    return trace
                reward = torch.from_numpy(np.asarray(rewards, np.float32)).to(device)
                done = torch.from_numpy(terminated | truncated).to(device)
    finally:
        env.close()
    raise RunError(f"a game went past {max_steps:,} agent steps; raise --max-episode-steps")


def replay(trace: Trace, env: VectorEnv) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the screens `[height, width, 3]` that the agent acted on, from an environment in colour.

    Raises RunError if the environment does not play the same game again.
    """
    total = 0.0
    try:
        observation, _ = env.reset(seed=trace.seed)
        for action, score in zip(trace.actions, trace.score, strict=True):
            yield observation[0, -1]
            observation, rewards, *_ = env.step(np.array([action]))
            total += float(rewards[0])
            if total != score:
                raise RunError("the emulator did not repeat the game; no pictures can be made of it")
    finally:
        env.close()


def strips(trace: Trace) -> list[Strip]:
    """Choose the plots to show beside the game."""
    shown: list[Strip] = []
    strength, change, norm = (trace.of_heads(name) for name in ("write_strength", "change", "norm"))
    if norm is not None and not norm.any():  # attention has no fast weights
        change = norm = None
    if strength is not None:
        shown.append(Heads("write strength", "0 keeps, 1 replaces; one row a head", strength))
    if change is not None:
        percent = 100 * change.mean(-1)
        # After a reset the first writes are nearly all there is: they would leave no room for the others.
        begun = np.maximum.accumulate(np.where(trace.begins, np.arange(len(percent)), 0))
        usual = percent[np.arange(len(percent)) - begun >= _FILLING]
        highest = float(np.quantile(usual, 0.995)) if len(usual) else None
        shown.append(Lines("change by each write", "% of the norm, mean of heads", percent, highest=highest))
    if norm is not None:
        shown.append(Lines("fast-weight norm", "Frobenius, mean of heads", norm.mean(-1)))
    value = np.array(trace.value)[:, None]
    shown.append(Lines("value estimate", "discounted reward as learned", value, by_layer=False))
    return shown


def draw_pictures(trace: Trace, env: VectorEnv, title: str, subtitle: str, frame_skip: int) -> Pictures:
    """Return what draws the pictures of a game; `env` is the same game in colour, with num_envs 1."""
    _, height, width, _ = env.single_observation_space.shape  # type: ignore[misc]
    about = title, subtitle, (height, width), trace.score, trace.begins
    return Pictures(*about, strips(trace), EMULATOR_FRAMES_PER_SECOND / frame_skip)


def write_video(
    path: Path,
    trace: Trace,
    env: VectorEnv,
    title: str,
    subtitle: str,
    frame_skip: int,
    progress: Callable[[int, int, int], None] = lambda done, total, steps: None,
) -> None:
    """Write the game of a trace as MP4, whole or not at all; `env` is the same game in colour, num_envs 1.

    Raises RunError if it cannot be written.
    """
    imageio = need_libraries()
    pictures = draw_pictures(trace, env, title, subtitle, frame_skip)
    try:
        with (
            files.atomic_path(path) as temporary,
            imageio.get_writer(
                temporary, fps=pictures.steps_per_second, quality=None, output_params=_ENCODING
            ) as writer,
        ):
            for step, screen in enumerate(replay(trace, env)):
                writer.append_data(pictures.draw(step, screen))
                progress(0, 1, step + 1)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
