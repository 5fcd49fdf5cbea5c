"""Serve the page with uvicorn, and play while somebody looks."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import threading
import webbrowser
from contextlib import suppress
from types import FrameType

import uvicorn

from ..config import WatchConfig
from ..errors import UsageError
from ..output import tell
from .app import make_app
from .audience import Audience
from .guard import App, is_loopback
from .session import Session

_MOST_CONNECTIONS = 400


class _Server(uvicorn.Server):
    """Ends the viewers' streams when it is asked to stop: it would wait for them."""

    def __init__(self, config: uvicorn.Config, audience: Audience) -> None:
        super().__init__(config)
        self._audience, self._loop = audience, asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._audience.close)
        super().handle_exit(sig, frame)


def serve(session: Session, config: WatchConfig) -> None:
    """Serve a session until interrupted. Raises UsageError if it cannot listen, EnvironmentFailed."""
    with listen(config.host, config.port) as sock:
        asyncio.run(_serve(session, sock, config))


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises UsageError, naming the remedy, if that cannot be."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(128)
        except OSError:
            sock.close()
            raise
    except ValueError as error:  # UnicodeError: a part of a name has at most 63 letters
        raise UsageError(f"--host {host} is no name of a machine; omit it") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} is in use; give another --port, or 0 for any that is free"
            ) from error
        if error.errno == errno.EACCES:
            raise UsageError(f"port {port} is not for this user; give a --port from 1024 on") from error
        raise UsageError(f"cannot listen on --host {host}: {error.strerror}; omit it") from error
    return sock


def address_of(host: str, port: int, token: str | None) -> str:
    """Return the page's address; of a host that stands for all, by this machine's name."""
    host = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def settings(app: App) -> uvicorn.Config:
    """Return how the application is served: HTTP alone, nothing logged."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )


async def _serve(session: Session, sock: socket.socket, config: WatchConfig) -> None:
    token = None if is_loopback(config.host) else secrets.token_urlsafe(24)
    audience = Audience(session)
    server = _Server(settings(make_app(audience, token)), audience)
    address = address_of(config.host, sock.getsockname()[1], token)
    tell(f"watch it at {address} (Ctrl-C ends it)")
    if config.open and token is None:  # a browser's command line, and so a token in it, is read by others
        # in a thread that nobody waits for: a browser of the terminal stays until it is left
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    with suppress(OSError):
        os.nice(19)  # training goes first; of this thread and those that it begins: not of the browser
    playing, serving = (asyncio.create_task(each) for each in (audience.play(), server.serve(sockets=[sock])))
    await asyncio.wait({playing, serving}, return_when=asyncio.FIRST_COMPLETED)
    audience.close()
    server.should_exit = True
    await serving
    playing.cancel()
    with suppress(asyncio.CancelledError):
        await playing  # raises what ended the game
