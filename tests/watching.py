"""Sessions to watch, of agents that nobody trained, and an ASGI client without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from deltabeast.agents import Agent, AgentSpec, save_checkpoint
from deltabeast.launch.config import WatchConfig
from deltabeast.launch.watching.guard import App
from deltabeast.launch.watching.session import Session
from deltabeast.launch.watching.source import Source

MAZE = "deltabeast/EndlessTMaze-v0"
OPTIONS = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "ff_size": 8}
SIZES: dict[str, dict[str, int]] = {"lstm": {"hidden_size": 8}, "feedforward": {}}
SHORT = {"length": 2, "corridors": 2}
"""Of the maze: episodes of at most 12 steps."""


def make_agent(core: str = "delta_net", **options: Any) -> Agent:
    """With weights large enough for the memory to matter."""
    sizes = SIZES.get(core, OPTIONS)
    spec = AgentSpec((5,), 3, core, "mlp", {**sizes, **options}, env_id=MAZE, env_options=dict(SHORT))
    agent = Agent(spec).eval()
    with torch.no_grad():
        agent.policy.weight.mul_(5)
    return agent


def save_run(run: Path, agent: Agent, step: int = 320) -> Path:
    save_checkpoint(run, step, agent, {})
    return run


def make_session(*runs: Path, greedy: bool = True, seed: int = 1) -> Session:
    config = WatchConfig(runs[0])
    sources = [Source(config, run, "latest", lambda text: None) for run in runs]
    return Session(sources, greedy, seed)


class Client:
    """Asks an ASGI application, as a browser at 127.0.0.1:8722 does."""

    HOST = "127.0.0.1:8722"

    def __init__(self, app: App) -> None:
        self.app = app

    def scope(self, method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        given = {"host": self.HOST, **headers}
        path, _, query = path.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8722),
        }

    async def ask(
        self, path: str = "/", method: str = "GET", body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body; headers are written with _ for -."""
        sent: list[Any] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.app(self.scope(method, path, named), receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:])

    async def command(self, content: bytes) -> tuple[int, bytes]:
        status, _, body = await self.ask("/command", "POST", content, content_type="application/json")
        return status, body

    @asynccontextmanager
    async def events(self, reads: bool = True) -> AsyncIterator[asyncio.Queue[bytes]]:
        """A viewer's messages; one that does not read blocks the sender."""
        got: asyncio.Queue[bytes] = asyncio.Queue()
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if not reads and message.get("body"):
                await gone.wait()
            got.put_nowait(message.get("body", b""))

        task = asyncio.create_task(self.app(self.scope("GET", "/events", {}), receive, send))  # type: ignore[arg-type]
        try:
            yield got
        finally:
            gone.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(task, 5)
