"""`deltabeast watch`: load the agents, then serve the page, or write it with a recorded game."""

from __future__ import annotations

from contextlib import closing

from rich.console import Console

from ..config import WatchConfig
from ..errors import UsageError, require
from ..output import tell
from ..processes.machine import prepare_process
from .record import need_new_file, record
from .session import Session
from .source import Source


def watch(config: WatchConfig) -> None:
    """Serve the page until interrupted, or record one. Raises UsageError, RunError or EnvironmentFailed."""
    require(config, "seed", least=0, most=2**31 - 1)
    require(config, "port", least=0, most=65535)
    require(config, "steps", least=1, most=20_000)
    require(config, "flicker", "blink", least=0, below=1)
    _refuse_ignored(config)
    if config.record is None:
        _need_server()
    else:
        need_new_file(config.record)
    prepare_process(threads=1)
    sources = [Source(config, config.run, config.checkpoint, tell)]
    if config.beside is not None:
        sources.append(Source(config, config.beside, "latest", tell))
    with closing(Session(sources, not config.sample, config.seed)) as session:
        if config.record is not None:
            record(session, config, config.record, Console())
            return
        from .serve import serve

        serve(session, config)


def _refuse_ignored(config: WatchConfig) -> None:
    if config.record is None and config.steps != WatchConfig.steps:
        raise UsageError("--steps is of a recording; give --record FILE, or omit it")
    if config.record is not None and (config.port, config.host) != (WatchConfig.port, WatchConfig.host):
        raise UsageError("--port and --host are of a server, and --record needs none; omit them")


def _need_server() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UsageError("watch needs a server: pip install starlette uvicorn; or give --record") from None
