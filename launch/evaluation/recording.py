"""Videos of whole games, recorded after an evaluation."""

from __future__ import annotations

from rich.console import Console

from ...agents import AgentSpec
from ...envs import find_protocol
from ...envs.atari import AtariGames
from ..config import EvalConfig
from ..output import say
from .environments import full_action_set
from .loading import Loaded
from .progress import progress
from .video import play_game, write_video


def game(spec: AgentSpec, protocol: str, colour: bool = False) -> AtariGames:
    """Return the game of an agent, one row of it, as it sees it or in colour."""
    assert spec.game is not None
    full = full_action_set(spec)
    return AtariGames(spec.game, 1, protocol, 1, full, colour=colour, options=spec.env_options)


def game_title(name: str) -> str:
    """Return a game's title, such as Space Invaders, of its name."""
    return name.replace("_", " ").title()


def title_of(spec: AgentSpec) -> str:
    """Return the title of an agent's game, or its environment's name without what is before a slash."""
    return game_title(spec.game) if spec.game else (spec.env_id or "").split("/")[-1]


def captions(loaded: Loaded, protocol: str, actions: str) -> tuple[str, str]:
    """Return title and subtitle of a game's pictures."""
    spec = loaded.agent.spec
    return game_title(spec.game or ""), f"{spec.core}, step {loaded.step:,}, {protocol}, {actions}"


def record_games(config: EvalConfig, loaded: Loaded, protocol: str, console: Console) -> None:
    """Record `--video` games under RUN/videos, each from a seed of its own. Raises RunError."""
    actions = "sampled" if config.sample else "greedy"
    for number in range(1, config.video + 1):
        play, colour = (game(loaded.agent.spec, protocol, each) for each in (False, True))
        name = f"{protocol}-{loaded.step}-{actions}-seed-{config.seed}-game-{number}.mp4"
        target = loaded.run_dir / "videos" / name
        seed = config.seed + 1000 * number
        with progress(console, f"video {number}") as tell:
            trace = play_game(loaded.agent, play, seed, not config.sample, config.max_episode_steps)
            about = captions(loaded, protocol, actions)
            write_video(target, trace, colour, *about, find_protocol(protocol).frame_skip, tell)
        say(
            console,
            f"recorded a game beside those evaluated: score {trace.score[-1]:,.0f}, saved as {target}",
        )
