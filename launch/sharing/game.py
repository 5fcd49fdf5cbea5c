"""A recorded game beside the card: what `deltabeast watch RUN --record FILE` wrote."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...agents import files
from ...agents.manifest import weights_digest
from ...agents.reading import read_bytes
from ..errors import UsageError
from ..evaluation.loading import Loaded
from ..evaluation.recording import title_of
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
        shown, weights = _about_recorded(content)
    except OSError as error:
        raise UsageError(f"--recording {path} cannot be read: {files.why(error)}") from error
    except ValueError:
        raise UsageError(f"--recording {path} is no recorded game; {remedy}") from None
    if shown != ours:
        raise UsageError(f"--recording {path} is of {shown}, not of {ours}; {remedy}")
    if not _are_ours(weights, loaded):
        raise UsageError(f"--recording {path} is of {shown}, but of other weights; {remedy}")
    return content


def put_game(
    game: bytes | None, loaded: Loaded, folder: Path, has_another: bool, tell: Callable[[str], None]
) -> bool:
    """Write a recording into the folder; return whether there is one of this agent now.

    Without a new one an earlier one stays, unless the folder `has_another` agent's. Whatever has to make room
    gets another name, and a file that is left without a link is named. Raises OSError.
    """
    path = folder / GAME
    present, of, weights = None, None, None
    with suppress(OSError, ValueError):
        present = read_bytes(path, MOST_BYTES)
        of, weights = _about_recorded(present)
    if game is not None:
        if game != present:
            if os.path.lexists(path):
                aside = files.set_aside(path, "previous")
                tell(f"{path} makes room for the new recording: it is {aside.name} now")
            files.write(path, game)
        return True
    if of is not None and has_another:
        aside = files.set_aside(path, "previous")
        tell(f"{path} is from before the weights here changed: it is {aside.name} now")
        return False
    if of is None:
        what = "no recorded game"
    elif of != _about(loaded):
        what = f"of {of}"
    elif not _are_ours(weights, loaded):
        what = "of other weights"
    else:
        return True
    if os.path.lexists(path):
        tell(f"{path} is {what}, and stays without a link; `deltabeast push` does not send it")
    return False


def _about(loaded: Loaded) -> str:
    spec = loaded.agent.spec
    return f"{spec.core} on {title_of(spec)} at step {loaded.step:,}"


def _are_ours(weights: object, loaded: Loaded) -> bool:
    """Return whether a digest is of this agent's weights; recordings of old have none."""
    return weights is None or weights == weights_digest(loaded.checkpoint)


def _about_recorded(content: bytes) -> tuple[str, object]:
    """Say the same of the first agent in a recording, and its weights' digest. Raises ValueError."""
    try:
        seat = recorded_message(content)["state"]["seats"][0]
        return f"{seat['core']} on {seat['title']} at step {int(seat['step']):,}", seat.get("weights")
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("no recording") from error
