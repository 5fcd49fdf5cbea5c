"""The page in a real browser, through its buttons and keys. Long; skipped where no Chromium is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from watching import make_agent, make_session, save_run

from deltabeast.launch.cli import main

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(browser.FOUND is None, reason=f"no browser here: none of {', '.join(browser.NAMES)}"),
]
COMMAND = "import sys; from deltabeast.launch.cli import main; main(sys.argv[1:])"
Serve = Callable[..., str]
WIDTHS = (360, 800, 1400, 1600)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[browser.Page]:
    with browser.browser(tmp_path / "profile") as page:
        yield page
        assert [error for error in page.errors if "status of 400" not in error] == []  # refused commands


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves runs, and returns the page's address; interrupted in the end."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: str | Path) -> str:
        given = [*map(str, arguments), "--port", "0", "--no-open"]
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "watch", *given], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        return next(word for word in words if word.startswith("http"))

    yield begin
    for process in processes:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT


def state_of(address: str) -> dict[str, Any]:
    """What the server says, to a viewer of its own."""
    with urllib.request.urlopen(f"{address}events", timeout=20) as stream:
        found: dict[str, Any] = json.loads(stream.readline().removeprefix(b"data: "))
        return found


def text(selector: str) -> str:
    return f"document.querySelector({selector!r}).textContent"


def choose(page: browser.Page, step: int) -> None:
    """Choose a checkpoint in the menu."""
    page.look(f"({MENU}.value = '{step}', {MENU}.dispatchEvent(new Event('change')))")


MENU = "document.querySelector('.surgery select')"
STEP = "Number(document.querySelector('[data-of=step]').textContent.replace(',', ''))"
SAID = text("#said")


def test_buttons_and_keys_do_what_they_say(
    page: browser.Page, serve: Serve, tmp_path: Path, seed: int
) -> None:
    run = save_run(tmp_path / "run", make_agent("rdn"))
    save_run(run, make_agent("rdn"), 640)
    address = serve(run)
    page.resize(1400)
    page.go(address)
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 3")
    assert page.look("document.title") == "EndlessTMaze-v0 · rdn · run · deltabeast watch"

    page.click("#pause")
    page.until("document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
    before = state_of(address)
    assert before["state"]["paused"]
    page.until(f"{STEP} === {before['steps'][-1][0]['step']}")
    page.click("#step")
    page.until(f"{STEP} === {before['steps'][-1][0]['step'] + 1}")
    page.press("ArrowRight")
    page.until(f"{STEP} === {before['steps'][-1][0]['step'] + 2}")
    shown = page.look("[...document.querySelectorAll('.policy .n')].map(each => Number(each.textContent))")
    assert shown == pytest.approx(state_of(address)["steps"][-1][0]["policy"], abs=0.006)

    count = before["steps"][-1][0]["step"] + 3
    mirror = make_session(run)
    for _ in range(count):
        mirror.step()
    while mirror.seats[0].begins_next:  # before an episode begins there is nothing to undo
        page.click("#step")
        page.until(f"{STEP} === {count}")
        mirror.step()
        count += 1
    page.click("[data-do=undo]")
    page.until(f"{SAID}.includes('wrote was taken back')")
    page.click("[data-do=undo]")
    page.until(f"{SAID}.includes('no write to undo')")
    page.press("w")
    page.until(f"{SAID}.includes('memory wiped')")
    page.click("#step")
    page.until(f"{STEP} === {count}")
    (record,) = state_of(address)["steps"][-1]
    assert record["policy"] == record["wiped"] and len(record["notes"]) == 2
    assert page.look("document.querySelectorAll('.sources li:not(.empty)').length") == 0

    for wrong in ("-5", "1.5", "99999999999", ""):
        page.look(f"(document.querySelector('#seed').value = '{wrong}') && true")
        page.look("say('')")
        page.click("#restart")
        page.until(f"{SAID}.startsWith('A seed is a whole number from 0 to 2,147,483,647')")
    assert state_of(address)["state"]["seed"] == 1
    choose(page, 320)
    page.click("[data-do=checkpoint]")
    page.until(f"{SAID}.includes('the checkpoint at 320 steps plays on')")
    page.until(f"{text('h2')}.includes('320')")
    page.look("(document.querySelector('#seed').value = '7', document.querySelector('#seed').focus())")
    page.press("Enter")
    page.until(f"{text('#about')}.includes('seed 7') && {STEP} === 0")
    page.press("+")
    page.until("document.querySelector('#speed').value === '2'")
    page.look("document.activeElement.blur()")
    page.press(" ")
    page.until(f"{STEP} > 5 && {STEP} < 300 && !state.paused")
    assert state_of(address)["state"]["seed"] == 7


def test_a_card_does_not_move_as_it_plays(page: browser.Page, tmp_path: Path, seed: int) -> None:
    run = save_run(tmp_path / "run", make_agent("rdn"))
    path = tmp_path / "game.html"
    main(["watch", str(run), "--record", str(path), "--steps", "60"])
    page.go(path.as_uri())
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1")
    page.click("#pause")
    places = (
        "[...document.querySelectorAll('.numbers dd, .policy, .sources, .strip')]"
        ".map(e => [e.getBoundingClientRect().left, e.getBoundingClientRect().top])"
    )
    numbers = (
        "{score: [5, 123456, -12][n % 3], value: [0, -0.127, 12345][n % 3], reward: [1, 0, -100][n % 3]}"
    )
    page.look(f"views[0].records.forEach((each, n) => Object.assign(each, {numbers}))")
    for width in WIDTHS:
        page.resize(width)
        page.until(f"innerWidth === {width}")
        seen = []
        for place in range(0, 60, 7):
            page.look(f"($('place').value = {place}, $('place').dispatchEvent(new Event('input')))")
            page.until(f"{STEP} === {place} && {text('#placed')} === '{place + 1} of 60'")
            seen.append(page.look(f"(scrollTo(0, 0), {places})"))
        assert all(each == seen[0] for each in seen)


def test_keys_are_the_games_in_a_menu_and_on_the_slider(
    page: browser.Page, tmp_path: Path, serve: Serve, seed: int
) -> None:
    page.go(serve(save_run(tmp_path / "run", make_agent("rdn"))))
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1")
    page.look("$('speed').focus()")
    page.press("w")
    page.until(f"{SAID}.includes('memory wiped')")
    path = tmp_path / "game.html"
    main(["watch", str(tmp_path / "run"), "--record", str(path), "--steps", "60"])
    page.go(path.as_uri())
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1 && !state.paused")
    page.look("$('place').focus()")
    page.press(" ")
    page.until("state.paused")
    terms = page.look(
        "[...document.querySelectorAll('footer dt')].filter(e => !e.hidden).map(e => e.textContent)"
    )
    assert "undo" not in terms and "median age" in terms
    shown = [page.look(f"percent({share})") for share in (0, 4, 5, 937, -42, 994, 995, 1049, -10000)]
    assert shown == ["0%", "0%", "+0.1%", "+9.4%", "−0.4%", "+9.9%", "+10%", "+10%", "−100%"]


def receive(page: browser.Page, **about: Any) -> None:
    """Let the page receive another message on its first agent."""
    page.look(
        f"receive({{state: {{...state, seats: [{{...state.seats[0], ...{json.dumps(about)}}}]}}, steps: []}})"
    )


def test_the_menu_shows_the_checkpoint_that_plays_and_leaves_a_choice(
    page: browser.Page, serve: Serve, tmp_path: Path, seed: int
) -> None:
    address = serve(save_run(tmp_path / "run", make_agent("rdn")))
    page.go(address)
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1")
    page.click("#pause")
    page.until("state.paused")
    value, disabled = f"{MENU}.value", "document.querySelector('[data-do=checkpoint]').disabled"
    receive(page, checkpoints=[320, 640])
    assert page.look(value) == "320"
    receive(page, step=640, checkpoints=[320, 640])  # it was taken up
    assert page.look(value) == "640"
    choose(page, 320)
    receive(page, step=640, checkpoints=[320, 640, 960])
    receive(page, step=960, checkpoints=[320, 640, 960])
    assert page.look(value) == "320" and not page.look(disabled)
    receive(page, step=960, checkpoints=[640, 1280])  # neither the choice nor what plays is there any more
    assert page.look(value) == "960" and page.look(disabled)
    assert page.look(f"[...{MENU}.options].map(e => e.text)") == ["640", "960 (no longer saved)", "1,280"]


def test_another_server_has_another_page(page: browser.Page, serve: Serve, tmp_path: Path, seed: int) -> None:
    page.go(serve(save_run(tmp_path / "run", make_agent("rdn"))))
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1")
    session = make_session(save_run(tmp_path / "other", make_agent("lstm")))
    first = {"state": session.state() | {"viewers": 1}, "anew": True, "steps": [session.step()]}
    page.look("document.querySelector('.seat').id = 'old'")
    page.look(f"source.close() || receive({json.dumps(first)})")
    page.until("document.querySelectorAll('.strip').length === 3")  # norm, what the memory changes, value
    assert page.look("document.querySelector('#old') === null")


def test_a_hidden_page_lets_the_game_stand_still(
    page: browser.Page, serve: Serve, tmp_path: Path, seed: int
) -> None:
    address = serve(save_run(tmp_path / "run", make_agent("lstm")))
    page.go(address)
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1")
    page.look("Object.defineProperty(document, 'hidden', {value: true}) && true")
    page.look("document.dispatchEvent(new Event('visibilitychange'))")
    page.until("source === null")
    assert state_of(address)["state"]["viewers"] == 1  # this question


def test_a_page_says_why_it_is_refused(page: browser.Page, serve: Serve, tmp_path: Path, seed: int) -> None:
    address = serve(save_run(tmp_path / "run", make_agent("lstm")))
    page.go(address)
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1")
    page.look(
        '(window.fetch = async () => new Response(\'{"error": "close a page"}\', {status: 503})) && true'
    )
    page.look("source.close() || source.onerror() && true")
    page.until(f"{SAID} === 'close a page'")


@pytest.mark.parametrize("cores", [("rdn",), ("rdn", "rdn"), ("lstm", "softmax_attention"), ("feedforward",)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_every_width(
    cores: tuple[str, ...], dark: bool, page: browser.Page, tmp_path: Path, seed: int
) -> None:
    from deltabeast.launch.watching.record import to_html

    runs = [save_run(tmp_path / str(n), make_agent(core)) for n, core in enumerate(cores)]
    session = make_session(*runs)
    steps = [session.step() for _ in range(30)]
    path = tmp_path / "game.html"
    about = {"state": session.state(), "made": [["command", "deltabeast watch"]], "goes_on": True}
    path.write_text(to_html({**about, "anew": True, "steps": steps}))
    page.go(path.as_uri())
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 1")
    page.click("#pause")
    for width in WIDTHS:
        page.resize(width, 900, dark)
        page.until(f"innerWidth === {width}")
        assert page.look("document.documentElement.scrollWidth") <= width
        ground = page.look("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(", "))) < 150) is dark
    unnamed = page.look(
        "[...document.querySelectorAll('img, canvas, button, select, input')].filter(e => "
        "!e.closest('[hidden]') && !(e.alt || e.getAttribute('aria-label') || e.textContent.trim() || "
        "e.labels?.length)).length"
    )
    assert unnamed == 0


def test_a_recorded_game_plays_without_a_server(page: browser.Page, tmp_path: Path, seed: int) -> None:
    run = save_run(tmp_path / "run", make_agent("delta_net"))
    path = tmp_path / "game.html"
    main(["watch", str(run), "--record", str(path), "--steps", "60"])
    page.go(path.as_uri())
    page.until(f"document.querySelector('[data-of=step]') && {STEP} > 2")
    page.click("#pause")
    assert "the game goes on after these 60 steps: more with --steps" in page.look(text("#about"))
    assert str(path) in page.look(text("#made"))
    before = page.look(STEP)
    page.click("#step")
    page.until(f"{STEP} === {before + 1}")
    page.look("($('place').value = 59, $('place').dispatchEvent(new Event('input')))")
    page.until(f"{STEP} === 59")
    assert page.look("[...document.querySelectorAll('.live')].every(e => e.hidden)")
    page.look("document.activeElement.blur()")
    page.press(" ")  # from the end it begins anew
    page.until(f"{STEP} < 59")
