"""An evaluation acts in C where that is what the eager code does, and as somebody edited it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from training_in_process import run
from training_process import CARTPOLE

from deltabeast.agents.cpu import agent as fast
from deltabeast.cores import State
from deltabeast.cores.layer import Layer
from deltabeast.launch.config import EvalConfig
from deltabeast.launch.evaluation.command import evaluate_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    run(run_dir, *CARTPOLE, "--core", "rdn", "--steps", "200", "--learning-rate", "1e-2")
    return run_dir


def evaluated(run_dir: Path, **options: Any) -> tuple[str, list[list[float]]]:
    """Return what is said, and the returns."""
    console = Console(width=160, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    path = evaluate_run(EvalConfig(run_dir, episodes=3, repeats=3, device="cpu", **options), console)
    returns: list[list[float]] = json.loads(path.read_text())["results"]["trained"]["game"]["returns"]
    return console.export_text(), returns


def test_c_plays_as_the_plain_code(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    act = fast.FastAgent.act
    monkeypatch.setattr(
        fast.FastAgent, "act", lambda *given, **named: calls.append(1) or act(*given, **named)
    )
    said, returns = evaluated(trained)
    assert "eager code" not in said and len(calls) > 10
    calls.clear()
    said, plain = evaluated(trained, fused="off")
    assert "eager code" not in said and not calls and plain == returns


def test_an_edit_is_what_plays(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Layer, x: Tensor, state: State, reset: Tensor) -> Any:
        y, trace = self.memory(self.memory.slow_net(self.norm(x)), state, reset)
        return torch.where(x[:, :, :1] > 0, -x, x + self.out(y)) * 50, trace

    _, before = evaluated(trained)
    monkeypatch.setattr(Layer, "forward", forward)
    said, returns = evaluated(trained)
    assert "core: the eager code runs, since cores.layer.Layer.forward was edited" in said
    assert returns == evaluated(trained, fused="off")[1] != before


def test_numbers_that_differ_are_noticed(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose compiler is wrong."""
    step = fast.FastAgent.core_step

    def wrong(self: Any, *given: Any) -> tuple[Tensor, State]:
        y, state = step(self, *given)
        return y + torch.linspace(0, 1, y.shape[-1]), state

    monkeypatch.setattr(fast.FastAgent, "core_step", wrong)
    said, _ = evaluated(trained)
    assert said.count("the eager code runs, since C differs from it in the first steps") == len(fast.PARTS)
