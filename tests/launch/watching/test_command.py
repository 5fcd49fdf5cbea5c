"""`deltabeast watch`: what is wrong is one line; a recorded game is the same page in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import webbrowser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from watching import make_agent, make_session, save_run

from deltabeast.agents import Agent, AgentSpec
from deltabeast.launch.cli import main
from deltabeast.launch.config import WatchConfig
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.evaluation.loading import load
from deltabeast.launch.evaluation.progress import progress
from deltabeast.launch.watching import serve
from deltabeast.launch.watching.page import page_file
from deltabeast.launch.watching.record import record, recorded_message
from deltabeast.launch.watching.serve import address_of, listen


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["watch", *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1, error
    return error


def test_what_is_wrong_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(save_run(tmp_path / "run", make_agent()))
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    assert "no run at nowhere" in refused(capsys, "nowhere")
    assert "no checkpoint in" in refused(capsys, str(tmp_path / "begun"))
    assert "no run at nowhere" in refused(capsys, run, "--beside", "nowhere")
    assert "--port 70000; it must be from 0 to 65535" in refused(capsys, run, "--port", "70000")
    assert "protocols are for Atari games" in refused(capsys, run, "--protocol", "ale-standard")
    assert "no checkpoint" in refused(capsys, run, "--checkpoint", "999")
    assert "is a folder; name a file" in refused(capsys, run, "--record", str(tmp_path))
    assert "--steps is of a recording; give --record FILE" in refused(capsys, "nowhere", "--steps", "50")
    for option in (("--port", "0"), ("--host", "::1")):
        assert "--record needs none; omit them" in refused(capsys, "nowhere", "--record", "x.html", *option)
    with listen("127.0.0.1", 0) as sock:
        port = str(sock.getsockname()[1])
        assert f"port {port} is in use; give another --port" in refused(capsys, run, "--port", port)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install starlette uvicorn" in refused(capsys, run)
    spec = AgentSpec((5,), 3, "nowhere:Core", "mlp", {}, env_id="x")
    monkeypatch.undo()
    agent = make_agent()
    object.__setattr__(agent, "spec", spec)
    save_run(tmp_path / "theirs", agent)
    assert "--trust-core nowhere:Core" in refused(capsys, str(tmp_path / "theirs"))
    assert sorted(path.name for path in Path(run).iterdir()) == ["checkpoints"]


def test_the_checkpoint_before_any_training_is_one_like_others(tmp_path: Path, seed: int) -> None:
    run = save_run(tmp_path / "run", make_agent("lstm"), 0)
    save_run(run, make_agent("lstm"), 320)
    steps = [load(run, which, None, print).step for which in ("0", "1", "latest")]
    assert steps == [0, 320, 320]


def test_a_host_that_cannot_be_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on --host 192\.0\.2\.1"):
        listen("192.0.2.1", 0)
    with pytest.raises(UsageError, match=r"a{80} is no name of a machine"):
        listen("a" * 80, 0)


def test_addresses() -> None:
    assert address_of("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert address_of("::1", 80, None) == "http://[::1]:80/"
    assert address_of("0.0.0.0", 80, "t") == f"http://{socket.gethostname()}:80/?token=t"


def test_a_recorded_game_is_the_page_in_one_file(tmp_path: Path, seed: int) -> None:
    agent = make_agent("rdn")
    path = tmp_path / "new" / "game.html"
    run = save_run(tmp_path / "run", agent)
    main(["watch", str(run), "--record", str(path), "--steps", "40", "--seed", "3"])
    text = path.read_text()
    assert "/page." not in text.replace('fetch("/', "") and "src=" not in text.split("<script type")[0]
    (data,) = re.findall(r'<script type="application/json" id="recording">(.*?)</script>', text)
    message = json.loads(data)
    session = make_session(run, seed=3)
    assert message["steps"] == json.loads(json.dumps([session.step() for _ in range(40)]))
    assert message["state"]["seats"][0]["core"] == "rdn"
    (weights,) = run.glob("checkpoints/*/weights.safetensors")
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert message["state"]["seats"][0]["weights"] == digest
    made = dict(message["made"])
    assert list(made) == ["command", "run", "checkpoint", "deltabeast"] and made["run"] == "run"
    assert made["command"] == f"deltabeast watch {run} --seed 3 --record {path} --steps 40"
    assert made["checkpoint"] == f"at 320 steps; SHA-256 of its weights {digest}"
    assert made["deltabeast"].startswith(f"{version('deltabeast')}, commit ")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)
    for tag, name in (("script", "page.js"), ("style", "page.css")):
        content = page_file(name)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"<{tag}>{content}</{tag}>" in text and f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http:" not in policy


def test_a_recording_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link = tmp_path / "config.json", tmp_path / "link.html"
    file.write_text("{}")
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, link):  # before anything is loaded: there is no run
        error = refused(capsys, "nowhere", "--record", str(path))
        assert "is there already; remove it, or give another name" in error
    for path in (file / "game.html", file / "new" / "game.html"):
        assert f"nothing can be written to {file}" in refused(capsys, "nowhere", "--record", str(path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path != tmp_path)
        path = tmp_path / "new" / "game.html"
        assert f"nothing can be written to {tmp_path}" in refused(capsys, "nowhere", "--record", str(path))
    assert file.read_text() == "{}" and link.is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_the_progress_of_a_recording_counts_games(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltabeast.launch.evaluation.progress._LINE_SECONDS", 0.0)
        with progress(Console(width=80), "watch") as tell:
            tell(2, None, 300)
            tell(1, 4, 300)
    lines = ["watch: 2 episodes ended, 300 steps", "watch: 1 of 4 episodes, 300 steps"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_file_that_came_while_a_game_was_recorded_stays(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "game.html"
    path.write_text("mine")
    run = save_run(tmp_path / "run", make_agent("lstm"))
    with pytest.raises(RunError, match="cannot write to"):
        record(make_session(run), WatchConfig(run, steps=3), path, Console(quiet=True))
    assert path.read_text() == "mine"


SERVE = """
import os, sys, webbrowser
webbrowser.open = lambda address: print("opens", address, os.getpriority(os.PRIO_PROCESS, 0), flush=True)
from deltabeast.launch.cli import main
main(["watch", sys.argv[1], "--port", "0"])
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_served_page_ends_by_signals(number: signal.Signals, tmp_path: Path, seed: int) -> None:
    run = save_run(tmp_path / "run", make_agent("lstm"))
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with subprocess.Popen([sys.executable, "-c", SERVE, run], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            (address,) = {word for line in lines for word in line.split() if word.startswith("http")}
            assert f"opens {address} {niceness}\n" in lines
            with urllib.request.urlopen(f"{address}events", timeout=20) as stream:
                assert stream.readline().startswith(b'data: {"state"')
                assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
                process.send_signal(number)
                stream.read()  # to its end
            assert process.wait(20) == -number
        finally:
            process.kill()


def test_a_page_is_served_until_it_is_told_to_end(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[serve._Server] = []
    opened: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    class Server(serve._Server):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            servers.append(self)

    def browse(address: str) -> None:
        opened.put((address, os.getpriority(os.PRIO_PROCESS, 0)))

    monkeypatch.setattr(serve, "_Server", Server)
    monkeypatch.setattr(webbrowser, "open", browse)
    session = make_session(save_run(tmp_path, make_agent("lstm")))
    given = WatchConfig(tmp_path, port=0)
    thread = threading.Thread(target=serve.serve, args=(session, given), daemon=True)
    thread.start()
    address, priority = opened.get(timeout=20)
    assert priority == os.getpriority(os.PRIO_PROCESS, 0)  # the browser's is the user's
    with urllib.request.urlopen(f"{address}events", timeout=20) as stream:
        assert stream.readline().startswith(b'data: {"state"')
        if sys.platform == "linux":  # where a thread has a priority of its own
            assert thread.native_id and os.getpriority(os.PRIO_PROCESS, thread.native_id) == 19
        servers[0].handle_exit(signal.SIGTERM, None)
        stream.read()  # to its end
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(("host", "opened"), [("127.0.0.1", 1), ("0.0.0.0", 0)])
def test_a_token_is_in_no_command_line(
    host: str, opened: int, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def end(self: serve._Server, sockets: object = None) -> None:
        pass

    monkeypatch.setattr(serve._Server, "serve", end)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(webbrowser, "open", addresses.put)
    session = make_session(save_run(tmp_path, make_agent("lstm")))
    serve.serve(session, WatchConfig(tmp_path, host=host, port=0))
    for _ in range(opened):
        assert addresses.get(timeout=5).startswith("http://127.0.0.1:")
    assert addresses.empty()


def test_a_recording_ends_with_a_game_and_holds_several_short_ones(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run", make_agent("lstm"))
    main(["watch", str(run), "--record", str(tmp_path / "game.html")])
    assert "goes on" not in capsys.readouterr().out
    text = (tmp_path / "game.html").read_text()
    (data,) = re.findall(r'id="recording">(.*?)</script>', text)
    steps = json.loads(data)["steps"]
    assert 300 <= len(steps) < 313 and sum(each[0]["begins"] for each in steps) > 10
    session = make_session(run)
    ends = [session.step()[0]["begins"] for _ in range(len(steps) + 1)]
    assert ends[-1]  # the next step would begin another
    assert not json.loads(data)["goes_on"]
    for end in (ends[1:].index(True) + 1, len(steps)):  # of the first game, and of the last
        for cut in (0, 1):
            path = tmp_path / f"{end}-{cut}.html"
            main(["watch", str(run), "--record", str(path), "--steps", str(end - cut)])
            said = " ".join(capsys.readouterr().out.split())
            assert ("the game goes on: more with --steps" in said) is bool(cut)
            assert recorded_message(path.read_bytes())["goes_on"] is bool(cut)


def test_names_in_a_run_do_nothing_to_the_page(tmp_path: Path, seed: int) -> None:
    agent = make_agent()
    session = make_session(save_run(tmp_path / "run", agent))
    session.sources[0].actions = ["</script><b>", "<!--", "c"]
    from deltabeast.launch.watching.record import to_html

    text = to_html({"state": session.state(), "anew": True, "steps": [session.step()]})
    assert "</script><b>" not in text and text.count("<!--") == 0
    (data,) = re.findall(r'id="recording">(.*?)</script>', text)
    assert json.loads(data)["state"]["seats"][0]["actions"] == ["</script><b>", "<!--", "c"]


def test_a_game_is_shown_in_colour(tmp_path: Path, seed: int) -> None:
    options = {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "ff_size": 8}
    spec = AgentSpec((4, 84, 84), 6, "rdn", "nature", options, game="pong", protocol="paper-code")
    session = make_session(save_run(tmp_path, Agent(spec)))
    records = [session.step()[0] for _ in range(3)]
    session.close()
    assert [each["seen"]["size"] for each in records] == [[160, 210]] * 3
    import io

    import numpy as np
    from PIL import Image

    from deltabeast.envs.atari import AtariGames

    with_colour = AtariGames("pong", 1, "paper-code", 1, False, colour=True)
    screen, _ = with_colour.reset(seed=1)
    for each in records:
        png = Image.open(io.BytesIO(base64.b64decode(each["seen"]["png"]))).convert("RGB")
        np.testing.assert_array_equal(np.asarray(png), screen[0, -1])
        screen = with_colour.step(np.array([each["action"]]))[0]
    with_colour.close()
    assert session.state()["seats"][0]["actions"][0] == "NOOP" and session.seconds_per_step == 1 / 15
