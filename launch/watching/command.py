"""`deltabeast watch`: load the agents, then serve the page, or write it with a recorded game."""

from __future__ import annotations

import os
from contextlib import closing, suppress

from rich.console import Console

from ..config import WatchConfig
from ..errors import UsageError, require
from ..output import tell
from ..processes.machine import prepare_process
from .record import record
from .session import Session
from .source import Source


def watch(config: WatchConfig) -> None:
    """Serve the page until interrupted, or record one. Raises UsageError, RunError or EnvironmentFailed."""
    require(config, "seed", least=0, most=2**31 - 1)
    require(config, "port", least=0, most=65535)
    require(config, "steps", least=1, most=20_000)
    require(config, "flicker", least=0, below=1)
    if config.record is None:
        _need_server()
    elif config.record.is_dir():
        raise UsageError(f"--record {config.record} is a folder; name a file in it, such as game.html")
    prepare_process(threads=1)
    sources = [Source(config, config.run, config.checkpoint, tell)]
    if config.beside is not None:
        sources.append(Source(config, config.beside, "latest", tell))
    with closing(Session(sources, not config.sample, config.seed)) as session:
        if config.record is not None:
            record(session, config.record, config.steps, Console())
            return
        from .serve import serve

        with suppress(OSError):
            os.nice(19)  # training goes first
        serve(session, config)


def _need_server() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UsageError("watch needs a server: pip install starlette uvicorn; or give --record") from None
