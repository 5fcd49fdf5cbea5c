"""What every rule keeps to on each of its backends, as checks that take a `Rule`: one of your own, too."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, assert_near, make_reset
from fastweight_rules import RATES, assert_as_good_as_reference, make_inputs, run, without_vanishing
from torch import Tensor

from deltabeast.kernels import Rule

DTYPE = {"native": torch.float32}  # of the backends that take no float64


def check_equals_reference(rule: Rule, steps: int, pattern: str, backend: str, **kinds: str) -> None:
    """Outputs and all gradients, float64 to 12 digits where the backend takes it, and float32."""
    inputs = make_inputs(rule, steps, **kinds)
    reset = make_reset(pattern, steps, inputs[0].shape[1])
    want = run(rule, inputs, reset, "reference", torch.float64)
    if backend not in DTYPE:
        got = run(rule, inputs, reset, backend, torch.float64)
        for name in without_vanishing(want, got, 1e-12):
            assert_near(name, got[name], want[name], 1e-12)
    got = run(rule, inputs, reset, backend, torch.float32)
    assert all(tensor.dtype is torch.float32 for tensor in got.values())
    assert_as_good_as_reference(rule, inputs, reset, got, want)


def check_without_gradients(rule: Rule, steps: int, backend: str) -> None:
    """Actors take another path than learners. It gives the same, and leaves the state it was given alone."""
    inputs = make_inputs(rule, steps)
    given = [x.to(DTYPE.get(backend, x.dtype), copy=True) for x in inputs]
    for pattern in RESET_PATTERNS:
        reset = make_reset(pattern, steps, inputs[0].shape[1])
        want = rule(*inputs, reset, backend="reference")
        before = [x.clone() for x in given]
        with torch.no_grad():
            got = rule(*given, reset, backend=backend)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_near(f"output {i}", a, b, 2e-5 if backend in DTYPE else 1e-12)
        assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def check_inputs_are_left_alone(rule: Rule, backend: str) -> None:
    inputs = make_inputs(rule, 5)
    before = [x.clone() for x in inputs]
    run(rule, inputs, make_reset("random", 5, inputs[0].shape[1]), backend, DTYPE.get(backend, torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def check_broken_state_ends_with_its_episode(
    rule: Rule, backend: str, value: float, grad: bool, steps: int, shows: bool = True
) -> None:
    """nan or inf in row 0 of the states reaches neither other rows, nor other episodes, nor gradients.

    `shows`: such a state breaks the outputs of its own episode.
    """
    inputs = [x.float().requires_grad_(grad) for x in make_inputs(rule, steps)]
    with torch.no_grad():
        for i in rule.shapes.states():
            inputs[i][0].view(-1)[0] = value
    end = min(3, steps - 1)
    reset = torch.zeros(steps, inputs[0].shape[1], dtype=torch.bool)
    reset[end, 0] = True
    outputs = rule(*inputs, reset, backend=backend)
    assert outputs[0][end:].isfinite().all()
    assert all(out.isfinite().all() for out in outputs[1:])
    if end and shows:
        assert not outputs[0][0, 0].isfinite().all()
        assert outputs[0][:, 1:].isfinite().all()
    if shows:  # no episode ends: still broken
        last = rule(*inputs, torch.zeros_like(reset), backend=backend)[1]
        assert not last[0].isfinite().all() and last[1:].isfinite().all()
    if grad:
        reset[0, 0] = True  # now the broken numbers are never read
        outputs = rule(*inputs, reset, backend=backend)
        grads = torch.autograd.grad(sum(out.sum() for out in outputs), inputs)
        assert all(g.isfinite().all() for g in grads)


def check_no_gradient_crosses_a_reset(rule: Rule, backend: str) -> None:
    inputs = [x.to(DTYPE.get(backend, x.dtype)).requires_grad_() for x in make_inputs(rule, 9)]
    reset = make_reset("none", 9, inputs[0].shape[1])
    reset[4] = True
    y, *_ = rule(*inputs, reset, backend=backend)
    loss = (y[4:] * torch.randn_like(y[4:])).sum()  # weighted: where y is a softmax its plain sum is constant
    grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    for grad, dimensions in zip(grads, rule.shapes.dimensions, strict=False):
        if "T" in dimensions:
            assert not grad[:4].any()
    assert grads[0][4:].any()
    assert not any(grads[i].any() for i in rule.shapes.states())


def check_no_second_derivative_is_wrong(rule: Rule, backend: str) -> None:
    """By `torch.autograd.grad`, whose way through the graph is not that of `backward`."""
    inputs = [x.to(DTYPE.get(backend, x.dtype)).requires_grad_() for x in make_inputs(rule, 4)]
    reset = make_reset("none", 4, inputs[0].shape[1])
    loss = rule(*inputs, reset, backend=backend)[0].square().sum()

    def twice() -> None:
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    with pytest.raises(RuntimeError):
        twice()


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        return None


def check_no_gradient_is_given(rule: Rule, backend: str) -> None:
    inputs = [x.to(DTYPE.get(backend, x.dtype)).requires_grad_() for x in make_inputs(rule, 4)]
    y = rule(*inputs, make_reset("none", 4, inputs[0].shape[1]), backend=backend)[0]
    _Drop.apply(y).sum().backward()
    assert all(x.grad is None or not x.grad.any() for x in inputs)


def check_broken_rates_end_at_their_episode(rule: Rule, backend: str) -> None:
    rates = [i for i, name in enumerate(rule.shapes.names) if name in RATES]
    if not rates:
        return
    inputs = [x.to(DTYPE.get(backend, x.dtype)).requires_grad_() for x in make_inputs(rule, 5)]
    reset = make_reset("none", 5, inputs[0].shape[1])
    reset[2] = True
    with torch.no_grad():
        for i in rates:
            inputs[i][2:] = float("nan")
    y = rule(*inputs, reset, backend=backend)[0]
    grads = torch.autograd.grad(y[:2].sum(), inputs, allow_unused=True, materialize_grads=True)
    for grad, dimensions in zip(grads, rule.shapes.dimensions, strict=False):
        assert (grad[:2] if "T" in dimensions else grad).isfinite().all()


def check_autocast_changes_nothing(rule: Rule, steps: int, backend: str) -> None:
    inputs = make_inputs(rule, steps)
    reset = make_reset("random", steps, inputs[0].shape[1])
    want = run(rule, inputs, reset, backend, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(rule, inputs, reset, backend, torch.float32)
    # the backward pass of the reference is autograd's own
    plain = backend == "reference" or (backend == "auto" and rule.in_pytorch(steps) is rule.reference)
    for name in want:
        if not plain or name.startswith("output"):
            assert torch.equal(got[name], want[name]), name


def agreeing(rule: Rule, sizes: dict[str, int]) -> list[Tensor]:
    """Zeros of shapes that agree, reset last."""
    *shapes, reset = rule.shapes.sized(sizes)
    return [*(torch.zeros(shape) for shape in shapes), torch.zeros(reset, dtype=torch.bool)]


def refusal(rule: Rule, backend: str, inputs: list[Tensor]) -> str:
    """The one line that refuses these inputs."""
    with pytest.raises(ValueError, match=rf"\A{rule.name}: [^\n]+\Z") as caught:
        rule(*inputs, backend=backend)
    return str(caught.value)


def check_every_size_counts(rule: Rule, backend: str, sizes: dict[str, int]) -> None:
    """One less, one more, and 1, which PyTorch would stretch; `sizes` are at least 2, and no two the same."""
    inputs = agreeing(rule, sizes)
    for i, (name, x) in enumerate(zip(rule.shapes.names, inputs, strict=True)):
        for at, size in product(range(x.dim()), (-1, 1, None)):
            shape = list(x.shape)
            shape[at] = 1 if size is None else shape[at] + size
            wrong = torch.zeros(shape, dtype=x.dtype)
            text = refusal(rule, backend, [*inputs[:i], wrong, *inputs[i + 1 :]])
            assert f"{name} {shape}" in text or f"{name} is {shape}; " in text


def check_dimensions_are_counted(rule: Rule, backend: str, sizes: dict[str, int]) -> None:
    inputs = agreeing(rule, sizes)
    for i, x in enumerate(inputs):
        number = x.sum() > 0 if x.dtype is torch.bool else x.sum()
        for wrong in (x.unsqueeze(-1), x.unsqueeze(0), x[..., 0], number):
            assert str(list(wrong.shape)) in refusal(rule, backend, [*inputs[:i], wrong, *inputs[i + 1 :]])
    assert refusal(rule, backend, inputs[:-1]).endswith(f"reset, not {len(inputs) - 1} inputs")


def check_nothing_is_empty(rule: Rule, backend: str, sizes: dict[str, int]) -> None:
    """Without a step no output is the last. Rows, heads and their sizes: none at all compute nothing."""
    for letter in rule.shapes.letters:
        text = refusal(rule, backend, agreeing(rule, sizes | {letter: 0}))
        assert text.endswith("; every size must be at least 1") and "0" in text


def check_kinds_and_devices_agree(rule: Rule, backend: str, sizes: dict[str, int]) -> None:
    inputs = agreeing(rule, sizes)
    for i, x in enumerate(inputs):
        elsewhere = [x.to("meta")] if i else []  # the first device is the one to agree with
        for wrong in (x.double(), x.half(), x.byte(), *elsewhere):
            text = refusal(rule, backend, [*inputs[:i], wrong, *inputs[i + 1 :]])
            assert f"{wrong.dtype}" in text or "on meta" in text
