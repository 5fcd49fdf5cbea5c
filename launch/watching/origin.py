"""How a recorded game was made."""

from __future__ import annotations

import shlex

from ..config import WatchConfig
from ..runs.directory import changed_words, path_word, versions
from .session import Session


def how_made(config: WatchConfig, session: Session) -> list[tuple[str, str]]:
    """Return terms and what they are; of two agents each."""
    ours = versions()
    made = [("command", command(config))]
    for seat in session.state()["seats"]:
        made += [
            ("run", seat["run"]),
            (
                "checkpoint",
                f"at {seat['step']:,} steps; SHA-256 of its weights {seat['weights'] or 'unknown'}",
            ),
        ]
    return [*made, ("deltabeast", f"{ours['deltabeast']}, commit {ours['commit'] or 'unknown'}")]


def command(config: WatchConfig) -> str:
    """Return the command, with the options that are not the default."""
    return shlex.join(["deltabeast", "watch", path_word(config.run), *changed_words(config)])
