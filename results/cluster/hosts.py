"""Train across hosts of their own: a link that is cut for 30 s and restored, then one that is slow.

Hosts are network namespaces on a bridge, each with an address, a /tmp and a /dev/shm of its own. Needs root,
`ip`, and `tc` with the token bucket filter. Prints what happened when, and the speed in each phase.

    python results/cluster/hosts.py | tee results/cluster/hosts.txt
"""

from __future__ import annotations

import csv
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

HOSTS = 3  # the first has the head, the learner and the run; the others an actor each
NETWORK = "10.77.0"
PHASE = 20.0  # seconds of each phase but the cut
CUT = 30.0
SLOW = ["tbf", "rate", "50mbit", "burst", "32kb", "latency", "400ms"]
STORE = str(100 << 20)
TRAIN = ["--game", "pong", "--core", "lstm", "--stem", "nature", "--num-envs", "4", "--batch-size", "4",
         "--unroll-length", "20", "--device", "cpu", "--precision", "fp32", "--steps", "100M",
         "--log-seconds", "1", "--num-actors", str(HOSTS - 1)]  # fmt: skip
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def address(host: int) -> str:
    return f"{NETWORK}.{host + 1}"


@contextmanager
def network() -> Iterator[None]:
    """The namespaces h0, h1, ... on the bridge hbr."""
    try:
        sh("ip", "link", "add", "hbr", "type", "bridge")
        sh("ip", "link", "set", "hbr", "up")
        for host in range(HOSTS):
            sh("ip", "netns", "add", f"h{host}")
            sh("ip", "link", "add", f"hv{host}", "type", "veth", "peer", "name", "eth0", "netns", f"h{host}")
            sh("ip", "link", "set", f"hv{host}", "master", "hbr", "up")
            sh("ip", "-n", f"h{host}", "addr", "add", f"{address(host)}/24", "dev", "eth0")
            sh("ip", "-n", f"h{host}", "link", "set", "eth0", "up")
            sh("ip", "-n", f"h{host}", "link", "set", "lo", "up")
        yield
    finally:
        for host in range(HOSTS):
            subprocess.run(["ip", "netns", "del", f"h{host}"], check=False)
        subprocess.run(["ip", "link", "del", "hbr"], check=False)


def on_host(host: int, folder: Path, command: list[str], output: Path) -> subprocess.Popen[bytes]:
    """A command on a host, in a session of its own."""
    own = folder / f"h{host}"
    own.mkdir(exist_ok=True)
    script = f'mount -t tmpfs tmpfs /dev/shm && mount --bind {own} /tmp && exec "$@"'
    entered = ["ip", "netns", "exec", f"h{host}", "unshare", "-m", "bash", "-c", script, "-", *command]
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.Popen(entered, stdout=output.open("ab"), stderr=subprocess.STDOUT,
                            start_new_session=True, env={**inherited, **RAY})  # fmt: skip


def node(host: int, folder: Path) -> subprocess.Popen[bytes]:
    head = ["--head", "--port=6379", "--include-dashboard=false"]
    where = head if host == 0 else [f"--address={address(0)}:6379"]
    own = [f"--node-ip-address={address(host)}", "--num-cpus=1", f"--object-store-memory={STORE}", "--block"]
    command = [shutil.which("ray") or "ray", "start", *where, *own]
    return on_host(host, folder, command, folder / f"h{host}.out")


def session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Nothing of its session is left behind."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)


def rows(run_dir: Path) -> list[dict[str, str]]:
    path = run_dir / "logs.csv"
    text = path.read_text() if path.exists() else ""
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def last_step(run_dir: Path) -> int:
    found = rows(run_dir)
    return int(found[-1]["step"]) if found else 0


def phase(name: str, run_dir: Path, seconds: float) -> None:
    before, start = last_step(run_dir), time.monotonic()
    time.sleep(seconds)
    speed = (last_step(run_dir) - before) / (time.monotonic() - start)
    actors = rows(run_dir)[-1]["actors"]
    say(f"{name}: {speed:.0f} agent steps/s, {actors} actors alive at the end")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="hosts-", dir="/var/tmp"))
    run_dir = folder / "run"
    said = folder / "train.out"
    command = [sys.executable, "-c", "from deltabeast.launch.cli import main; main()", "train", *TRAIN]
    command += ["--engine", "ray", "--ray-address", f"{address(0)}:6379", "--run-dir", str(run_dir)]
    with ExitStack() as stack:
        stack.enter_context(network())
        for host in range(HOSTS):
            stack.enter_context(ended(node(host, folder)))
            time.sleep(8.0 if host == 0 else 1.0)
        run = stack.enter_context(ended(on_host(0, folder, command, said)))
        end = time.monotonic() + 120
        while not rows(run_dir) or float(rows(run_dir)[-1]["actors"]) < HOSTS - 1:
            if run.poll() is not None or time.monotonic() > end:
                sys.exit(f"training does not begin:\n{said.read_text()}")
            time.sleep(0.5)
        say(f"{HOSTS} hosts train")
        phase("whole network", run_dir, PHASE)
        link = f"hv{HOSTS - 1}"
        sh("ip", "link", "set", link, "down")
        say(f"cut the link of {address(HOSTS - 1)}")
        phase("link cut", run_dir, CUT)
        sh("ip", "link", "set", link, "up")
        say("link restored")
        end = time.monotonic() + 180
        while float(rows(run_dir)[-1]["actors"]) < HOSTS - 1 and time.monotonic() < end:
            time.sleep(0.5)
        say("all actors act again" if time.monotonic() < end else "not all actors act again after 180 s")
        phase("after the cut", run_dir, PHASE)
        slow = subprocess.run(
            ["tc", "qdisc", "add", "dev", link, "root", *SLOW], capture_output=True, text=True
        )
        within = ["ip", "netns", "exec", f"h{HOSTS - 1}", "tc", "qdisc", "add", "dev", "eth0", "root", *SLOW]
        if slow.returncode or subprocess.run(within, capture_output=True).returncode:
            say(f"no slow link here: {slow.stderr.strip()}")
        else:
            say(f"slowed the link of {address(HOSTS - 1)}: {' '.join(SLOW[1:])}, both ways")
            phase("slow link", run_dir, 2 * PHASE)
        run.send_signal(signal.SIGTERM)
        run.wait(90)
        last = rows(run_dir)[-1]
        counts = ", ".join(f"{last[name]} {name[8:]}" for name in last if name.startswith("unrolls_"))
        say(f"stopped at step {last['step']}; unrolls: {counts}; {last['bytes_per_step']} bytes a step")
    print("\nWhat the run said:\n")
    lines = [line for line in said.read_text().splitlines() if not line.startswith("step ")]
    print("\n".join(lines).replace(str(run_dir), "RUN"))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
