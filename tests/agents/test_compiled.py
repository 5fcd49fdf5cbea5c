"""Compiled updates equal the plain ones and are compiled only once; where compiling fails, nothing is lost.

Most cases use the backend "aot_eager", which traces and differentiates like the others but runs the trace in
PyTorch: exact, and quick. cuda/test_graphs.py has what needs a GPU.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from random_batches import CORES, A, B, assert_same, make_batch, make_learner, memory, nan_reward

from deltabeast.agents import Agent, AgentSpec, Learner, LearnerConfig, NonFiniteError, Unroll
from deltabeast.agents.compiled import Compiled
from deltabeast.agents.cuda.enqueued import Enqueued
from deltabeast.agents.make_executor import make_executor
from deltabeast.kernels import Rule
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.training import plan

pytestmark = pytest.mark.usefixtures("updates_in_pytorch")
CXX = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = getattr(request, "param", "aot_eager")
    torch._dynamo.reset()  # the cases share their code, which may be compiled only so often
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=name))
    yield name
    torch.compiler.set_stance("default")


make_compiled = partial(make_executor, compile=True)


def mostly_long(cases: list[str], *short: str) -> list[Any]:
    """Parametrize: `make test` runs the short cases alone, since each is compiled for seconds."""
    return [case if case in short else pytest.param(case, marks=pytest.mark.long) for case in cases]


def make_thin(core: str, **config: Any) -> Learner:
    """Make a learner whose core has one layer, which is compiled in half the time."""
    agent = Agent(AgentSpec((5,), A, core, "mlp", core_options={"num_layers": 1}, reward_clip=1.0))
    return Learner(agent, LearnerConfig(total_steps=10_000, **config))


def compiled(plain: Learner, make: Any = make_compiled) -> Learner:
    twin = Learner(copy.deepcopy(plain.agent), plain.config, make)
    twin.load_state_dict(copy.deepcopy(plain.state_dict()))
    return twin


def is_compiled(twin: Learner) -> bool:
    """Whether it has not fallen back on the loss as it stands."""
    return twin.compiled_loss is not None


def assert_compiled_once(plain: Learner, batches: list[Unroll]) -> None:
    """Compiled updates are the plain ones, bit for bit, and the first compiled all that the others run."""
    twin = compiled(plain)
    for batch in batches:
        assert twin.update(batch) == plain.update(batch)
        assert_same(twin, plain)
        torch.compiler.set_stance("fail_on_recompile")
    assert is_compiled(twin)


@pytest.mark.parametrize("core", mostly_long(CORES, "lstm", "rdn"))
def test_compiled_updates_are_the_plain_ones(core: str, backend: str, seed: int) -> None:
    """Bit for bit, other inputs, weights and learning rates included, and compiled no more than once."""
    make = make_thin if core == "rdn" else make_learner
    plain = make(core, learning_rate=0.1, max_grad_norm=5.0)
    assert_compiled_once(plain, [make_batch(plain.agent) for _ in range(3)])


@pytest.mark.parametrize("core", mostly_long(["lstm", "delta_rnn", "rdn"], "rdn"))
def test_loops_in_pytorch_are_left_out(
    core: str, backend: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Without a fused kernel, loops depend on the resets: other resets must not recompile anything."""
    monkeypatch.setattr(Rule, "fused_for", lambda rule, inputs: None)
    plain = make_thin(core) if core != "lstm" else make_learner(core)
    batches = [make_batch(plain.agent) for _ in range(4)]
    for more, batch in enumerate(batches, 1):
        batch.done[:] = torch.arange(B) < 1  # one episode begins at each step, and then more at one
        batch.done[1, :more] = True
    assert_compiled_once(plain, batches)


