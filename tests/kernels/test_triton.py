"""The Triton kernels against the float64 reference, outputs and all gradients.

On a GPU the whole grid runs as compiled. Elsewhere Triton's interpreter runs a small one: it takes some 30 ms
for one step of one head.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, assert_near, make_reset
from fastweight_rules import (
    KEYS,
    RULES,
    STRENGTHS,
    Inputs,
    assert_as_good_as_reference,
    each,
    make_inputs,
    run,
)
from torch import Tensor

from deltabeast import kernels
from deltabeast.kernels import Rule, rules, triton
from deltabeast.kernels.pytorch import stepwise

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [
    # NumPy's, from the interpreter, of numbers that are broken on purpose.
    pytest.mark.filterwarnings("ignore:(invalid value|overflow|All-NaN):RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),
]

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if GPU:
    LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 50, 51, 63, 64, 65, 80, 100, 130)
    CASES = [(steps, pattern, 3) for steps, pattern in product(LENGTHS, RESET_PATTERNS)]
    HARD = list(product(KEYS, STRENGTHS))
else:
    # steps, resets, most rows and heads
    CASES = [(1, "none", 3), (1, "all", 2), (7, "first", 1), (8, "last", 1), (9, "none", 2)]
    CASES += [(9, "all", 1), (17, "random", 1)]
    CASES += [pytest.param(50, "random", 1, marks=pytest.mark.long)]
    HARD = [("zero", "one"), ("collinear", "one"), ("unit", "zero"), ("unit", "one")]
TOLERANCE = 1e-5  # ten times that for one row
IN_TRITON = tuple(rule for rule in RULES if rule.triton)


def compare(rule: Rule, inputs: Inputs, reset: Tensor) -> None:
    want = run(rule, inputs, reset, "reference", torch.float64)
    got = run(rule, inputs, reset, "triton", torch.float32, DEVICE)
    assert_as_good_as_reference(rule, inputs, reset, got, want)


def on_device(inputs: Inputs) -> list[Tensor]:
    return [x.to(DEVICE, torch.float32) for x in inputs]


@pytest.mark.parametrize(("steps", "pattern", "most"), CASES)
@each(*IN_TRITON)
def test_triton_lengths(rule: Rule, steps: int, pattern: str, most: int, seed: int) -> None:
    inputs = make_inputs(rule, steps, most=most)
    compare(rule, inputs, make_reset(pattern, steps, inputs[0].shape[1]))


@pytest.mark.parametrize(("keys", "strengths"), HARD)
@each(*(rule for rule in IN_TRITON if "k" in rule.shapes.names))
def test_triton_keys_and_strengths(rule: Rule, keys: str, strengths: str, seed: int) -> None:
    steps = 9 if GPU else 4
    inputs = make_inputs(rule, steps, keys, strengths, most=1)
    compare(rule, inputs, make_reset("random", steps, inputs[0].shape[1]))


@pytest.mark.parametrize("value", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.long)])
@each(*IN_TRITON)
def test_triton_broken_state_ends_with_its_episode(rule: Rule, value: float, seed: int) -> None:
    inputs = on_device(make_inputs(rule, 4, most=2))
    for i in rule.shapes.states():
        inputs[i][0].view(-1)[0] = value
    reset = torch.zeros(4, inputs[0].shape[1], dtype=torch.bool, device=DEVICE)
    reset[2, 0] = True
    y, *rest = rule(*inputs, reset, backend="triton")
    assert y[2:].isfinite().all() and y[:, 1:].isfinite().all()
    assert all(out.isfinite().all() for out in rest)
    assert not y[0, 0].isfinite().all() or (rule is rules.LSTM and value == float("inf"))
    reset[0, 0] = True  # now the broken numbers are never read
    leaves = [x.requires_grad_() for x in inputs]
    outputs = rule(*leaves, reset, backend="triton")
    grads = torch.autograd.grad(sum(out.sum() for out in outputs), leaves)
    assert all(g.isfinite().all() for g in grads)


@each(*IN_TRITON)
def test_triton_no_gradient_crosses_a_reset(rule: Rule, seed: int) -> None:
    inputs = [x.requires_grad_() for x in on_device(make_inputs(rule, 5, most=1))]
    reset = make_reset("none", 5, inputs[0].shape[1]).to(DEVICE)
    reset[3] = True
    y, *_ = rule(*inputs, reset, backend="triton")
    # Not their sum, which is constant where the output is a softmax.
    weights = torch.linspace(-1, 1, y.shape[-1], device=DEVICE)
    grads = torch.autograd.grad((weights * y[3:]).sum(), inputs)
    assert grads[0][3:].any() and not grads[0][:3].any()
    assert not grads[-1].any()  # the initial state


@pytest.mark.skipif(not GPU, reason="no GPU")
@each(*RULES)
def test_auto_goes_into_a_cuda_graph(rule: Rule, seed: int) -> None:
    """Captured once, forward and backward then follow new numbers and new resets in the same memory."""
    inputs = make_inputs(rule, 17)
    leaves = [x.requires_grad_() for x in on_device(inputs)]
    reset = make_reset("random", 17, inputs[0].shape[1]).to(DEVICE)

    def both() -> list[Tensor]:
        outputs = rule(*leaves, reset)
        return [*outputs, *torch.autograd.grad(sum(out.square().sum() for out in outputs), leaves)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both()  # compiles, which a capture must not
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for pattern in RESET_PATTERNS:
        with torch.no_grad():
            for leaf in leaves:
                leaf.mul_(0.9)
        reset.copy_(make_reset(pattern, 17, inputs[0].shape[1]))
        graph.replay()
        got = [x.clone() for x in captured]
        for i, (a, b) in enumerate(zip(got, both(), strict=True)):
            assert_near(f"{i} after {pattern}", a.detach().cpu(), b.detach().cpu(), 1e-6)


def test_triton_refuses_what_it_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(rules.DELTA_RULE, 1, most=1)
    reset = make_reset("none", 1, inputs[0].shape[1])
    with pytest.raises(ValueError, match=r"^delta_rule: .* in float32, not torch.float64$"):
        kernels.delta_rule(*inputs, reset, backend="triton")
    q, v, beta, W = (torch.zeros(1, 1, 1, *n) for n in ((65,), (16,), (), (65,)))
    with pytest.raises(ValueError, match=r"^delta_rule: .* up to 64 wide, not 65$"):
        kernels.delta_rule(q, q, v, beta, W.expand(1, 1, 16, 65), reset[:1, :1], backend="triton")
    from deltabeast.kernels.triton import rules as launched

    monkeypatch.setattr(launched, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"^delta_rule: .* need CUDA tensors, not cpu ones; [^\n]*$"):
        kernels.delta_rule(*(x.float() for x in inputs), reset, backend="triton")
    monkeypatch.setattr(triton, "_HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"^delta_rule: Triton is not installed; pip install triton \(Linux"):
        kernels.delta_rule(*(x.float() for x in inputs), reset, backend="triton")


def test_auto_leaves_cpu_tensors_to_the_other_backends(seed: int) -> None:
    assert rules.DELTA_RNN.triton is not None
    asked = rules.DELTA_RNN.triton._replace(unsupported_reason=lambda inputs: pytest.fail("asked for Triton"))
    rule = replace(rules.DELTA_RNN, triton=asked)
    inputs = make_inputs(rule, 2, most=1)
    rule(*(x.float() for x in inputs), make_reset("none", 2, inputs[0].shape[1]))


@pytest.mark.skipif(not GPU, reason="no GPU")
@each(*IN_TRITON)
def test_auto_takes_triton_on_gpus(rule: Rule, seed: int) -> None:
    taken: list[object] = []
    assert rule.triton is not None
    spied = replace(rule, triton=rule.triton._replace(operator=lambda *inputs: taken.append(inputs[-1])))
    inputs = make_inputs(rule, 2)
    reset = make_reset("none", 2, inputs[0].shape[1]).to(DEVICE)
    spied(*on_device(inputs), reset)
    assert taken == ["triton"]
    spied(*(x.to(DEVICE) for x in inputs), reset)  # float64: not for Triton
    assert len(taken) == 1


def test_triton_spans_are_those_of_the_loops() -> None:
    """The lengths above stand around multiples of it."""
    assert stepwise.SPACING == 8


def test_triton_kernels_compile_for_gpus() -> None:
    """For sm_80 and sm_90, without spills at d = 32: the interpreter takes what the compiler refuses."""
    script = Path(__file__).with_name("compile_triton.py")
    environment = {n: value for n, value in os.environ.items() if n != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script, "32", "60"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sm_80") == done.stdout.count("sm_90") > 0
