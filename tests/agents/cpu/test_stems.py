"""The stem's projection: stepped, cached, and taken from the cache."""

from __future__ import annotations

import copy

import pytest
import torch
from fastweight_helpers import integer
from torch import Tensor, nn

from deltabeast.agents import Agent, AgentSpec
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.agents.cpu.inference import FastInference
from deltabeast.agents.cpu.stems import core_input, new_projection_cache, project
from deltabeast.agents.stems import VectorStem
from deltabeast.kernels.native.forward_cache import ForwardCache
from deltabeast.kernels.native.weight_transforms import cached_transform


def stem_of(layer: nn.Linear) -> VectorStem:
    """A stem with this projection, and without anything that would change its output."""
    stem = VectorStem(1, 1)
    stem.fc2 = layer
    return stem


def step(stem: VectorStem, x: Tensor, cache: ForwardCache | None) -> Tensor:
    """The projection of a step, rectified, by C."""
    y = core_input(stem, x, torch.zeros(len(x)), cache)
    assert y is not None
    return y[:, :-1]


def stepped(layer: nn.Linear, x: Tensor) -> ForwardCache:
    cache = new_projection_cache(stem_of(layer), *x.shape[:2])
    assert cache is not None
    with torch.no_grad():
        for each in x:
            step(stem_of(layer), each, cache)
    return cache


def layer_and_inputs(steps: int, rows: int, bias: bool = True) -> tuple[nn.Linear, Tensor]:
    layer = nn.Linear(integer(1, 70), integer(1, 40), bias)
    return layer, torch.randn(steps, rows, layer.in_features)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (4, 3), (3, 16), (2, 19)])
def test_values_and_gradients_are_those_of_the_layer(steps: int, rows: int, bias: bool, seed: int) -> None:
    layer, x = layer_and_inputs(steps, rows, bias)
    cache, exact = stepped(layer, x), copy.deepcopy(layer).double()
    weigh = torch.linspace(-1, 2, layer.out_features)
    given, wanted = x.flatten(0, 1).requires_grad_(), x.flatten(0, 1).double().requires_grad_()
    y, want = project(stem_of(layer), given, cache), exact(wanted).relu()
    assert y is not None
    torch.testing.assert_close(y.double(), want, rtol=1e-4, atol=1e-4)
    got = torch.autograd.grad((y * weigh).sum(), [given, *layer.parameters()])
    for g, w in zip(
        got, torch.autograd.grad((want * weigh).sum(), [wanted, *exact.parameters()]), strict=True
    ):
        torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=1e-4)


def test_values_are_taken_from_the_cache(seed: int) -> None:
    layer, x = layer_and_inputs(4, 3)
    cache = stepped(layer, x)
    cache.tensors[0].add_(100)
    y = project(stem_of(layer), x.flatten(0, 1), cache)
    assert y is not None and y.min() > 50


def test_what_the_cache_has_not_is_left_to_the_plain_code(seed: int) -> None:
    layer, x = layer_and_inputs(4, 3)
    cache, short, other = stepped(layer, x), stepped(layer, x[:3]), copy.deepcopy(layer)
    flat, stem = x.flatten(0, 1), stem_of(layer)
    assert project(stem, flat, cache) is not None
    assert project(stem, flat, short) is None
    empty = new_projection_cache(stem, 4, 3)
    assert empty is not None and project(stem, flat, empty) is None
    assert project(stem_of(other), flat, cache) is None
    with torch.no_grad():
        layer.weight.mul_(2)
    assert project(stem, flat, cache) is None


@torch.no_grad()
def test_steps_without_room_are_steps_all_the_same(seed: int) -> None:
    layer, x = layer_and_inputs(1, 3)
    for rows, room in ((3, 1), (2, 0)):
        cache = new_projection_cache(stem_of(layer), 1, 3)
        assert cache is not None
        for number in range(2):
            each = x[0, :rows] + number
            torch.testing.assert_close(step(stem_of(layer), each, cache), layer(each).relu())
        assert cache.t == room
        assert not room or torch.allclose(cache.tensors[0][0], layer(x[0]), atol=1e-5)


def test_a_layer_that_is_watched_is_left_to_the_plain_code(seed: int) -> None:
    for name in ("register_full_backward_hook", "register_full_backward_pre_hook", "register_forward_hook"):
        layer, x = layer_and_inputs(4, 3)
        cache, stem = stepped(layer, x), stem_of(layer)
        getattr(layer, name)(lambda module, *given: None)
        assert new_projection_cache(stem, 4, 3) is None and project(stem, x.flatten(0, 1), cache) is None
        with torch.no_grad():
            assert core_input(stem, x[0], torch.zeros(3), None) is None


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_layer_is_left_to_the_plain_code_while_all_are_watched(kind: str, seed: int) -> None:
    stem = stem_of(layer_and_inputs(4, 3)[0])
    with getattr(nn.modules.module, f"register_module_{kind}_hook")(lambda module, *given: None):
        assert new_projection_cache(stem, 4, 3) is None
    assert new_projection_cache(stem, 4, 3) is not None


def test_a_stem_of_ones_own_is_left_to_the_plain_code(seed: int) -> None:
    class Own(VectorStem):
        pass

    stem = Own(5, 7)
    assert new_projection_cache(stem, 4, 3) is None
    with torch.no_grad():
        assert core_input(stem, torch.randn(3, 7), torch.zeros(3), None) is None


def test_weights_are_transformed_once_an_unroll() -> None:
    """And anew for the next: meanwhile another process may have changed them, which no version tells."""
    agent = Agent(AgentSpec((6,), 3, "lstm", "mlp"))
    weight, inference = agent.policy.weight, FastInference(FastAgent(agent), torch.Generator())

    def twice() -> Tensor:
        return cached_transform(weight, "twice", lambda: 2 * weight.detach())

    with inference.constant_weights():
        before = twice()
        assert twice() is before
    weight.data.add_(1)
    with inference.constant_weights():
        assert torch.equal(twice(), 2 * weight) and not torch.equal(twice(), before)


def test_a_hook_of_all_modules_is_heard(seed: int) -> None:
    agent, seen = Agent(AgentSpec((6,), 3, "delta_net", "mlp")), set()
    inputs = torch.randn(2, 6), torch.zeros(2), torch.ones(2, dtype=torch.bool), agent.initial_state(2)
    hook = nn.modules.module.register_module_forward_hook(lambda module, given, result: seen.add(module))
    with hook, torch.no_grad():
        FastAgent(agent).act(*inputs, greedy=True)
    assert seen >= {agent.policy, agent.baseline, agent.stem.fc2, agent.core.layers[1].out}


@pytest.mark.parametrize("name", ["policy", "stem.fc2", "core.layers.0.out", "core.input_proj"])
def test_a_forward_that_somebody_replaced_is_run(name: str, seed: int) -> None:
    agent = Agent(AgentSpec((6,), 3, "delta_net", "mlp"))
    module = agent.get_submodule(name)
    forward, calls = module.forward, []
    module.forward = lambda x: calls.append(x) or -forward(x)  # type: ignore[method-assign]
    inputs = torch.randn(2, 6), torch.zeros(2), torch.ones(2, dtype=torch.bool), agent.initial_state(2)
    with torch.no_grad():
        found, _ = FastAgent(agent).act(*inputs, greedy=True)
        assert calls
        expected, _ = agent.act(*inputs, greedy=True)
    torch.testing.assert_close(found.policy_logits, expected.policy_logits)
