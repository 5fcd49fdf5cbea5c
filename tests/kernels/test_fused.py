"""What the fused kernels owe as operators, Triton's and those in C: strides, autocast, `torch.compile`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from fastweight_helpers import assert_near, make_reset
from fastweight_rules import RULES, Inputs, assert_as_good_as_reference, make_inputs, marks_of, run
from torch import Tensor

from deltabeast.kernels import Rule, rules
from deltabeast.kernels.reference import KERNELS

pytestmark = [
    # NumPy's, from the interpreter, of numbers that are broken on purpose.
    pytest.mark.filterwarnings("ignore:(invalid value|overflow|All-NaN):RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),
]

DEVICE = {"native": "cpu"}
if find_spec("triton"):
    DEVICE["triton"] = "cuda" if torch.cuda.is_available() else "cpu"
CASES = [(backend, rule) for backend in DEVICE for rule in RULES if backend in rule.backends]
SLOW = (rules.LSTM, rules.GRU)
SHORT = [
    (backend, rule)
    for backend, rule in CASES
    if backend == "native" or rule in (rules.DELTA_RULE, rules.MOMENTUM_DELTA, *SLOW)
]
"""what shows an operator: one serves both backends, and Triton's part in it is alike for all rules"""
BOUNDED = (rules.RECURRENT_DELTA, *SLOW)  # by tanh and sigmoid, inside
TOLERANCE = 1e-5  # ten times that for one row


def cases(
    some: Iterable[tuple[str, Rule]], short: Collection[tuple[str, Rule]] = CASES
) -> pytest.MarkDecorator:
    made = [
        pytest.param(
            *case,
            marks=marks_of(case[1]) if case in short else pytest.mark.long,
            id=f"{case[0]}-{case[1].name}",
        )
        for case in some
    ]
    return pytest.mark.parametrize(("backend", "rule"), made)


def on_device(backend: str, inputs: Inputs) -> list[Tensor]:
    return [x.to(DEVICE[backend], torch.float32) for x in inputs]


@cases(case for case in CASES if case[1] in BOUNDED)
def test_large_pre_activations(backend: str, rule: Rule, seed: int) -> None:
    """Where exp would overflow or round to zero.

    Rounding sums of 160 alone costs two digits, a gate that is about to tip more, and some gradients all.
    """
    inputs = make_inputs(rule, 5, most=1)
    first = len(inputs) - 6 if rule is rules.RECURRENT_DELTA else 1
    large = tuple(40 * x if i < first or i == len(inputs) - 1 else x for i, x in enumerate(inputs))
    large = tuple(x.float().double() for x in large)
    reset = make_reset("none", 5, inputs[0].shape[1])
    got = run(rule, large, reset, backend, torch.float32, DEVICE[backend])
    single = run(rule, large, reset, "reference", torch.float32)
    double = run(rule, large, reset, "reference", torch.float64)
    outputs = {name: x for name, x in double.items() if name.startswith("output")}
    assert_as_good_as_reference(rule, large, reset, got, outputs)
    scale = max(1.0, *(float(tensor.abs().max()) for tensor in single.values()))
    for name in got:
        torch.testing.assert_close(got[name], single[name], rtol=3e-4, atol=3e-5 * scale)


@cases(case for case in CASES if case[1] in BOUNDED)
def test_small_pre_activations(backend: str, rule: Rule, seed: int) -> None:
    """Near zero, tanh has as many digits as its argument, and so have the gradients that multiply it."""
    inputs = make_inputs(rule, 2, most=1)
    named = dict(zip(rule.shapes.names, inputs, strict=False))
    small = {"v", "W", "y0", "gates", "bias", "h0", "c0"}
    inputs = tuple((1e-4 if name in small else 1) * x for name, x in named.items())
    reset = make_reset("none", 2, inputs[0].shape[1])
    want = run(rule, inputs, reset, "reference", torch.float64)
    got = run(rule, inputs, reset, backend, torch.float32, DEVICE[backend])
    for name in want:
        assert_near(name, got[name], want[name], 1e-5)


@cases(CASES)
def test_takes_any_size(backend: str, rule: Rule, seed: int) -> None:
    """Odd ones, and ones below any block: what pads them never shows."""
    for _ in range(3):
        inputs = make_inputs(rule, 2, most=1, sizes=(1, 3, 15, 17, 33))
        reset = make_reset("random", 2, inputs[0].shape[1])
        want = run(rule, inputs, reset, "reference", torch.float64)
        got = run(rule, inputs, reset, backend, torch.float32, DEVICE[backend])
        assert_as_good_as_reference(rule, inputs, reset, got, want)


