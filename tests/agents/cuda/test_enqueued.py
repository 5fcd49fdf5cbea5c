"""Updates enqueued and captured as on a GPU equal immediate ones: same weights, metrics and failures.

A tape of operations stands in for CUDA graphs (tape.py).
"""

from __future__ import annotations

import copy
import math
import pickle
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import tape
import torch
from random_batches import (
    CORES,
    A,
    B,
    T,
    assert_same,
    make_batch,
    make_clipping_learner,
    make_learner,
    memory,
    nan_reward,
)
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec, Learner, LearnerConfig, NonFiniteError, PartialUpdate
from deltabeast.agents.compiled import Compiled
from deltabeast.agents.cuda import enqueued, graphs
from deltabeast.agents.cuda.async_metrics import AsyncMetrics
from deltabeast.agents.cuda.enqueued import Enqueued
from deltabeast.agents.executor import EagerExecutor
from deltabeast.agents.make_executor import make_executor
from deltabeast.agents.reuse import minibatches
from deltabeast.kernels import Rule

pytestmark = pytest.mark.usefixtures("updates_in_pytorch")


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "record", tape.record)
    # the other forms look at the resets on a CPU
    monkeypatch.setattr(Rule, "in_pytorch", lambda rule, steps: rule.reference)


HALVES = ("compute_gradients", "apply_gradients")


def as_on_a_gpu(plain: Learner, capture: bool = True) -> Learner:
    """Copy a learner, with updates that are enqueued as if the CPU were a GPU."""
    twin = Learner(copy.deepcopy(plain.agent), plain.config, partial(Enqueued, capture=capture))
    twin.load_state_dict(copy.deepcopy(plain.state_dict()))
    return twin


def is_captured(twin: Learner) -> bool:
    captured = twin._executor._captured
    return {name for name, *_ in captured} == {*HALVES} and all(
        graph._replay is not None for graph in captured.values()
    )


@pytest.mark.parametrize("core", CORES)
def test_captured_updates_are_the_plain_ones(core: str, seed: int) -> None:
    """Bit for bit, with other inputs each time, gradients that are clipped, and a learning rate that ends."""
    plain, batch = make_clipping_learner(core, learning_rate=0.5)
    plain.steps = 10_000 - 3 * T * B
    twin = as_on_a_gpu(plain)
    rates = []
    for _ in range(5):
        expected, metrics = plain.update(batch), twin.update(batch)
        assert list(metrics) == list(expected)
        assert dict(metrics) == {name: pytest.approx(value, rel=1e-6) for name, value in expected.items()}
        assert_same(twin, plain)
        rates.append(metrics["learning_rate"])
        batch = make_batch(plain.agent)
    assert rates[0] > rates[1] > rates[2] > rates[3] == rates[4] == 0
    assert is_captured(twin)


def test_captured_minibatches_and_adam_are_the_plain_ones(seed: int) -> None:
    """With a clipped surrogate; the statistics of observations change between batches only, those of values
    in each update."""
    spec = AgentSpec((5,), A, core="lstm", stem="mlp", normalised=(0, 3), normalise_values=True)
    reuse = {"optimizer": "adam", "clip_ratio": 0.2, "vtrace_lambda": 0.9, "normalise_advantages": True}
    plain = Learner(Agent(spec), LearnerConfig(total_steps=10_000, **reuse))
    twin = as_on_a_gpu(plain)
    for number in range(3):
        for part in minibatches(make_batch(plain.agent), 2, 2, (seed, number)):
            expected, metrics = plain.update(part), twin.update(part)
            assert dict(metrics) == {name: pytest.approx(x, rel=1e-6) for name, x in expected.items()}
            assert_same(twin, plain)
    assert is_captured(twin) and plain.steps == 3 * T * B and plain.version == 12


