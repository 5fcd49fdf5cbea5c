"""What `torch.compile` calls rather than traces, and that nobody else pays for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from deltabeast.kernels.untraced import constant, untraced

ACT = """
import sys
import torch
from deltabeast.agents import Agent, AgentSpec

agent = Agent(AgentSpec((5,), 3, "rdn", "mlp"))
row, done = torch.randn(2, 5), torch.tensor([True, False])
with torch.no_grad():
    agent.act(row, row[:, 0], done, agent.initial_state(2))
    agent.unroll(row[None], row[None, :, 0], done[None], agent.initial_state(2), bptt="per_step")
print("torch._dynamo" in sys.modules)
"""


def test_acting_does_not_import_the_compilers_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", ACT], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def compiled(function: Any) -> tuple[Any, list[str]]:
    """Return a compiled function and the code of its graphs, to be filled by its first call."""
    graphs: list[str] = []

    def note(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph.code)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(function, backend=note), graphs


def test_what_is_untraced_is_in_no_graph() -> None:
    @untraced
    def twice(x: Tensor, times: int = 1) -> Tensor:
        for _ in range(times):
            x = torch.sinh(x)
        return x

    function, graphs = compiled(lambda x: twice(torch.cos(x), times=2).sin())
    x = torch.randn(3)
    torch.testing.assert_close(function(x), x.cos().sinh().sinh().sin())
    assert ["cos" in graph for graph in graphs] == [True, False]
    assert ["sin()" in graph for graph in graphs] == [False, True]
    assert not any("sinh" in graph for graph in graphs)


@pytest.mark.parametrize("answer", ["C", None])
def test_a_constant_is_asked_for_once_and_breaks_no_graph(answer: str | None) -> None:
    asked = []

    @constant
    def reason(source: str, blocks: int) -> str | None:
        asked.append((source, blocks))
        return answer

    function, graphs = compiled(lambda x: x.cos() if reason("rules.c", blocks=2) else x.sin())
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(function(x), x.cos() if answer else x.sin())
    assert asked == [("rules.c", 2)] and len(graphs) == 1
