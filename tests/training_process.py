"""Training in processes of its own, to be killed; and what a run has left on disk, to be compared.

The processes are forked from a server that has imported everything, so that each starts in a moment.
"""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from deltabeast.agents import find_checkpoints, load_checkpoint

TINY = (
    "--core", "rdn",
    "--core-options", "hidden_size", "16", "num_heads", "2", "ff_size", "16", "num_layers", "1",
    "--num-envs", "4", "--batch-size", "4", "--unroll-length", "5", "--device", "cpu", "--precision", "fp32",
    "--num-workers", "1",
)  # fmt: skip
"""A small agent, 20 agent steps per update."""
CARTPOLE = ("--env", "CartPole-v1", *TINY)

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "deltabeast.launch.training.command",
        "deltabeast.launch.cli",
        "torch.utils.tensorboard",
        "torch._dynamo",
    ]
)


def _print_to(output: Path) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _train(arguments: list[str], output: Path) -> None:
    _print_to(output)
    os.setsid()  # a group of its own, which a test may signal as a terminal would
    from deltabeast.launch.cli import main

    main(["train", *arguments])


def said_by(code: str, output: Path) -> str:
    """Run Python code in a process of its own, and return what it prints, to a file that is new."""
    process = context.Process(target=_execute, args=(code, output))
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0, output.read_text()
    return output.read_text()


def _execute(code: str, output: Path) -> None:
    _print_to(output)
    exec(code, {})


class Training:
    """`deltabeast train` in another process."""

    def __init__(self, run_dir: Path, *arguments: str, daemon: bool = True) -> None:
        """Only one that is no daemon may have workers."""
        self.run_dir = run_dir
        self.path = run_dir.with_name(f"{run_dir.name}.{time.monotonic_ns()}.out")
        self.path.touch()
        given = [*arguments, "--run-dir", str(run_dir)]
        self.process = context.Process(target=_train, args=(given, self.path), daemon=daemon)
        self.process.start()

    def send(self, number: int) -> None:
        assert self.process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(self.process.pid, number)

    def wait(self, timeout: float = 60.0) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"training hangs; it said:\n{self.output()}")
        return self.process.exitcode

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60.0) -> bool:
        """Until the condition holds; False if the process ended before."""
        end = time.monotonic() + timeout
        while not condition():
            if self.process.exitcode is not None:
                return False
            assert time.monotonic() < end, f"waited in vain; it said:\n{self.output()}"
            time.sleep(0.01)
        return True

    def output(self) -> str:
        return self.path.read_text()


def rows(run_dir: Path) -> list[dict[str, str]]:
    """The whole rows of logs.csv, as text."""
    path = run_dir / "logs.csv"
    text = path.read_text() if path.exists() else ""
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def last_step(run_dir: Path) -> int:
    found = rows(run_dir)
    return int(found[-1]["step"]) if found else 0


def metrics(run_dir: Path) -> list[dict[str, str]]:
    """The rows without what the clock decides."""
    timed = ("time", "sps", "share_", "read_")
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows(run_dir)]


def newest(run_dir: Path) -> tuple[int, dict[str, torch.Tensor], dict[str, Any]]:
    """Step, weights and training state of the newest checkpoint, which must be whole."""
    path = find_checkpoints(run_dir)[-1].path
    core = json.loads((path / "agent.json").read_text())["core"]
    agent, state = load_checkpoint(path, trust_core=core)
    return int(path.name), agent.state_dict(), state


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Bit for bit, whatever the nesting."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    else:
        assert a == b, f"{where}: {a} != {b}"


def assert_same_run(one: Path, other: Path) -> None:
    """Same weights, optimizer, scores, generators and environments at the end; same metrics all along."""
    step, weights, state = newest(one)
    other_step, other_weights, other_state = newest(other)
    assert step == other_step
    assert_same(weights, other_weights, "weights")
    assert_same(state, other_state)
    name = f"{step:012d}/weights.safetensors"
    assert (one / "checkpoints" / name).read_bytes() == (other / "checkpoints" / name).read_bytes()
    assert metrics(one) == metrics(other)
