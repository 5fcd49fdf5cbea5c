"""Child processes: they answer, their death is named, and none is left."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

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
    ("message", "how"), [("die", "killed by signal 9"), ("leave", "exit code 3")], ids=["killed", "left"]
)
def test_the_death_of_a_child_is_named(message: str, how: str) -> None:
    child = Child("worker 7", echo, "")
    child.send(message)
    with pytest.raises(ChildDied, match=rf"^worker 7 \(process {child._process.pid}\) died: {how}$"):
        child.receive()
    with pytest.raises(ChildDied, match=how):  # the first may still fit into the pipe
        child.send("x" * 10**6)
    child.end()


def test_a_child_that_hangs_is_killed() -> None:
    child = Child("worker 2", echo, "")
    child.send("hang")
    child.close()
    child.end(patience=0.2)
    assert child._process.exitcode == -signal.SIGKILL