@cases(CASES)
def test_takes_any_strides(backend: str, rule: Rule, seed: int) -> None:
    """Inputs that are views of one projection, or transposed, or expanded."""
    inputs = make_inputs(rule, 2, most=2)
    reset = make_reset("random", 2, inputs[0].shape[1])
    want = run(rule, inputs, reset, backend, torch.float32, DEVICE[backend])
    leaves = [x.requires_grad_() for x in on_device(backend, inputs)]
    views = []
    for i, x in enumerate(leaves):
        part = torch.cat((torch.full_like(x, torch.nan), x), -1)[..., x.shape[-1] :]
        swapped = x.transpose(0, min(1, x.dim() - 1)).contiguous().transpose(0, min(1, x.dim() - 1))
        spread = torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0]
        views.append((part, swapped, spread)[(i + seed) % 3])
    wide = torch.stack((~reset, reset), -1).to(DEVICE[backend])
    outputs = rule(*views, wide[..., 1], backend=backend)
    for i, out in enumerate(outputs):
        assert_near(f"output {i}", out.detach().cpu(), want[f"output {i}"], 1e-6)
    leaves = [x.detach().requires_grad_() for x in leaves]
    y, *_ = rule(*leaves, reset.to(DEVICE[backend]), backend=backend)
    one = torch.ones((), device=DEVICE[backend])
    expanded = torch.autograd.grad(y, leaves, one.expand_as(y), retain_graph=True, allow_unused=True)
    dense = torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
    for a, b in zip(expanded, dense, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@cases(CASES)
def test_gradient_of_the_state_alone(backend: str, rule: Rule, seed: int) -> None:
    """Outputs that no loss uses have no gradient, which is not a zero one."""
    inputs = make_inputs(rule, 2, most=2)
    reset = make_reset("none", 2, inputs[0].shape[1])
    weights = [
        torch.randn(out.shape, dtype=torch.float64) for out in rule(*inputs, reset, backend="reference")
    ]
    results = []
    both = (backend, torch.float32, DEVICE[backend]), ("reference", torch.float64, "cpu")
    for name, dtype, device in both:
        leaves = [x.to(device, dtype, copy=True).requires_grad_() for x in inputs]
        outputs = rule(*leaves, reset.to(device), backend=name)
        for out, weight in zip(outputs, weights, strict=True):
            loss = (out * weight.to(out)).sum()
            grads = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
            results.append(
                [torch.zeros(x.shape) if g is None else g for x, g in zip(inputs, grads, strict=True)]
            )
    half = len(results) // 2
    for got, want in zip(results[:half], results[half:], strict=True):
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            # At some seeds one row of a Delta LSTM A is off by 2e-4, in C as in Triton.
            assert_near(f"gradient {i}", a.cpu(), b, 5 * TOLERANCE)


@cases(CASES)
def test_without_gradients(backend: str, rule: Rule, seed: int) -> None:
    inputs = make_inputs(rule, 4, most=2)
    reset = make_reset("random", 4, inputs[0].shape[1])
    want = rule(*inputs, reset, backend="reference")
    given = on_device(backend, inputs)
    before = [x.clone() for x in given]
    with torch.inference_mode():
        got = rule(*given, reset.to(DEVICE[backend]), backend=backend)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_near(f"output {i}", a.cpu(), b, TOLERANCE)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


@cases(CASES)
def test_ignores_autocast(backend: str, rule: Rule, seed: int) -> None:
    inputs = make_inputs(rule, 2, most=1)
    reset = make_reset("random", 2, inputs[0].shape[1])
    want = run(rule, inputs, reset, backend, torch.float32, DEVICE[backend])
    with torch.autocast(DEVICE[backend], torch.bfloat16):
        got = run(rule, inputs, reset, backend, torch.float32, DEVICE[backend])
    assert all(torch.equal(got[name], want[name]) for name in want)


@cases(CASES, SHORT)
def test_compiles_into_one_graph(backend: str, rule: Rule, seed: int) -> None:
    """No graph break: `torch.compile` and CUDA graphs take the kernels as they are."""
    inputs = make_inputs(rule, 3, most=1)
    reset = make_reset("random", 3, inputs[0].shape[1]).to(DEVICE[backend])

    def outputs_and_gradients(function: object) -> list[Tensor]:
        leaves = [x.requires_grad_() for x in on_device(backend, inputs)]
        outputs = function(*leaves)  # type: ignore[operator]
        return [*outputs, *torch.autograd.grad(sum(out.square().sum() for out in outputs), leaves)]

    def eager(*leaves: Tensor) -> tuple[Tensor, ...]:
        return rule(*leaves, reset, backend=backend)

    torch._dynamo.reset()  # the cases share their code, which may be compiled only so often
    compiler = "inductor" if DEVICE[backend] == "cuda" else "aot_eager"
    compiled = torch.compile(eager, fullgraph=True, backend=compiler)
    for got, want in zip(outputs_and_gradients(compiled), outputs_and_gradients(eager), strict=True):
        torch.testing.assert_close(got, want)


def operator(backend: str, rule: Rule) -> tuple[Any, tuple[object, ...]]:
    """Return a rule's operator and what it takes besides the inputs and whether to keep."""
    name, more = rule.name, (backend,)
    if rule in SLOW:
        name, more = f"native_{name}" if backend == "native" else name, ()
    elif rule in rules.ATTENTION.values():
        name, more = (
            "native_attention",
            (True, KERNELS.index("softmax" if rule is rules.ATTENTION[True] else "exp")),
        )
    elif rule in rules.DELTAFORMERS:
        name, more = "native_deltaformer", tuple(map(KERNELS.index, rule.name.split("_")[1:]))
    return getattr(torch.ops.deltabeast, f"{name}_forward").default, more


@cases(CASES, SHORT)
def test_operators_are_well_formed(backend: str, rule: Rule, seed: int) -> None:
    """Schema, shapes on fake tensors, autograd registration."""
    inputs = [x.requires_grad_() for x in on_device(backend, make_inputs(rule, 2, most=1))]
    reset = make_reset("random", 2, inputs[0].shape[1]).to(DEVICE[backend])
    rule(*inputs, reset, backend=backend)  # registers it where no other test did
    forward, more = operator(backend, rule)
    torch.library.opcheck(forward, (*inputs, reset, True, *more))
    torch.library.opcheck(forward, (*(x.detach() for x in inputs), reset, False, *more))


@pytest.mark.parametrize("backend", DEVICE)
def test_keeps_nothing_for_actors(backend: str, seed: int) -> None:
    inputs = on_device(backend, make_inputs(rules.RECURRENT_DELTA, 2, most=1))
    reset = make_reset("none", 2, inputs[0].shape[1]).to(DEVICE[backend])
    _, _, *kept = torch.ops.deltabeast.recurrent_delta_forward(*inputs, reset, False, backend)
    assert not any(x.numel() for x in kept)
