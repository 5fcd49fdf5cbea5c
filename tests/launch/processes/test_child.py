"""Child processes: they answer, their death is named, and none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from deltabeast.launch.processes.child import Child, ChildDied

pytestmark = pytest.mark.usefixtures("quick_children")


def echo(connection: Connection, prefix: str) -> None:
    """Answer until the pipe is closed; `die` and `hang` are obeyed."""
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if message == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if message == "leave":
            os._exit(3)
        if message == "end a program of yours":
            program = subprocess.Popen(["sleep", "60"])
            program.terminate()
            message = str(program.wait(30))
        if message == "hang":
            time.sleep(600)
        connection.send(prefix + message)


def test_a_child_answers_until_its_pipe_is_closed() -> None:
    child = Child("worker 1", echo, "heard ")
    child.send("this")
    child.send("that")
    assert [child.receive(), child.receive()] == ["heard this", "heard that"]
    child.close()
    began = time.monotonic()
    child.end(patience=30.0)
    assert time.monotonic() - began < 25 and child._process.exitcode == 0, "it ended by itself"


@pytest.mark.parametrize(
    ("message", "how"),
    [("die", "killed by signal 9, as systems do where memory runs out .*"), ("leave", "exit code 3")],
    ids=["killed", "left"],
)
def test_the_death_of_a_child_is_named(message: str, how: str) -> None:
    child = Child("worker 7", echo, "")
    child.send(message)
    with pytest.raises(ChildDied, match=rf"^worker 7 \(process {child._process.pid}\) died: {how}$"):
        child.receive()
    with pytest.raises(ChildDied, match=how):  # the first may still fit into the pipe
        child.send("x" * 10**6)
    child.end()


_INTERRUPTED = """
import os, signal
from multiprocessing import resource_tracker
from test_child import Child, echo
from deltabeast.launch.processes.supervision import REQUESTS, WARNINGS
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
child = Child("worker 3", echo, "heard ")
for pid in (child._process.pid, resource_tracker._resource_tracker._pid):  # before their Python has begun
    for number in (*REQUESTS, *WARNINGS):
        os.kill(pid, number)
child.send("this")
assert child.receive() == "heard this"
for number in (*REQUESTS, *WARNINGS):  # while they wait
    os.kill(child._process.pid, number)
assert resource_tracker._resource_tracker._check_alive()
child.send("that")
assert child.receive() == "heard that"
child.send("end a program of yours")  # which must not inherit that it hears nothing
assert child.receive() == "heard -15"
child.close()
child.end(patience=30.0)
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("we are")
"""


def test_a_child_hears_no_signal_that_stops_a_run() -> None:
    """In a process of its own, whose first child it is: that one starts the resource tracker, too."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "we are\n", "")


_ORPHANED = """
import os, signal, sys
from test_child import Child, echo
child = Child("worker 5", echo, "")
child.send("this")
child.receive()
child.send("hang")
open(sys.argv[1], "w").write(str(child._process.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_hangs_ends_with_its_parent(tmp_path: Path) -> None:
    from processes import alive  # which is not to be found by the programs that import this file

    subprocess.run([sys.executable, "-c", _ORPHANED, tmp_path / "pid"], cwd=Path(__file__).parent)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while alive({pid}):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_child_that_hangs_is_killed() -> None:
    child = Child("worker 2", echo, "")
    child.send("hang")
    child.close()
    child.end(patience=0.2)
    assert child._process.exitcode == -signal.SIGKILL
