"""The Triton kernels against the float64 reference: interpreted on CPUs, compiled where there is a GPU."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, assert_near, make_reset
from fastweight_rules import KEYS, RULES, STRENGTHS, assert_as_good_as_reference, make_inputs, run

from deltabeast.kernels import dispatch

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed (it exists for Linux only)",
    ),
    pytest.mark.filterwarnings("ignore:(invalid value|overflow|All-NaN):RuntimeWarning"),  # the interpreter's
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),
]
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
# 8 steps are one span of backward's replay. The interpreter takes some milliseconds a step and head.
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 50, 51, 63, 64, 65, 80, 100, 130) if GPU else (1, 8, 17)
ROWS, WIDTHS = (3, (16, 32, 60, 64)) if GPU else (2, (16, 20))


def problem(rule: str, steps: int, **kinds: str) -> tuple[torch.Tensor, ...]:
    return make_inputs(rule, steps, **kinds, rows=ROWS, widths=WIDTHS)  # type: ignore[arg-type]


def compare(rule: str, steps: int, pattern: str, **kinds: str) -> None:
    inputs = problem(rule, steps, **kinds)
    reset = make_reset(pattern, steps, inputs[0].shape[1])
    want = run(rule, inputs, reset, "reference", torch.float64)
    got = run(rule, tuple(x.to(DEVICE) for x in inputs), reset.to(DEVICE), "triton", torch.float32)
    assert_as_good_as_reference(rule, inputs, reset, got, want)


@pytest.mark.parametrize("pattern", RESET_PATTERNS)
@pytest.mark.parametrize("rule", RULES)
def test_lengths(rule: str, pattern: str, seed: int) -> None:
    for steps in LENGTHS:
        compare(rule, steps, pattern)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("strengths", STRENGTHS)
@pytest.mark.parametrize("rule", RULES)
def test_keys_and_strengths(rule: str, keys: str, strengths: str, seed: int) -> None:
    compare(rule, 70 if GPU else 9, "random", keys=keys, strengths=strengths)


@pytest.mark.parametrize("rule", RULES)
def test_large_numbers(rule: str, seed: int) -> None:
    """Saturated tanh, softmax and sigmoid overflow nowhere."""
    inputs = [30 * x if rule == "recurrent_delta" else x for x in problem(rule, 9)]
    reset = make_reset("random", 9, inputs[0].shape[1])
    want = run(rule, tuple(inputs), reset, "reference", torch.float64)
    got = run(rule, tuple(x.to(DEVICE) for x in inputs), reset.to(DEVICE), "triton", torch.float32)
    for name in want:
        assert got[name].isfinite().all()
        if name.startswith("output"):
            assert_near(name, got[name].cpu(), want[name], 1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_views_are_read_where_they_lie(rule: str, seed: int) -> None:
    """Parts of one projection, and a state whose layers are stacked, have strides of their own."""
    inputs = problem(rule, 5)
    reset = make_reset("random", 5, inputs[0].shape[1])
    want = run(rule, inputs, reset, "reference", torch.float64)
    wide = [torch.stack((x, torch.full_like(x, torch.nan)), -1).to(DEVICE, torch.float32) for x in inputs]
    other = [torch.stack((x, torch.full_like(x, torch.nan)), 1).to(DEVICE, torch.float32) for x in inputs]
    for views in ([x[..., 0] for x in wide], [x[:, 0] for x in other]):
        leaves = [view.requires_grad_() for view in views]
        outputs = RULES[rule](*leaves, reset.to(DEVICE), backend="triton")
        for index, out in enumerate(outputs):
            assert_near(f"output {index}", out.detach().cpu(), want[f"output {index}"], 2e-5)


@pytest.mark.parametrize("rule", RULES)
def test_without_gradients(rule: str, seed: int) -> None:
    """Actors take the path that keeps nothing, and their state stays as it is."""
    inputs = [x.to(DEVICE, torch.float32) for x in problem(rule, 9)]
    reset = make_reset("random", 9, inputs[0].shape[1]).to(DEVICE)
    before = [x.clone() for x in inputs]
    want = RULES[rule](*(x.clone().requires_grad_() for x in inputs), reset, backend="triton")
    with torch.no_grad():
        got = RULES[rule](*inputs, reset, backend="triton")
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("rule", RULES)
def test_broken_state_ends_with_its_episode(rule: str, value: float, seed: int) -> None:
    inputs = [x.to(DEVICE, torch.float32) for x in problem(rule, 9)]
    states = inputs[-1:] if rule in ("sum_rule", "delta_rule") else inputs[-2:]
    for state in states:
        state[0].view(-1)[0] = value
    for first in (0, 3):  # read before the reset, or never
        reset = torch.zeros(9, inputs[0].shape[1], dtype=torch.bool, device=DEVICE)
        reset[first, 0] = True
        leaves = [x.clone().requires_grad_() for x in inputs]
        y, *last = RULES[rule](*leaves, reset, backend="triton")
        assert y[first:].isfinite().all() and all(part.isfinite().all() for part in last)
        assert y[:, 1:].isfinite().all() and (not first or not y[0, 0].isfinite().all())
        if not first:
            grads = torch.autograd.grad(y.sum() + sum(part.sum() for part in last), leaves)
            assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("rule", RULES)
def test_part_of_the_outputs_is_enough(rule: str, seed: int) -> None:
    """A gradient that nobody gives counts as zero."""
    inputs = problem(rule, 5)
    reset = make_reset("random", 5, inputs[0].shape[1])
    for index in (0, 1):
        grads = []
        for backend, dtype, device in (
            ("reference", torch.float64, "cpu"),
            ("triton", torch.float32, DEVICE),
        ):
            leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
            output = RULES[rule](*leaves, reset.to(device), backend=backend)[index]
            grads.append(torch.autograd.grad(output.square().sum(), leaves, allow_unused=True))
        for expected, got in zip(*grads, strict=True):
            if expected is not None:
                assert_near(f"gradient through output {index}", got.cpu(), expected, 2e-5)


@pytest.mark.parametrize("rule", RULES)
def test_compiles_without_a_graph_break(rule: str, seed: int) -> None:
    inputs = [x.to(DEVICE, torch.float32) for x in problem(rule, 3)]
    reset = make_reset("random", 3, inputs[0].shape[1]).to(DEVICE)

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        y, *last = RULES[rule](*leaves, reset, backend="triton")
        return y.square().sum() + sum(part.square().sum() for part in last)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (loss, compiled):
        leaves = [x.clone().requires_grad_() for x in inputs]
        grads.append(torch.autograd.grad(function(*leaves), leaves))
    for one, other in zip(*grads, strict=True):
        assert_near("gradient", other.cpu(), one.cpu(), 1e-6)


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("rule", RULES)
def test_a_cuda_graph_takes_them_in(rule: str, seed: int) -> None:
    """Captured once, forward and backward then follow new numbers and new resets in the same memory."""
    inputs = [x.to(DEVICE, torch.float32) for x in problem(rule, 17)]
    leaves = [x.clone().requires_grad_() for x in inputs]
    reset = make_reset("random", 17, inputs[0].shape[1]).to(DEVICE)

    def both() -> list[torch.Tensor]:
        y, *last = RULES[rule](*leaves, reset, backend="triton")
        loss = y.square().sum() + sum(part.square().sum() for part in last)
        return [y, *torch.autograd.grad(loss, leaves)]

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
        for one, other in zip(got, both(), strict=True):
            assert_near("captured", one.cpu(), other.cpu(), 1e-6)


def test_what_it_cannot_take_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, W = (x.to(DEVICE, torch.float32) for x in problem("sum_rule", 2))
    reset = make_reset("none", 2, len(W)).to(DEVICE)
    rule = RULES["sum_rule"]
    with pytest.raises(ValueError, match=r"^sum_rule: the triton backend takes float32, not torch.float64"):
        rule(q.double(), k.double(), v.double(), W.double(), reset, backend="triton")
    wide = torch.zeros(*W.shape[:2], 128, W.shape[-1], device=DEVICE)
    with pytest.raises(ValueError, match=r"heads up to 64 wide, not 128; use more heads"):
        rule(q, k, torch.zeros(*v.shape[:3], 128, device=DEVICE), wide, reset, backend="triton")
    monkeypatch.setattr(dispatch, "_no_triton", dispatch._no_triton.__wrapped__)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"runs on cuda, not cpu; choose chunked"):
        rule(q.cpu(), k.cpu(), v.cpu(), W.cpu(), reset.cpu(), backend="triton")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package triton; pip install triton"):
        rule(q, k, v, W, reset, backend="triton")


def test_triton_is_imported_only_when_it_is_asked_for() -> None:
    import subprocess

    script = "import sys, deltabeast.kernels.dispatch; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