def test_loops_over_steps_are_left_out(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A graph of fifty steps takes minutes to compile; the code around the loop is compiled."""
    code = ""

    def note(graph: torch.fx.GraphModule, inputs: object) -> Any:
        nonlocal code
        code += graph.code
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=note))
    for bptt in ("full", "per_step"):
        torch._dynamo.reset()
        code = ""
        plain = make_thin("rdn", bptt=bptt)
        twin = compiled(plain)
        for _ in range(2):
            batch = make_batch(plain.agent)
            assert twin.update(batch) == plain.update(batch)
        assert_same(twin, plain)
        assert "log_softmax" in code and "foreach" in code
        assert ("recurrent_delta" in code) == (bptt == "full")


@pytest.mark.parametrize("stem", mostly_long(["residual", "nature"], "nature"))
def test_images_and_autocast(stem: str, backend: str, seed: int) -> None:
    agent = Agent(AgentSpec((4, 84, 84), 3, "delta_net", stem, core_options={"num_layers": 1}))
    agent.autocast_dtype = torch.bfloat16
    plain = Learner(agent, LearnerConfig(total_steps=10_000))
    twin = compiled(plain)
    twin.agent.autocast_dtype = torch.bfloat16
    for _ in range(2):
        batch = make_batch(agent, columns=2)
        frame = torch.randint(256, (*batch.done.shape, 4, 84, 84), dtype=torch.uint8)
        batch = replace(batch, observation=frame)
        assert twin.update(batch) == pytest.approx(plain.update(batch), rel=1e-2, abs=1e-3)
    for p, q in zip(twin.agent.parameters(), agent.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-4)


@pytest.mark.long  # compiled by the C++ compiler, for most of a minute
@pytest.mark.skipif(not shutil.which(CXX), reason=f"no C++ compiler ({CXX})")
@pytest.mark.parametrize("backend", ["inductor"], indirect=True)
def test_generated_code_computes_an_update(backend: str, seed: int) -> None:
    """Also for a non-finite batch: nothing changes, the culprit is named, and learning goes on."""
    # A large epsilon: where a gradient is almost zero RMSProp would make a step of its rounding.
    plain = make_thin("rdn", learning_rate=0.01, rmsprop_eps=1.0)
    twin = compiled(plain)
    for update in range(4):
        batch = make_batch(plain.agent)
        if update == 2:
            before = [x.clone() for x in memory(twin)]
            with pytest.raises(NonFiniteError, match="update 3 is not finite: first in rewards"):
                twin.update(nan_reward(batch))
            assert all(torch.equal(x, y) for x, y in zip(memory(twin), before, strict=True))
        assert twin.update(batch) == pytest.approx(plain.update(batch), rel=1e-3, abs=1e-4)
        for x, y in zip(memory(twin), memory(plain), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5)
    assert is_compiled(twin)


def test_compiling_leaves_no_nodes_of_the_gradients_behind(backend: str, seed: int) -> None:
    """An autograd node belongs to the stream it was made on; captures have streams of their own."""
    twin = compiled(make_learner("lstm"))
    parameters, evaluate = list(twin.agent.parameters()), twin.compiled_loss

    def nodes() -> list[dict[Any, Any]]:
        return [torch.autograd.graph.get_gradient_edge(p).node.metadata for p in parameters]

    def marking(batch: Unroll) -> Any:
        result = evaluate(batch)
        for node in nodes():
            node["made before"] = True
        return result

    twin.compiled_loss = marking
    gc.disable()
    try:
        twin.backward(make_batch(twin.agent))
        assert not any("made before" in node for node in nodes())
    finally:
        gc.enable()


def test_the_first_batch_may_be_the_one_that_is_not_finite(backend: str, seed: int) -> None:
    plain = make_learner()
    twin = compiled(plain)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match="update 1 is not finite: first in rewards"):
            twin.update(nan_reward(make_batch(plain.agent)))
    batch = make_batch(plain.agent)
    assert twin.update(batch) == plain.update(batch)
    assert_same(twin, plain)
    assert is_compiled(twin)


def test_compiled_updates_are_enqueued_too(backend: str, seed: int) -> None:
    """As on a GPU: the host notices a non-finite batch late, and goes on as if it had not been."""
    plain = make_thin("rdn")
    twin = compiled(plain, lambda learner: Enqueued(learner, Compiled(learner), capture=False))
    for update in range(3):
        batch = make_batch(plain.agent)
        if update != 1:
            assert dict(twin.update(batch)) == plain.update(batch)
            continue
        twin.update(nan_reward(batch))
        with pytest.raises(NonFiniteError, match="update 2 is not finite: first in rewards"):
            twin.update(batch)
        assert_same(twin, plain)
    assert_same(twin, plain)
    assert is_compiled(twin)


@pytest.mark.parametrize("half", ["loss", "rmsprop_if_finite"])
def test_what_cannot_be_compiled_runs_as_it_is(half: str, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    def cannot(function: Any, **options: object) -> Any:
        def fails(*inputs: object) -> None:
            raise RuntimeError("backend='inductor' raised:\nno compiler")

        return fails if function.__name__ == half else function

    monkeypatch.setattr(torch, "compile", cannot)
    plain = make_learner("rdn")
    twin = compiled(plain)
    batch = make_batch(plain.agent)
    with pytest.warns(UserWarning, match=r"torch.compile fails here; the learner runs without: backend='ind"):
        metrics = twin.update(batch)
    assert metrics == plain.update(batch)
    for columns in (B, B + 1):
        batch = make_batch(plain.agent, columns=columns)
        assert twin.update(batch) == plain.update(batch)
    assert_same(twin, plain)


@pytest.mark.parametrize(
    ("compile", "deterministic", "device", "wanted"),
    [
        ("auto", False, "cpu", False),
        ("auto", False, "cuda", True),
        ("auto", True, "cuda", False),
        ("off", False, "cuda", False),
        ("on", False, "cpu", True),
    ],
)
def test_who_compiles(
    compile: Any, deterministic: bool, device: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, bool] = {}
    monkeypatch.setattr(plan, "Learner", lambda agent, config, executor: asked.update(executor.keywords))
    agent = make_learner("feedforward").agent
    monkeypatch.setattr(torch.Tensor, "device", torch.device(device))
    plan.make_learner(agent, TrainConfig(compile=compile, deterministic=deterministic), 100)
    assert asked == {"capture": not deterministic, "compile": wanted}
