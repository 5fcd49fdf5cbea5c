"""Clusters: one of this machine alone is closed to others, and what is not there is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import ray
from processes import alive, command, descendants, family, listening
from ray.cluster_utils import Cluster
from training_process import CARTPOLE, Training, last_step, newest, rows

from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.processes.supervision import REQUESTS, WARNINGS
from deltabeast.launch.training.command import train
from deltabeast.launch.training.ray import cluster as ray_cluster

pytestmark = pytest.mark.timeout(400)


STRANGER = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
    print("ran", ray.get(ray.remote(num_cpus=0)(lambda: 6 * 7).remote(), timeout=60))
except (ConnectionError, ray.exceptions.RayError) as error:
    print("refused", type(error).__name__)
"""


class Probe:
    """What a process of the cluster sees."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


def of_a_process(one: ray_cluster.Cluster) -> dict[str, str]:
    """The environment of a process that the cluster starts."""
    probe = one.start(Probe, cpus=0.1, gpus=0.0)
    return one.ask([probe], "environment", patience=lambda waited: None)[0]


UNIMPORTED = """The actor died because of an error raised in its creation task, \
\x1b[36mray::FakeActor.__init__()\x1b[39m (pid=71, ip=10.0.0.7, actor_id=1b, repr=<TemporaryActor>)
RuntimeError: The actor with name RunProcess failed to import on the worker. This may be because needed \
library dependencies are not installed in the worker environment:

ray::FakeActor.__init__() (pid=71, ip=10.0.0.7, actor_id=1b, repr=<ray.TemporaryActor object at 0x7f>)
                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'deltabeast'
"""


def test_a_machine_without_the_package_is_named_with_what_it_needs() -> None:
    assert ray_cluster._first_line(ray.exceptions.RayError(UNIMPORTED)) == (
        "node 10.0.0.7 cannot import what is sent to it (ModuleNotFoundError: No module named 'deltabeast'): "
        f"install deltabeast {version('deltabeast')} there, with the Python and the packages of this machine"
    )


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_cluster_of_this_machine_alone_is_closed_to_others(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says: it listens on 127.0.0.1, and who has not its token can run nothing.

    And the next cluster in the same process, one that was there before or another, is none the wiser.
    """
    junk = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "ab" * 32, "RAY_AUTH_TOKEN_PATH": "/nowhere",
            "RAY_ADDRESS": "local", "HOME": str(tmp_path)}  # fmt: skip
    for name, value in junk.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAY_ENABLE_K8S_TOKEN_AUTH", "1")
    others = descendants(os.getpid())
    with ray_cluster.Cluster(None) as one:
        assert os.environ.items() >= junk.items()
        token = of_a_process(one)["RAY_AUTH_TOKEN"]
        assert len(token) == 64 and token != junk["RAY_AUTH_TOKEN"]
        processes = descendants(os.getpid()) - others
        assert len(processes) >= 4 and listening(processes | {os.getpid()}) == {"127.0.0.1"}
        address = ray.get_runtime_context().gcs_address
        strangers = [stranger(address, tmp_path, given) for given in (None, token)]
        assert [one.communicate(timeout=60)[0].split()[0] for one in strangers] == ["refused", "ran"]
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        assert session.parents[1].stat().st_mode & 0o777 == 0o700
        logs = [path.read_text(errors="replace") for path in session.rglob("*") if path.is_file()]
        commands = [command(pid) for pid in descendants(os.getpid())]
        assert logs and not any(token in text for text in (*logs, *commands))
    assert os.environ.items() >= junk.items() and not session.exists() and not (tmp_path / ".ray").exists()

    assert ray._raylet.get_authentication_mode() == ray._raylet.AuthenticationMode.DISABLED
    monkeypatch.delenv("RAY_ENABLE_K8S_TOKEN_AUTH")  # no Kubernetes could tell who uses the other
    with ray_cluster.Cluster(cluster.address) as there:
        assert of_a_process(there).get("RAY_AUTH_TOKEN") != token
    with ray_cluster.Cluster(None) as another:
        assert of_a_process(another)["RAY_AUTH_TOKEN"] not in (token, junk["RAY_AUTH_TOKEN"])
    assert os.environ.items() >= junk.items()


def stranger(address: str, home: Path, token: str | None) -> subprocess.Popen[str]:
    """Another user's process: it has the address, and this token or none."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "RAY_NUM_REDIS_GET_RETRIES": "2"}
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # or Ray would look elsewhere than at 127.0.0.1
    if token is not None:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    given = [sys.executable, "-c", STRANGER, address]
    return subprocess.Popen(given, env=environment, stdout=subprocess.PIPE, text=True)


REFUSED = {
    "no cluster": (("--ray-address", "127.0.0.1:1"), "127.0.0.1:1: no Ray cluster answers there .*refused"),
    "no room": (("--num-actors", "99"), "99 x 1 for actors: there are [34], at most 1 on one node; give a"),
    "no GPU": (("--device", "cuda"), "1 x 1 GPU for learners and 1 x 0 for actors: there are 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_there_is_told_in_one_line(
    cluster: Cluster, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltabeast.launch.training.ray.resources._JOINING", 0.6)
    given, message = REFUSED[case]
    arguments = ["train", *CARTPOLE[:-2], "--engine", "ray", "--ray-address", cluster.address, *given]
    began = time.monotonic()
    with pytest.raises(UsageError, match=message) as raised:
        train(parse([*arguments, "--run-dir", str(tmp_path / "run")]))
    assert "\n" not in str(raised.value) and time.monotonic() - began < 20
    assert not (tmp_path / "run").exists()


def test_ray_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "deltabeast.launch.training.ray"
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(sys.modules[package], name.rpartition(".")[2])  # so that it comes back
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"not installed: pip install 'ray>=2.52'"):
        train(parse(["train", *CARTPOLE[:-2], "--engine", "ray", "--run-dir", str(tmp_path / "run")]))
    assert not (tmp_path / "run").exists()


def test_ray_without_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("ray._raylet.AuthenticationTokenLoader")
    with pytest.raises(UsageError, match=r"has no tokens, .* it takes 2\.52 or later: pip install"):
        train(parse(["train", *CARTPOLE[:-2], "--engine", "ray", "--run-dir", str(tmp_path / "run")]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variable", "value", "address", "message"),
    [
        ("RAY_AUTH_MODE", "token", "127.0.0.1:PORT", "no Ray cluster answers .*no authentication token"),
        ("RAY_TMPDIR", "/nowhere", "local", "no folder for Ray in /nowhere: No such file.*; set RAY_TMPDIR"),
    ],
)
def test_an_environment_that_does_not_fit_is_told_in_one_line(
    variable: str, value: str, address: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address.replace("PORT", str(server.getsockname()[1]))
        with pytest.raises(UsageError, match=message) as raised:
            ray_cluster.Cluster(address)
    assert "\n" not in str(raised.value)


def test_what_ray_starts_hears_no_signal_that_stops_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits that they are blocked; here they come as before, one that came meanwhile too."""
    blocked: list[set[int]] = []
    heard: list[int] = []

    class Enough(Exception):
        pass

    def init(**_: object) -> None:
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        # To this thread: one of a library's own would take what comes to the process.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert not heard
        raise Enough

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    handler = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with pytest.raises(Enough):
            ray_cluster.Cluster(None)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert blocked[0] >= {*REQUESTS, *WARNINGS} and heard == [signal.SIGTERM]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


PONG = ("--game", "pong", "--core", "lstm", "--stem", "nature", "--precision", "fp32", "--num-envs", "2",
        "--batch-size", "2", "--unroll-length", "10", "--engine", "ray", "--device", "cpu",
        "--log-seconds", "0.2", "--steps", "1M")  # fmt: skip


def all_end(pids: set[int]) -> None:
    end = time.monotonic() + 30
    while alive(pids):
        assert time.monotonic() < end, alive(pids)
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_game_on_a_cluster_of_its_own(tmp_path: Path) -> None:
    """Asked to stop as a terminal and a scheduler do, killed, run again: it goes on, and leaves no process.

    At last Ray itself ends, as after `ray stop`: left alone, its library would end the process in silence.
    """
    run_dir = tmp_path / "run"
    for ends in ("terminal", "scheduler", "kill", "ray"):
        goal = last_step(run_dir) + 40
        training = Training(run_dir, *PONG)
        assert training.wait_for(lambda goal=goal: last_step(run_dir) >= goal, 120), training.output()
        pid = training.process.pid
        assert pid is not None
        others = family(pid)
        assert len(others) >= 4
        if ends == "terminal":
            os.killpg(pid, signal.SIGINT)  # all of them are told
        elif ends == "scheduler":
            for each in (*others, pid):
                os.kill(each, signal.SIGTERM)
        elif ends == "kill":
            training.send(signal.SIGKILL)
        else:
            (raylet,) = (p for p in others if Path(f"/proc/{p}/comm").read_text().strip() == "raylet")
            os.kill(raylet, signal.SIGKILL)
        code, said = training.wait(), training.output()
        codes = {"terminal": -signal.SIGINT, "scheduler": -signal.SIGTERM, "kill": -signal.SIGKILL, "ray": 1}
        assert code == codes[ends], said
        all_end(others)
        if ends in ("terminal", "scheduler"):
            assert "stopped at" in said and newest(run_dir)[0] == last_step(run_dir) >= goal
            words = {line.split()[0] for line in said.strip().splitlines()}
            assert words <= {"about", "step", "stopping", "stopped", "resuming"}, said
            continue
        assert f"resuming {run_dir} at step" in said and "Traceback" not in said
    assert "Ray was stopped or killed on this machine; start it, and the same command goes on" in said
    last = rows(run_dir)[-1]
    assert 0 < float(last["bytes_per_step"]) < 7500 and last["unrolls_lost"] == last["unrolls_doubled"] == "0"