@pytest.mark.parametrize("form", [EagerExecutor, Enqueued])
def test_compiled_halves_make_the_plain_update(form: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """From the first one on: neither the trial run that compiles nor the capture's may change a weight."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    plain = make_learner("rdn")
    twin = Learner(copy.deepcopy(plain.agent), plain.config, lambda one: form(one, Compiled(one)))
    for _ in range(3):
        batch = make_batch(plain.agent)
        plain.update(batch)
        twin.update(batch)
        assert_same(twin, plain)
    assert form is EagerExecutor or is_captured(twin)


def test_a_gpu_enqueues_and_a_cpu_does_not() -> None:
    for device, kind in (("cpu", EagerExecutor), ("cuda", Enqueued)):
        learner = SimpleNamespace(finite=SimpleNamespace(device=torch.device(device)))
        assert type(make_executor(learner)) is kind  # type: ignore[arg-type]


@pytest.mark.parametrize("capture", [True, False])
def test_gradients_may_be_added_to_between_the_halves(capture: bool, seed: int) -> None:
    """In place or not, as learners that share a batch do; and the cut of gradients at every step."""
    plain = make_learner("rdn", bptt="per_step")
    twin = as_on_a_gpu(plain, capture)
    for update in range(4):
        batch = make_batch(plain.agent)
        others = [torch.randn_like(p) for p in plain.agent.parameters()]
        for one in (plain, twin):
            part = one.backward(batch)
            for parameter, other in zip(one.agent.parameters(), others, strict=True):
                if update % 2:
                    parameter.grad += other
                else:
                    parameter.grad = parameter.grad + other
            one.step([part, part])
        assert_same(twin, plain)


@pytest.mark.parametrize("capture", [True, False])
def test_a_batch_of_another_shape_is_one_too(capture: bool, seed: int) -> None:
    plain = make_learner("delta_net")
    twin = as_on_a_gpu(plain, capture)
    for columns in (B, B + 3, B, 1, B):
        batch = make_batch(plain.agent, columns=columns)
        plain.update(batch)
        twin.update(batch)
        assert_same(twin, plain)


def infinite_logit(batch: Any) -> Any:
    logits = batch.behavior_logits.clone()
    logits[1, 1] = math.inf
    return replace(batch, behavior_logits=logits, forced=torch.zeros_like(batch.forced))


def nan_state(batch: Any) -> Any:
    return replace(
        batch, state=(batch.state[0], torch.full_like(batch.state[1], math.nan)), done=batch.done & False
    )


NOTICED: dict[str, Callable[[Learner, Mapping[str, float], Any], object]] = {
    "at the next update": lambda one, metrics, batch: one.update(batch),
    "at a look at its metrics": lambda one, metrics, batch: metrics["entropy"],
    "before it is saved": lambda one, metrics, batch: one.state_dict(),
    "when it is waited for": lambda one, metrics, batch: one.synchronize(),
}


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("noticed", NOTICED)
@pytest.mark.parametrize(
    ("poison", "name"),
    [(nan_reward, "rewards"), (infinite_logit, "behaviour logits"), (nan_state, "initial state 1")],
)
def test_what_is_not_finite_changes_nothing_and_is_named(
    poison: Callable[[Any], Any], name: str, noticed: str, capture: bool, seed: int
) -> None:
    """Nor does the update after it; those after the failure go on as if neither had been."""
    plain = make_learner()
    twin = as_on_a_gpu(plain, capture)
    good = [make_batch(plain.agent) for _ in range(4)]
    for batch in good[:2]:
        plain.update(batch)
        twin.update(batch)
    metrics = twin.update(poison(good[2]))
    for x, y in zip(memory(twin), memory(plain), strict=True):
        assert torch.equal(x, y)
    with pytest.raises(NonFiniteError, match=f"update 3 is not finite: first in {name}"):
        NOTICED[noticed](twin, metrics, good[3])
    assert_same(twin, plain)
    for batch in good[2:]:
        plain.update(batch)
        twin.update(batch)
    twin.synchronize()
    assert_same(twin, plain)


@pytest.mark.parametrize("capture", [True, False])
def test_a_gradient_that_is_not_finite_is_named(capture: bool, seed: int) -> None:
    plain = make_learner()
    twin = as_on_a_gpu(plain, capture)
    factor = torch.ones(())
    twin.agent.policy.weight.register_hook(lambda gradient: gradient * factor)
    batch = make_batch(plain.agent)
    plain.update(batch)
    twin.update(batch)
    factor.fill_(math.nan)
    twin.update(batch)
    with pytest.raises(NonFiniteError, match=r"gradient norm of update 2 .* gradient of policy\.weight"):
        twin.update(batch)
    assert_same(twin, plain)


@pytest.mark.parametrize("capture", [True, False])
def test_an_infinite_loss_with_finite_gradients_changes_nothing(
    capture: bool, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    plain = make_learner()
    twin = as_on_a_gpu(plain, capture)
    more, loss = torch.zeros(()), twin.loss

    def overflows(batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        value, metrics = loss(batch)
        return value + more, {**metrics, "total_loss": value.detach() + more}

    monkeypatch.setattr(twin, "compiled_loss", overflows)
    batch = make_batch(plain.agent)
    plain.update(batch)
    twin.update(batch)
    more.fill_(math.inf)
    twin.update(batch)
    with pytest.raises(NonFiniteError, match="loss of update 2 is not finite: first in total_loss"):
        twin.synchronize()
    assert_same(twin, plain)


def test_a_failure_that_does_not_repeat_itself_is_one(seed: int) -> None:
    twin = as_on_a_gpu(make_learner(), capture=False)
    before = copy.deepcopy(memory(twin))
    part = twin.backward(make_batch(twin.agent))
    twin.agent.policy.bias.grad[0] = math.nan
    twin.step([part])
    with pytest.raises(NonFiniteError, match="update 1 was not finite, but its repetition is"):
        twin.synchronize()
    for x, y in zip(memory(twin), before, strict=False):
        assert torch.equal(x, y)


@pytest.mark.parametrize("capture", [True, False])
def test_checkpoints_go_both_ways(capture: bool, seed: int) -> None:
    """Between a CPU and a GPU; a graph that was captured before follows what is loaded."""
    plain = make_learner("rdn")
    twin = as_on_a_gpu(plain, capture)
    twin.update(make_batch(plain.agent))
    for source, target in ((twin, plain), (plain, twin), (twin, plain)):
        for _ in range(2):
            source.update(make_batch(plain.agent))
        target.load_state_dict(pickle.loads(pickle.dumps(source.state_dict())))
        target.agent.load_state_dict(source.agent.state_dict())
        batch = make_batch(plain.agent)
        plain.update(batch)
        twin.update(batch)
        assert_same(twin, plain)
    assert plain.state_dict()["optimizer"]["param_groups"] == twin.state_dict()["optimizer"]["param_groups"]


def test_an_update_is_looked_at_when_the_next_is_under_way(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    twin = as_on_a_gpu(make_learner())
    log: list[str] = []
    send = enqueued.send

    def logged(scalars: Mapping[str, Tensor]) -> AsyncMetrics:
        late = send(scalars)
        if "grad_norm" not in scalars:
            return late
        number = twin.version + 1
        log.append(f"enqueued {number}")

        def read() -> Mapping[str, float]:
            log.append(f"looked at {number}")
            return late

        return AsyncMetrics(read)

    monkeypatch.setattr(enqueued, "send", logged)
    for _ in range(3):
        twin.update(make_batch(twin.agent))
    assert log == ["enqueued 1", "enqueued 2", "looked at 1", "enqueued 3", "looked at 2"]
    twin.synchronize()
    twin.synchronize()
    assert log[5:] == ["looked at 3"]


def test_metrics_keep_no_batch(seed: int) -> None:
    """The log holds on to them for seconds, and a batch is 50 MB."""
    twin = as_on_a_gpu(make_learner())
    batches = [make_batch(twin.agent) for _ in range(3)]
    known = [weakref.ref(batch) for batch in batches]
    kept = [twin.update(batches.pop(0)) for _ in range(3)]
    assert [batch() is None for batch in known] == [True, True, False]
    assert kept[0]["policy_lag"] == 0
    part = twin.backward(make_batch(twin.agent))
    sent = pickle.loads(pickle.dumps((part, kept[2])))
    assert type(sent[0]) is PartialUpdate and type(sent[0].metrics) is type(sent[1]) is dict
    assert sent == (replace(part, metrics=dict(part.metrics)), dict(kept[2]))


def test_what_cannot_be_captured_runs_without_a_graph(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    plain = make_learner("feedforward")
    twin = as_on_a_gpu(plain)
    for one in (plain, twin):
        unroll = one.agent.core.unroll

        def looks(x: Tensor, *rest: Any, unroll: Any = unroll) -> Any:
            assert float(x.detach().sum()) < math.inf
            return unroll(x, *rest)

        monkeypatch.setattr(one.agent.core, "unroll", looks)
    with pytest.warns(UserWarning, match="no CUDA graph can hold this agent.*waits for the device"):
        twin.update(batch := make_batch(plain.agent))
    plain.update(batch)
    assert_same(twin, plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            twin.update(batch := make_batch(plain.agent))
            plain.update(batch)
            assert_same(twin, plain)


@pytest.mark.parametrize("bptt", ["full", "per_step"])
@pytest.mark.parametrize("core", CORES)
def test_no_number_is_read_by_the_host(core: str, bptt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's meta device nothing can be: only shapes are computed."""
    monkeypatch.undo()  # the kernels that a device gets
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which meta does not know
    plain = make_learner(core, bptt=bptt)
    batch = make_batch(plain.agent)
    one = Learner(plain.agent.to("meta"), plain.config)
    metrics, gradients = one.compute_gradients(batch.map(lambda dim, x: x.to("meta")))
    some = [gradient for gradient in gradients if gradient is not None]
    norm = torch.nn.utils.get_total_norm(some)
    one.apply_gradients(some, norm)
    assert {x.device.type for x in (norm, *metrics.values(), *memory(one))} == {"meta"}
    with pytest.raises(RuntimeError, match="meta"):
        float(norm)
