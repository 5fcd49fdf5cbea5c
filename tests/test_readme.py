"""The examples of the READMEs do what they say, as they stand there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deltabeast.agents import Agent, AgentSpec, load_agent, save_checkpoint
from deltabeast.cores import make_core
from deltabeast.cores.contract import violations
from deltabeast.launch.cli import main

ROOT = Path(__file__).parents[1]


def example(readme: str, section: str, language: str) -> str:
    """The one code block of a language in a README's section."""
    text = (ROOT / readme).read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    (code,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return str(code)


def test_an_agent_is_loaded_and_stepped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = AgentSpec((4, 84, 84), 8, "rdn", "nature", {"num_layers": 1}, game="gopher", protocol="paper-code")
    save_checkpoint(tmp_path / "runs/gopher/rdn/seed-1", 1600, Agent(spec), {})
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example("agents/README.md", "In Python", "python"), "README.md", "exec"), names)
    output, state = names["output"], names["state"]
    assert output.action.shape == (8,)  # type: ignore[attr-defined]
    assert float(state[0].abs().sum()) > 0  # type: ignore[index]


def test_a_core_of_ones_own_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    (tmp_path / "my_cores.py").write_text(example("cores/README.md", "Your own core", "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = example("cores/README.md", "Your own core", "sh")
    assert command.count("100k") == 1
    words = shlex.split(command.replace("100k", "3200"))
    main([*words[1:], "--num-envs", "8", "--device", "cpu"])
    agent = load_agent(tmp_path / "runs/CartPole-v1/my_cores.Leaky/seed-1", trust_core="my_cores:Leaky")
    assert agent.spec.core == "my_cores:Leaky" and agent.core.output_size == 32
    core = make_core("my_cores:Leaky", 5)
    assert violations(core, torch.randn(7, 3, 5)) == []
    sys.modules.pop("my_cores")


def test_a_reading_is_explained(seed: int) -> None:
    core = make_core("delta_rnn", 5)
    state, reset = core.initial_state(2), torch.zeros(7, 2, dtype=torch.bool)
    names: dict[str, Any] = {"core": core, "x": torch.randn(7, 2, 5), "state": state, "reset": reset, "t": 5}
    code = example("cores/README.md", "Where a reading comes from", "python")
    *imports_and_names, last = code.splitlines()
    exec(compile("\n".join(imports_and_names), "README.md", "exec"), names)
    parts, without = names["parts"], eval(last.split("#")[0], names)
    assert parts.writes.shape == (6, 2, 4, 2, 32) and parts.initial.shape == (2, 4, 32)
    torch.testing.assert_close(parts.reading - without[5], parts.writes[3].sum(2), rtol=1e-3, atol=1e-6)


def test_associations_are_changed(seed: int) -> None:
    core = make_core("delta_net", 5)
    state, reset = core.initial_state(2), torch.zeros(7, 2, dtype=torch.bool)
    x, values = torch.randn(7, 2, 5), [torch.randn(2, 4, 1, 32) for _ in range(2)]
    names: dict[str, Any] = {"core": core, "x": x, "state": state, "reset": reset, "t": 5, "values": values}
    code = example("cores/README.md", "Associations", "python")
    assert code.count("\nstate = ") == 3
    for line in code.splitlines():
        exec(compile(line, "README.md", "exec"), names)
        W, keys = names["state"][0], names.get("keys")
        if line.startswith("state = erase") and keys:
            assert all((W[:, n] @ keys[n].mT).abs().max() < 1e-5 for n in range(2))
        if line.startswith("state = insert") and keys:
            for n in range(2):
                torch.testing.assert_close((W[:, n] @ keys[n].mT).mT, values[n], rtol=1e-4, atol=1e-4)
