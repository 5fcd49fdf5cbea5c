"""A recorded game beside the card: what `deltabeast watch RUN --record FILE` wrote."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...agents import files
from ...agents.reading import read_bytes
from ..errors import UsageError
from ..evaluation.loading import Loaded
from ..evaluation.recording import title_of
from ..pages import PageFolder
from ..runs.consent import consent
from ..watching.record import recorded_message
from .card import GAME

MOST_BYTES = 1 << 28


def read_game(path: Path, loaded: Loaded) -> bytes:
    """Return a recording of this agent. Raises UsageError, in one line, for any other file."""
    spec, ours = loaded.agent.spec, _about(loaded)
    words = ["deltabeast", "watch", str(loaded.run_dir), *consent(spec.core, spec.env_id)]
    words += ["--checkpoint", str(loaded.step), "--record", "FILE"]
    remedy = f"make one with `{shlex.join(words)}`"
    try:
        content = read_bytes(path, MOST_BYTES)
        shown = _about_recorded(content)
    except OSError as error:
        raise UsageError(f"--recording {path} cannot be read: {files.why(error)}") from error
    except ValueError:
        raise UsageError(f"--recording {path} is no recorded game; {remedy}") from None
    if shown != ours:
        raise UsageError(f"--recording {path} is of {shown}, not of {ours}; {remedy}")
    return content


def put_game(
    game: bytes | None, loaded: Loaded, folder: Path, has_another: bool, tell: Callable[[str], None]
) -> bool:
    """Write a recording into the folder; return whether there is one of this agent now.

    Without a new one an earlier one stays, unless the folder `has_another` agent's. Whatever has to make room
    gets another name. Raises OSError.
    """
    path = folder / GAME
    present, of = None, None
    with suppress(OSError, ValueError):
        present = read_bytes(path, MOST_BYTES)
        of = _about_recorded(present)
    if game is not None:
        if game != present:
            PageFolder(folder, tell, is_ours=False).write(GAME, game)
        return True
    if of is not None and has_another:
        tell(f"{path} is of another agent: it is {files.set_aside(path, 'previous').name} now")
        return False
    return of == _about(loaded)


def _about(loaded: Loaded) -> str:
    spec = loaded.agent.spec
    return f"{spec.core} on {title_of(spec)} at step {loaded.step:,}"


def _about_recorded(content: bytes) -> str:
    """Say the same of the first agent in a recording. Raises ValueError if it is none."""
    try:
        seat = recorded_message(content)["state"]["seats"][0]
        return f"{seat['core']} on {seat['title']} at step {int(seat['step']):,}"
    except (LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError("no recording") from error
