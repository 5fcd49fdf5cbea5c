"""The page's server: who is answered, how many may look, and that nobody who does not costs anything."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from watching import Client, make_agent, make_session, save_run

from deltabeast.launch.watching.app import FILES, make_app
from deltabeast.launch.watching.audience import MOST_VIEWERS, Audience
from deltabeast.launch.watching.commands import Pause
from deltabeast.launch.watching.guard import is_loopback
from deltabeast.launch.watching.session import Session

Check = Callable[[Client, Audience], Awaitable[None]]


@pytest.fixture
def session(tmp_path: Path, seed: int) -> Session:
    session = make_session(save_run(tmp_path, make_agent("rdn")))
    session.speed = 12.0  # as fast as a viewer may see it
    return session


def serving(session: Session, check: Check, token: str | None = None) -> None:
    """Run a check beside the game."""

    async def run() -> None:
        audience = Audience(session)
        playing = asyncio.create_task(audience.play())
        try:
            await asyncio.wait_for(check(Client(make_app(audience, token)), audience), 60)
            assert not playing.done()
        finally:
            playing.cancel()

    asyncio.run(run())


async def next_steps(events: asyncio.Queue[bytes]) -> dict[str, Any]:
    """The next message that has steps."""
    while True:
        text = (await events.get()).decode()
        if text.startswith("data: ") and (message := json.loads(text[6:]))["steps"]:
            return message


def test_the_page_is_three_files_and_needs_nothing_else(session: Session) -> None:
    async def check(client: Client, _: Audience) -> None:
        for path in FILES:
            status, headers, body = await client.ask(path)
            text = body.decode()
            assert status == 200 and "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert "http://" not in text and "https://" not in text and "innerHTML" not in text
        _, _, page = await client.ask("/")
        assert b"style=" not in page and not re.search(rb"<[^>]*\son\w+\s*=", page)
        for path in ("/../command.py", "/page.py", "/%2e%2e/config.py", "//etc/passwd", "/page.html", "/x"):
            status, _, body = await client.ask(path)
            assert status == 404 and b"import" not in body, path
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await client.ask("/", method))[0] == 405
        assert (await client.ask("/command"))[0] == 405

    serving(session, check)


@pytest.mark.parametrize("path", [*FILES, "/events", "/command", "/nowhere"])
def test_no_other_page_and_no_other_name_is_answered(path: str, session: Session) -> None:
    async def check(client: Client, audience: Audience) -> None:
        method, body = ("POST", b'{"do":"wipe","seat":0}') if path == "/command" else ("GET", b"")
        for headers in (
            {"host": "evil.example:8722"},
            {"host": "127.0.0.1.evil.example"},
            {"host": ""},
            {"host": "[::1"},
            {"host": "evil.example@127.0.0.1:8722x"},
            {"origin": "http://evil.example"},
            {"origin": "http://127.0.0.1:3000"},
            {"origin": "https://127.0.0.1:8722"},
            {"origin": "null"},
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
        ):
            given = {"content_type": "application/json", **headers}
            status, found, text = await client.ask(path, method, body, **given)
            assert status == 403 and b"\n" not in text.strip(), headers
            assert "access-control-allow-origin" not in found
        assert audience.viewers == 0 and not session.seats[0]._notes

    serving(session, check)


@pytest.mark.parametrize("host", ["127.0.0.1:8722", "localhost:9000", "[::1]:8722", "127.0.0.1"])
def test_this_machine_is_answered_by_any_of_its_names(host: str, session: Session) -> None:
    async def check(client: Client, _: Audience) -> None:
        given = {"host": host, "origin": f"http://{host}", "sec_fetch_site": "same-origin"}
        assert (await client.ask("/", **given))[0] == 200

    serving(session, check)


def test_a_form_of_another_page_commands_nothing(session: Session) -> None:
    async def check(client: Client, _: Audience) -> None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            status, _, _ = await client.ask("/command", "POST", b'{"do":"wipe","seat":0}', content_type=kind)
            assert status == 415

    serving(session, check)


def test_only_the_token_opens_what_others_can_reach(session: Session) -> None:
    token = "a-token-of-some-length"

    async def check(client: Client, audience: Audience) -> None:
        for path in (*FILES, "/events", "/nowhere", "/?token=wrong", f"/events?token={token}", "/?token="):
            assert (await client.ask(path))[0] == 403, path
        assert (await client.ask("/", cookie="deltabeast-watch-8722=wrong"))[0] == 403
        assert audience.viewers == 0
        status, headers, _ = await client.ask(f"/?token={token}", host="lab.example:80")
        assert status == 303 and headers["location"] == "/"
        assert "HttpOnly" in headers["set-cookie"] and "SameSite=Lax" in headers["set-cookie"]
        cookie = headers["set-cookie"].partition(";")[0]
        assert (await client.ask("/", host="lab.example:80", cookie=f"a=b; {cookie}"))[0] == 200
        given = {"host": "lab.example:80", "cookie": cookie, "origin": "http://evil.example"}
        assert (await client.ask("/", **given))[0] == 403

    serving(session, check, token)


def test_viewers_see_the_same_steps_and_commands_reach_all(session: Session) -> None:
    async def check(client: Client, audience: Audience) -> None:
        async with client.events() as one, client.events() as other:
            first = await next_steps(one)
            assert await next_steps(other) == first
            status, body = await client.command(b'{"do":"pause","on":true}')
            assert (status, body) == (200, b'{"said":"paused"}')
            while not (await next_or_state(one))["state"]["paused"]:
                pass
            taken = len(session.history())
            await client.command(b'{"do":"step"}')
            assert len(session.history()) == taken + 1
            async with client.events() as late:
                message = await next_steps(late)
                assert message["anew"] and len(message["steps"]) == taken + 1
                assert message["steps"][0] == first["steps"][0] and audience.viewers == 3
            await client.command(b'{"do":"restart","seed":5}')
            while not (message := await next_or_state(other))["anew"] or message["state"]["seed"] != 5:
                pass
            assert [step[0]["step"] for step in message["steps"]] == [0]  # a paused one is shown, too

    serving(session, check)


async def next_or_state(events: asyncio.Queue[bytes]) -> dict[str, Any]:
    while not (text := (await events.get()).decode()).startswith("data: "):
        pass
    found: dict[str, Any] = json.loads(text[6:])
    return found


def test_without_viewers_the_game_stands_still(session: Session) -> None:
    async def check(client: Client, audience: Audience) -> None:
        await asyncio.sleep(0.1)
        assert not session.history()
        async with client.events() as events:
            await next_steps(events)
        while audience.viewers:
            await asyncio.sleep(0.01)
        async with audience._one_at_a_time:  # the step that was under way has ended
            pass
        await asyncio.sleep(0.05)
        taken, used = len(session.history()), time.process_time()
        await asyncio.sleep(0.5)
        assert len(session.history()) == taken and time.process_time() - used < 0.1

    serving(session, check)


def test_fifty_viewers_and_one_that_does_not_read(session: Session) -> None:
    async def check(client: Client, audience: Audience) -> None:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client.events(reads=False))
            viewers = [await stack.enter_async_context(client.events()) for _ in range(50)]
            for viewer in viewers:
                await next_steps(viewer)
            before = len(session.history())
            while len(session.history()) <= before + 10:  # `serving` limits how long
                await asyncio.sleep(0.01)
            assert audience.viewers == 51
        while audience.viewers:
            await asyncio.sleep(0.01)

    serving(session, check)


def test_there_are_no_more_viewers_than_are_promised(session: Session) -> None:
    async def check(client: Client, audience: Audience) -> None:
        audience._viewers = {asyncio.Queue() for _ in range(MOST_VIEWERS)}
        status, _, body = await client.ask("/events")
        assert status == 503 and b"close a page" in body

    serving(session, check)


def test_a_thousand_malformed_commands_are_refused(session: Session) -> None:
    draw = random.Random(3)
    words = [
        b"{",
        b"}",
        b'"do"',
        b":",
        b",",
        b'"wipe"',
        b"0",
        b"1e999",
        b"[",
        b"\xff",
        b"null",
        b'"seat"',
        b"-1",
    ]

    async def check(client: Client, _: Audience) -> None:
        for _n in range(1000):
            body = b"".join(draw.choices(words, k=draw.randint(0, 12)))
            status, answer = await client.command(body)
            assert status == 400 and answer.startswith(b'{"error":'), body
        for body in (b" " * 5000, b'{"do":"speed","factor":1e300}', b'{"do":"checkpoint","seat":0,"step":1}'):
            assert (await client.command(body))[0] == 400
        _, answer = await client.command(b" " * 5000 + b'{"do":"wipe","seat":0}')
        assert b"at most 1,000 bytes" in answer
        assert (await client.command(b'{"do":"wipe","seat":0}'))[0] == 200

    serving(session, check)


def test_what_ends_the_game_is_raised(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the environment")

    async def check() -> None:
        audience = Audience(session)
        client = Client(make_app(audience))
        monkeypatch.setattr(session, "step", fail)
        async with client.events():
            with pytest.raises(RuntimeError, match="the environment"):
                await asyncio.wait_for(audience.play(), 5)

    asyncio.run(check())


@pytest.mark.parametrize("command", [b'{"do":"step"}', b'{"do":"restart","seed":2}'])
def test_a_command_that_fails_ends_the_game_and_says_why(
    command: bytes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the environment")

    async def check() -> None:
        audience = Audience(session)
        client = Client(make_app(audience))
        session.paused = True
        playing = asyncio.create_task(audience.play())
        await asyncio.sleep(0)
        monkeypatch.setattr(session.seats[0], "restart" if b"restart" in command else "step", fail)
        assert await client.command(command) == (400, b'{"error":"the game has ended: the environment"}')
        with pytest.raises(RuntimeError, match="the environment"):
            await asyncio.wait_for(playing, 5)

    asyncio.run(check())


def test_no_step_follows_a_pause_that_was_answered(session: Session) -> None:
    async def check(client: Client, audience: Audience) -> None:
        async with client.events() as events:
            await next_steps(events)
            async with audience._one_at_a_time:
                await asyncio.sleep(0.1)  # the next step is due, and waits
                session.apply(Pause(True))
                taken = len(session.history())
            await asyncio.sleep(0.1)
            assert len(session.history()) == taken

    serving(session, check)


LINK = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


def test_a_link_opens_the_page_and_no_more(session: Session) -> None:
    async def check(client: Client, audience: Audience) -> None:
        assert (await client.ask("/", **LINK))[0] == 200
        for change in (
            {"sec_fetch_dest": "iframe"},
            {"sec_fetch_mode": "no-cors"},
            {"origin": "http://evil.example"},
            {"host": "evil.example"},
        ):
            assert (await client.ask("/", **LINK | change))[0] == 403, change
        for path in ("/page.js", "/events", "/nowhere"):
            assert (await client.ask(path, **LINK))[0] == 403
        body = b'{"do":"wipe","seat":0}'
        assert (await client.ask("/command", "POST", body, content_type="application/json", **LINK))[0] == 403
        assert (await client.ask("/", "POST", **LINK))[0] == 403
        assert audience.viewers == 0 and not session.seats[0]._notes

    serving(session, check)


def test_a_link_with_the_token_opens_the_page(session: Session) -> None:
    async def check(client: Client, _: Audience) -> None:
        status, headers, _body = await client.ask("/?token=right", **LINK)
        cookie, _, rest = headers["set-cookie"].partition(";")
        assert status == 303 and "SameSite=Lax" in rest  # a Strict one is not sent as the link goes on
        assert (await client.ask("/", cookie=cookie, **LINK))[0] == 200
        assert (await client.ask("/", **LINK))[0] == 403

    serving(session, check, "right")


def test_a_token_is_found_among_the_cookies_of_others(session: Session) -> None:
    async def check(client: Client, _: Audience) -> None:
        own = "deltabeast-watch-8722=right"
        for cookies in (
            own,
            f"a=b; {own}",
            f'{{"a": 1}}; b[c]="; {own}',
            f"{own};x",
            f"deltabeast-watch-8722=old; {own}",
        ):
            assert (await client.ask("/", cookie=cookies))[0] == 200, cookies
        for cookies in ("", "deltabeast-watch-9000=right", "x=" + own, own + "er", own.upper()):
            assert (await client.ask("/", cookie=cookies))[0] == 403, cookies
        at_80 = {"host": "lab.example", "cookie": "deltabeast-watch-80=right"}
        assert (await client.ask("/", **at_80))[0] == 200

    serving(session, check, "right")


def test_loopback_is_told_from_other_addresses() -> None:
    own = ("127.0.0.1", "127.3.2.1", "localhost", "::1", "[::1]")
    assert all(map(is_loopback, own))
    assert not any(
        map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "lab.example", "localhost.evil.example", ""))
    )


MALFORMED = (
    b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n", b"\x00" * 200,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n", b"GET " + b"a" * 70_000,
    b"POST /command HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{",
    b"POST /command HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
)  # fmt: skip


@pytest.mark.parametrize("count", [26, pytest.param(1000, marks=pytest.mark.long)])
def test_malformed_requests_are_survived(count: int, session: Session) -> None:
    import uvicorn

    from deltabeast.launch.watching.serve import listen, settings

    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        audience: list[Audience] = []

        async def serve() -> None:
            audience.append(Audience(session))
            server = uvicorn.Server(settings(make_app(audience[0])))
            servers.append(server)
            playing = asyncio.create_task(audience[0].play())
            await server.serve(sockets=[sock])
            playing.cancel()

        servers: list[Any] = []
        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        try:
            for n in range(count):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                    client.sendall(MALFORMED[n % len(MALFORMED)])
                    if n % 2:
                        client.shutdown(socket.SHUT_WR)
                        client.recv(100)
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                assert client.recv(12) == b"HTTP/1.1 200"
        finally:
            servers[0].should_exit = True
            thread.join(20)
        assert not thread.is_alive()
