"""A step of inference or an update that is captured in a CUDA graph does the same as without one.

On a CPU a tape of operations stands in for the graph (tape.py); test_enqueued.py has more such tests.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import tape
import torch
from random_batches import make_batch, nan_reward

from deltabeast.agents import Agent, AgentSpec, Learner, LearnerConfig, NonFiniteError, Unroll
from deltabeast.agents.cuda import graphs
from deltabeast.agents.cuda.inference import GpuInference
from deltabeast.agents.make_executor import make_executor
from deltabeast.agents.weights import WeightStore
from deltabeast.kernels import Rule

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CORES = ["feedforward", "lstm", "delta_net", "delta_rnn", "rdn"]


@pytest.fixture(autouse=True)
def _algorithms_as_in_training() -> None:
    """conftest.py's poison asks for deterministic ones; a GPU's scatter_add then copies from pageable memory,
    which waits for the device, and which no graph can hold."""
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("device", [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=needs_gpu)])
def test_a_captured_step_is_a_step(
    core: str,
    autocast: torch.dtype | None,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """With resets, with weights that change in between, and results that the next call leaves alone."""
    if device.type == "cpu":
        monkeypatch.setattr(graphs, "record", tape.record)
        # the other forms look at the resets on a CPU
        monkeypatch.setattr(Rule, "in_pytorch", lambda rule, steps: rule.reference)
    B = 5
    agent = Agent(AgentSpec((4, 84, 84), 6, core, "nature")).to(device)
    agent.autocast_dtype = autocast
    generators = [torch.Generator(device).manual_seed(seed) for _ in range(2)]
    state = expected_state = agent.initial_state(B)
    inference, kept = GpuInference(agent, generators[0], capture=True), []
    for step in range(8):
        observation = torch.randint(256, (B, 4, 84, 84), dtype=torch.uint8, device=device)
        reward, done = torch.randn(B, device=device), torch.rand(B, device=device) < 0.3
        inference.state = state
        if step == 0:  # the capture draws numbers, too
            inference.act(observation, reward, done)
            generators[1].set_state(generators[0].get_state())
        output, state = inference.act(observation, reward, done)
        with torch.no_grad():
            expected, expected_state = agent.act(
                observation, reward, done, expected_state, generator=generators[1]
            )
            for parameter in agent.parameters():
                parameter.mul_(1.01)
        torch.testing.assert_close(output.policy_logits, expected.policy_logits, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(output.baseline, expected.baseline, rtol=1e-2, atol=1e-2)
        for part, other in zip(state, expected_state, strict=True):
            torch.testing.assert_close(part, other, rtol=1e-2, atol=1e-2)
        kept.append((output.policy_logits, output.policy_logits.clone(), output.action, expected.action))
    assert all(torch.equal(now, then) for now, then, *_ in kept)
    agreed = torch.stack([a == b for *_, a, b in kept]).float().mean()
    assert agreed > 0.9, "the same random numbers choose the same actions, but for rounding"


@needs_gpu
def test_a_step_is_captured_for_a_stream_that_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's kernels keep the priority of the stream they were captured on, wherever it is launched."""
    agent = Agent(AgentSpec((5,), 3, "rdn", "mlp")).cuda()
    priorities, act = set(), agent.act

    def noting(*inputs: Any, **options: Any) -> Any:
        priorities.add(torch.cuda.current_stream().priority)
        return act(*inputs, **options)

    monkeypatch.setattr(agent, "act", noting)
    observation, reward, done = torch.zeros(2, 5), torch.zeros(2), torch.ones(2, dtype=torch.bool)
    inference = GpuInference(agent, torch.Generator("cuda"), capture=True)
    inference.state = agent.initial_state(2)
    inference.act(observation.cuda(), reward.cuda(), done.cuda())
    assert priorities == {graphs.ACTOR_PRIORITY}


def on_the_gpu(batch: Unroll) -> Unroll:
    return batch.map(lambda dim, x: x.cuda())


