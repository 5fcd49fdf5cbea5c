"""`deltabeast watch`: what is wrong is one line; a recorded game is the same page in one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import sys
from pathlib import Path

import pytest
from watching import make_agent, make_session, save_run

from deltabeast.agents import Agent, AgentSpec
from deltabeast.launch.cli import main
from deltabeast.launch.errors import UsageError
from deltabeast.launch.watching.page import page_file
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


def test_a_host_that_cannot_be_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on --host 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


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
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)
    for tag, name in (("script", "page.js"), ("style", "page.css")):
        content = page_file(name)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"<{tag}>{content}</{tag}>" in text and f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http:" not in policy


def test_a_recording_ends_with_a_game_and_holds_several_short_ones(tmp_path: Path, seed: int) -> None:
    run = save_run(tmp_path / "run", make_agent("lstm"))
    main(["watch", str(run), "--record", str(tmp_path / "game.html")])
    text = (tmp_path / "game.html").read_text()
    (data,) = re.findall(r'id="recording">(.*?)</script>', text)
    steps = json.loads(data)["steps"]
    assert 300 <= len(steps) < 313 and sum(each[0]["begins"] for each in steps) > 10
    session = make_session(run)
    ends = [session.step()[0]["begins"] for _ in range(len(steps) + 1)]
    assert ends[-1]  # the next step would begin another


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
    for record in records:
        png = Image.open(io.BytesIO(base64.b64decode(record["seen"]["png"]))).convert("RGB")
        np.testing.assert_array_equal(np.asarray(png), screen[0, -1])
        screen = with_colour.step(np.array([record["action"]]))[0]
    with_colour.close()
    assert session.state()["seats"][0]["actions"][0] == "NOOP" and session.seconds_per_step == 1 / 15
