"""Who looks on: a queue a viewer, and a game that goes on only while there is one."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from ..errors import one_line
from .commands import Command, Pause, Refused, Restart, Step
from .session import Session

MOST_VIEWERS = 100
_BEHIND = 8
"""Messages that wait for a slow viewer; it misses those before."""
_HEARTBEAT = 15.0
"""Seconds without a message after which a viewer is asked whether it is there."""
_LOOK = 2.0
"""Seconds between looks for newer checkpoints."""


class Audience:
    """Viewers of a session. All of it runs in one event loop; steps are taken in a thread."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._changed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._closed = False
        self._id = secrets.token_hex(8)  # by which a page notices that it is another server's now
        self._failure: Exception | None = None
        """What a command raised: it ends the game."""

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    async def play(self) -> None:
        """Play while somebody looks and the game is not paused; wait, at no cost, at other times.

        Raises what a step or a command raised.
        """
        looked = time.monotonic()
        while True:
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            if not self._goes_on():
                await self._changed.wait()
                continue
            began = time.monotonic()
            async with self._one_at_a_time:
                if not self._goes_on():  # a command came first
                    continue
                if began - looked > _LOOK:
                    looked = began
                    await asyncio.to_thread(self.session.look_for_checkpoints)
                records = await asyncio.to_thread(self.session.step)
            self._publish([records])
            left = self.session.seconds_per_step - (time.monotonic() - began)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(left, 0.001))

    async def follow(self, command: Command) -> str:
        """Follow a command and tell all viewers; return what it did. Raises Refused."""
        async with self._one_at_a_time:
            try:
                said = await asyncio.to_thread(self.session.apply, command)
                shown = isinstance(command, Step | Restart)
                steps = [await asyncio.to_thread(self.session.step)] if shown else []
            except Refused:
                raise
            except Exception as error:
                self._failure = error
                self._changed.set()
                raise Refused(f"the game has ended: {one_line(error)}") from error
        self._publish(steps, anew=isinstance(command, Restart))
        if isinstance(command, Pause):
            self._changed.set()
        return said

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield what a new viewer sees: first all that is remembered, then each step."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        async with self._one_at_a_time:
            self._viewers.add(queue)
            queue.put_nowait(self._message(self.session.history(), anew=True))
        self._changed.set()
        try:
            while not self._closed:
                try:
                    message = await asyncio.wait_for(queue.get(), _HEARTBEAT)
                except TimeoutError:
                    message = b": still here\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._viewers.discard(queue)

    def close(self) -> None:
        """Let every viewer's messages end."""
        self._closed = True
        for queue in self._viewers:
            _put(queue, None)

    def _goes_on(self) -> bool:
        return bool(self._viewers) and not self.session.paused and self._failure is None

    def _publish(self, steps: list[list[dict[str, Any]]], anew: bool = False) -> None:
        message = self._message(steps, anew)
        for queue in self._viewers:
            _put(queue, message)

    def _message(self, steps: list[list[dict[str, Any]]], anew: bool) -> bytes:
        state = self.session.state() | {"viewers": max(self.viewers, 1), "server": self._id}
        content = {"state": state, "anew": anew, "steps": steps}
        return b"data: " + json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


def _put(queue: asyncio.Queue[bytes | None], message: bytes | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(message)
