"""Videos of whole games, recorded after an evaluation."""

from __future__ import annotations

from rich.console import Console

from ...envs import find_protocol
from ...envs.atari import AtariGames
from ..config import EvalConfig
from ..output import say
from .environments import full_action_set
from .loading import Loaded
from .progress import progress
from .video import play_game, write_video


def record_games(config: EvalConfig, loaded: Loaded, protocol: str, console: Console) -> None:
    """Record `--video` games under RUN/videos, each from a seed of its own. Raises RunError."""
    spec, step = loaded.agent.spec, loaded.step
    assert spec.game is not None
    full = full_action_set(spec)
    actions = "sampled" if config.sample else "greedy"
    how = f"{spec.core}, step {step:,}, {protocol}, {actions}"
    title = spec.game.replace("_", " ").title()
    for number in range(1, config.video + 1):
        play, colour = (
            AtariGames(spec.game, 1, protocol, 1, full, colour=colour, options=spec.env_options)
            for colour in (False, True)
        )
        name = f"{protocol}-{step}-{actions}-seed-{config.seed}-game-{number}.mp4"
        target = loaded.run_dir / "videos" / name
        seed = config.seed + 1000 * number
        with progress(console, f"video {number}") as tell:
            trace = play_game(loaded.agent, play, seed, not config.sample, config.max_episode_steps)
            skip = find_protocol(protocol).frame_skip
            write_video(target, trace, colour, title, how, skip, tell)
        say(console, f"a game of its own: score {trace.score[-1]:,.0f}, saved as {target}")
