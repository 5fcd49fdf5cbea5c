"""The stem's projection: stepped, kept, and taken from what was kept."""

from __future__ import annotations

import copy

import pytest
import torch
from fastweight_helpers import integer
from torch import Tensor, nn

from deltabeast.agents.projection import new_kept, project
from deltabeast.cores import Kept


def stepped(layer: nn.Linear, x: Tensor) -> Kept:
    kept = new_kept(*x.shape[:2], layer)
    assert kept is not None
    with torch.no_grad():
        for step in x:
            project(step, layer, kept)
    return kept


def layer_and_inputs(steps: int, rows: int, bias: bool = True) -> tuple[nn.Linear, Tensor]:
    layer = nn.Linear(integer(1, 70), integer(1, 40), bias)
    return layer, torch.randn(steps, rows, layer.in_features)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (4, 3), (3, 16), (2, 19)])
def test_values_and_gradients_are_those_of_the_layer(steps: int, rows: int, bias: bool, seed: int) -> None:
    layer, x = layer_and_inputs(steps, rows, bias)
    kept, exact = stepped(layer, x), copy.deepcopy(layer).double()
    weigh = torch.linspace(-1, 2, layer.out_features)
    given, wanted = x.flatten(0, 1).requires_grad_(), x.flatten(0, 1).double().requires_grad_()
    for known in (kept, None):
        y, want = project(given, layer, known), exact(wanted)
        torch.testing.assert_close(y.double(), want, rtol=1e-4, atol=1e-4)
        got = torch.autograd.grad((y * weigh).sum(), [given, *layer.parameters()])
        for g, w in zip(
            got, torch.autograd.grad((want * weigh).sum(), [wanted, *exact.parameters()]), strict=True
        ):
            torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=1e-4)


def test_values_are_taken_from_what_was_kept(seed: int) -> None:
    layer, x = layer_and_inputs(4, 3)
    kept = stepped(layer, x)
    kept.tensors[0].add_(100)
    assert project(x.flatten(0, 1), layer, kept).min() > 50


def test_what_is_not_known_is_computed_anew(seed: int) -> None:
    layer, x = layer_and_inputs(4, 3)
    kept, short, other = stepped(layer, x), stepped(layer, x[:3]), copy.deepcopy(layer)
    flat = x.flatten(0, 1)
    torch.testing.assert_close(project(flat, layer, short), layer(flat))
    torch.testing.assert_close(project(flat, layer, new_kept(4, 3, layer)), layer(flat))
    with torch.no_grad():
        other.weight.mul_(2)
    torch.testing.assert_close(project(flat, other, kept), other(flat))
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(project(flat, layer, kept), layer(flat))


@torch.no_grad()
def test_steps_without_room_are_steps_all_the_same(seed: int) -> None:
    layer, x = layer_and_inputs(1, 3)
    for rows, room in ((3, 1), (2, 0)):
        kept = new_kept(1, 3, layer)
        assert kept is not None
        for number in range(2):
            step = x[0, :rows] + number
            torch.testing.assert_close(project(step, layer, kept), layer(step))
        assert kept.t == room
        assert not room or torch.equal(kept.tensors[0][0], project(x[0], layer))


def test_gradients_of_a_layer_that_is_watched_are_told(seed: int) -> None:
    for name in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        layer, x = layer_and_inputs(4, 3)
        kept, told = stepped(layer, x), []
        getattr(layer, name)(lambda module, *gradients, told=told: told.append(module))
        project(x.flatten(0, 1).requires_grad_(), layer, kept).sum().backward()
        assert told == [layer]


def test_a_layer_that_is_watched_is_called(seed: int) -> None:
    layer, x = layer_and_inputs(4, 3)
    kept = stepped(layer, x)
    layer.register_forward_hook(lambda module, given, result: 2 * result)
    assert new_kept(4, 3, layer) is None
    flat = x.flatten(0, 1)
    with torch.no_grad():
        torch.testing.assert_close(project(x[0], layer), layer(x[0]))
        torch.testing.assert_close(project(flat, layer, kept), layer(flat))
