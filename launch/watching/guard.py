"""Who may ask: pages of this server alone, on this machine or with the token. Others get one line."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer."""


def is_loopback(host: str) -> bool:
    """Return whether a name or address, without a port, is this machine's own alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets through what its own page asks.

    Without a token the Host must be loopback, so that no name of somebody else's that leads here
    (DNS rebinding) is answered; with one, whoever has it may come by any name. An Origin, where a browser
    sends it, must be that Host in either case. A link on another page may open this one, but no more.
    """

    def __init__(self, app: App, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        if headers is None:
            await _answer(send, 403, _NOT_ITSELF)
            return
        refusal = self._refuse(scope, headers)
        if refusal is not None:
            await _answer(send, 403, refusal)
            return
        if self.token and (given := _given_token(scope)):
            if secrets.compare_digest(given.encode(), self.token.encode()) and scope["path"] == "/":
                name = _cookie_name(headers.get("host", ""))
                cookie = f"{name}={self.token}; Path=/; HttpOnly; SameSite=Lax"  # Strict: not after a link
                await _answer(send, 303, "", {"location": "/", "set-cookie": cookie})
            else:
                await _answer(send, 403, _NO_TOKEN)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_encoded(_HEADERS)]
            await send(message)

        await self.app(scope, receive, send_guarded)

    def _refuse(self, scope: Scope, headers: dict[str, str]) -> str | None:
        host = headers.get("host", "")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        own = site in ("same-origin", "none") or _opens_the_page(scope, headers)
        if not self.token and not _names_loopback(host):
            return "this page is for this machine alone; open it at 127.0.0.1"
        if (origin is not None and origin != f"http://{host}") or not own:
            return _NOT_ITSELF
        if self.token and not _given_token(scope) and not self._has_cookie(headers):
            return _NO_TOKEN
        return None

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        wanted = f"{_cookie_name(headers.get('host', ''))}={self.token}".encode()
        given = headers.get("cookie", "").split(";")  # http.cookies gives up at others' that it cannot parse
        return any(secrets.compare_digest(each.strip().encode(), wanted) for each in given)


_NOT_ITSELF = "this page is asked by itself alone; open its address in a browser"
_NO_TOKEN = "open the address that `deltabeast watch` printed: its token is missing or wrong"


_ONCE = ("host", "origin", "cookie", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest")


def _headers(scope: Scope) -> dict[str, str] | None:
    """Return the headers that count, by lower-case name; None if one of them is there twice."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found and key in _ONCE:
            return None
        found[key] = value.decode("latin-1")
    return found


def _opens_the_page(scope: Scope, headers: dict[str, str]) -> bool:
    """Return whether a link, on whatever page, was followed to this one, in a tab of its own."""
    goes = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return bool(scope["method"] == "GET" and scope["path"] == "/" and goes == ("navigate", "document"))


def _cookie_name(host: str) -> str:
    """Return the cookie's name, by the port: a browser sends a host's cookies to all of its ports."""
    port = re.search(r":([0-9]+)$", host)
    return f"deltabeast-watch-{port[1] if port else 80}"


def _names_loopback(host: str) -> bool:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]+)?", host)
    return match is not None and is_loopback(match[1])


def _given_token(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qs(query, max_num_fields=4).get("token", [""])[0]
    except ValueError:
        return ""


async def _answer(send: Send, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    content = {"content-type": "text/plain; charset=utf-8", **_HEADERS, **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(content)})
    await send({"type": "http.response.body", "body": f"{text}\n".encode() if text else b""})


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