def make_learners(
    core: str, autocast: torch.dtype | None = None, compile: bool = False, **config: float
) -> list[Learner]:
    """On the GPU: one whose updates are captured, and compiled or not, and one whose updates are neither."""
    agent = Agent(AgentSpec((5,), 3, core, "mlp")).cuda()
    agent.autocast_dtype = autocast
    settings = LearnerConfig(total_steps=10_000, **config)  # type: ignore[arg-type]
    makers = [partial(make_executor, capture=on, compile=compile and on) for on in (True, False)]
    return [Learner(copy.deepcopy(agent), settings, make) for make in makers]


@needs_gpu
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("compile", [False, True])
def test_a_captured_update_is_an_update(
    core: str, autocast: torch.dtype | None, compile: bool, seed: int
) -> None:
    """With a learning rate that falls, and a batch of another shape, and state that is loaded, in between."""
    torch._dynamo.reset()
    learner, expected = make_learners(core, autocast, compile, learning_rate=0.01)
    cpu = Agent(learner.agent.spec)
    for update in range(6):
        batch = on_the_gpu(make_batch(cpu, columns=7 if update == 3 else 4))
        metrics, wanted = learner.update(batch), expected.update(batch)
        assert dict(metrics) == pytest.approx(dict(wanted), rel=2e-2, abs=1e-3)
        if update == 4:
            learner.load_state_dict(copy.deepcopy(expected.state_dict()))
        for p, q in zip(learner.agent.parameters(), expected.agent.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)
        learner.agent.load_state_dict(expected.agent.state_dict())  # or rounding would add up
    captured = learner._executor._captured.values()
    assert [graph._replay is not None for graph in captured] == [True, True]
    assert (learner.compiled_loss is not None) == compile, "it could not"


@needs_gpu
@pytest.mark.parametrize("capture", [True, False])
def test_a_gpu_skips_what_is_not_finite(capture: bool, seed: int) -> None:
    learner = make_learners("rdn")[0 if capture else 1]
    cpu = Agent(learner.agent.spec)
    good = [on_the_gpu(make_batch(cpu)) for _ in range(3)]
    learner.update(good[0])
    before = copy.deepcopy(learner.agent.state_dict()), copy.deepcopy(learner.state_dict())
    learner.update(nan_reward(good[1]))
    with pytest.raises(NonFiniteError, match="loss of update 2 is not finite: first in rewards"):
        learner.update(good[2])
    now = learner.agent.state_dict()
    assert all(torch.equal(x, now[name]) for name, x in before[0].items())
    squares = [state["square_avg"] for state in learner.state_dict()["optimizer"]["state"].values()]
    for x, y in zip(squares, before[1]["optimizer"]["state"].values(), strict=True):
        assert torch.equal(x, y["square_avg"])
    assert (learner.steps, learner.version) == (before[1]["steps"], 1)
    learner.update(good[1])
    learner.synchronize()
    assert learner.version == 2


@needs_gpu
@pytest.mark.parametrize("how", ["as it is", "captured", "compiled and captured"])
def test_an_update_waits_for_nothing(how: str, seed: int) -> None:
    """torch raises wherever the host would wait for the device."""
    torch._dynamo.reset()
    learner = make_learners("rdn", compile="compiled" in how)[0 if "captured" in how else 1]
    cpu = Agent(learner.agent.spec)
    weights = WeightStore(learner.agent)
    batches = [on_the_gpu(make_batch(cpu)) for _ in range(5)]
    for batch in batches[:2]:
        learner.update(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[2:]:
            learner.update(batch)
            weights.publish(learner.agent, learner.version)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_weights_are_pulled_whole_from_another_stream(seed: int) -> None:
    """While the stream that publishes is busy, those before are."""
    agent, copied = (Agent(AgentSpec((5,), 3, "rdn", "mlp")).cuda() for _ in range(2))
    store = WeightStore(agent)
    torch.cuda.synchronize()
    actor = torch.cuda.Stream()
    busy = torch.randn(8192, 8192, device="cuda")
    for version in range(1, 30):
        for _ in range(version % 3):
            busy = (busy @ busy).tanh()
        with torch.no_grad():
            for parameter in agent.parameters():
                parameter.fill_(version)
        store.publish(agent, version)
        if version % 4:
            with torch.cuda.stream(actor):
                pulled = store.pull(copied)
                values = torch.cat([p.detach().flatten() for p in copied.parameters()]).cpu()
            assert pulled == 0 or (values == pulled).all()
    torch.cuda.synchronize()
    assert store.pull(copied) == 29
