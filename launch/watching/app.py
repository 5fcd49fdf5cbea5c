"""The page's server as an ASGI application: three files, a stream of steps, and commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from .audience import MOST_VIEWERS, Audience
from .commands import Refused, parse_command
from .guard import App, Guard
from .page import page_file

_MOST_BYTES = 1_000
"""Of a command."""
FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def make_app(audience: Audience, token: str | None = None) -> App:
    """Return the application. With a token, it serves only whoever opens its page with that."""

    async def events(_: Request) -> Response:
        if audience.viewers >= MOST_VIEWERS:
            return _no(503, f"{MOST_VIEWERS} viewers look on already; close a page")
        return StreamingResponse(_stream(audience), media_type="text/event-stream")

    async def command(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":
            return _no(415, "send JSON, as application/json")
        try:
            said = await audience.follow(parse_command(await _body(request)))
        except ClientDisconnect:
            return _no(400, "the connection was closed")
        except Refused as error:
            return _no(400, str(error))
        return JSONResponse({"said": said})

    routes = [
        *(Route(path, _file(name)) for path, name in FILES.items()),
        Route("/events", events),
        Route("/command", command, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: _refuse}), token)


async def _stream(audience: Audience) -> AsyncIterator[bytes]:
    async with aclosing(audience.messages()) as messages:
        async for message in messages:
            yield message


async def _body(request: Request) -> bytes:
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _MOST_BYTES:
            raise Refused(f"a command has at most {_MOST_BYTES:,} bytes")
    return content


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    kind = _KINDS[name.partition(".")[2]]

    async def read(_: Request) -> Response:
        return PlainTextResponse(page_file(name), media_type=kind)

    return read


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


def _no(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)
