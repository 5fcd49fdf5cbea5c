"""Every backend against the float64 reference: outputs and all gradients."""

from __future__ import annotations

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, assert_near, make_reset
from fastweight_rules import KEYS, RULES, STRENGTHS, assert_as_good_as_reference, make_inputs, run

from deltabeast.kernels import chunked, stepwise

LENGTHS = (1, 2, 3, 15, 16, 17, 50, 51, 63, 64, 65, 80, 100, 130)
FAST = ("chunked", "auto", "native")
DTYPE = {"native": torch.float32}  # of the backends that take no float64


def compare(rule: str, steps: int, pattern: str, backend: str, **kinds: str) -> None:
    inputs = make_inputs(rule, steps, **kinds)
    reset = make_reset(pattern, steps, inputs[0].shape[1])
    want = run(rule, inputs, reset, "reference", torch.float64)
    if backend not in DTYPE:
        got = run(rule, inputs, reset, backend, torch.float64)
        for name in want:
            assert_near(name, got[name], want[name], 1e-12)
    got = run(rule, inputs, reset, backend, torch.float32)
    assert all(tensor.dtype is torch.float32 for tensor in got.values())
    assert_as_good_as_reference(rule, inputs, reset, got, want)


def pairs(*backends: str) -> pytest.MarkDecorator:
    """Every rule with each of the backends that compute it."""
    cases = [(rule, name) for rule in RULES for name in backends if (rule, name) != ("lstm", "native")]
    return pytest.mark.parametrize(("rule", "backend"), cases)


@pytest.mark.parametrize("pattern", RESET_PATTERNS)
@pairs("chunked", "native")
def test_lengths(rule: str, backend: str, pattern: str, seed: int) -> None:
    for steps in LENGTHS:
        compare(rule, steps, pattern, backend)


def test_chunks_cover_every_step_with_little_padding() -> None:
    for steps in range(1, 3000):
        count, length = chunked._chunks(steps)
        assert 0 <= count * length - steps < length
        assert length <= 24 and (count * length <= 1.1 * steps or steps < 100), steps


@pytest.mark.parametrize("rule", ["delta_rnn", "recurrent_delta", "lstm"])
def test_resets_without_a_look_at_the_mask(rule: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other devices than CPUs do."""

    class Blind(stepwise.Resets):
        def __init__(self, reset: torch.Tensor) -> None:
            super().__init__(reset)
            self.on_cpu, self.any = False, [True] * len(reset)

    monkeypatch.setattr(stepwise, "Resets", Blind)
    for pattern in RESET_PATTERNS:
        compare(rule, 17, pattern, "chunked")


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("strengths", STRENGTHS)
@pairs("chunked", "auto")
def test_keys_and_strengths(rule: str, backend: str, keys: str, strengths: str, seed: int) -> None:
    for steps in (1, 17, 70):
        compare(rule, steps, "random", backend, keys=keys, strengths=strengths)


@pytest.mark.parametrize("steps", [1, 4, 70])
@pairs(*FAST)
def test_without_gradients(rule: str, backend: str, steps: int, seed: int) -> None:
    """Actors take another path than learners. It gives the same, and leaves the state it was given alone."""
    inputs = make_inputs(rule, steps)
    given = [x.to(DTYPE.get(backend, x.dtype), copy=True) for x in inputs]
    for pattern in RESET_PATTERNS:
        reset = make_reset(pattern, steps, inputs[0].shape[1])
        want = RULES[rule](*inputs, reset, backend="reference")
        before = [x.clone() for x in given]
        with torch.no_grad():
            got = RULES[rule](*given, reset, backend=backend)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_near(f"output {i}", a, b, 2e-5 if backend in DTYPE else 1e-12)
        assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


@pairs("reference", *FAST)
def test_inputs_are_left_alone(rule: str, backend: str, seed: int) -> None:
    inputs = make_inputs(rule, 5)
    before = [x.clone() for x in inputs]
    run(rule, inputs, make_reset("random", 5, inputs[0].shape[1]), backend, DTYPE.get(backend, torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("steps", [1, 6, 70])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pairs("reference", *FAST)
def test_broken_state_ends_with_its_episode(
    rule: str, backend: str, value: float, grad: bool, steps: int, seed: int
) -> None:
    inputs = [x.float().requires_grad_(grad) for x in make_inputs(rule, steps)]
    states = [len(inputs) - 1] if rule in ("sum_rule", "delta_rule") else [len(inputs) - 2, len(inputs) - 1]
    with torch.no_grad():
        for i in states:
            inputs[i][0].view(-1)[0] = value
    end = min(3, steps - 1)
    reset = torch.zeros(steps, inputs[0].shape[1], dtype=torch.bool)
    reset[end, 0] = True
    outputs = RULES[rule](*inputs, reset, backend=backend)
    assert outputs[0][end:].isfinite().all()
    assert all(out.isfinite().all() for out in outputs[1:])
    if end and not (rule == "lstm" and value == float("inf")):  # its gates turn inf into 0 or 1
        assert not outputs[0][0, 0].isfinite().all()
        assert outputs[0][:, 1:].isfinite().all()
    never = torch.zeros_like(reset)
    last = RULES[rule](*inputs, never, backend=backend)[1]  # no episode ends: still broken
    assert (not last[0].isfinite().all() and last[1:].isfinite().all()) or rule == "lstm"
    if grad:
        reset[0, 0] = True  # now the broken numbers are never read
        y, *rest = RULES[rule](*inputs, reset, backend=backend)
        grads = torch.autograd.grad(y.sum() + sum(out.sum() for out in rest), inputs)
        assert all(g.isfinite().all() for g in grads)


@pairs("reference", "chunked", "native")
def test_no_gradient_crosses_a_reset(rule: str, backend: str, seed: int) -> None:
    dtype = DTYPE.get(backend, torch.float64)
    inputs = [x.to(dtype).requires_grad_() for x in make_inputs(rule, 9)]
    batch = inputs[0].shape[1]
    reset = make_reset("none", 9, batch)
    reset[4] = True
    y, *_ = RULES[rule](*inputs, reset, backend=backend)
    grads = torch.autograd.grad(y[4:].sum(), inputs)
    for x, grad in zip(inputs, grads, strict=True):
        if len(x) == 9 and x.shape[1] == batch:
            assert not grad[:4].any()
            assert grad[4:].any() or rule == "recurrent_delta"
    assert not grads[-1].any()  # the initial state


@pytest.mark.parametrize("steps", [1, 20])
@pairs("reference", *FAST)
def test_autocast_changes_nothing(rule: str, backend: str, steps: int, seed: int) -> None:
    inputs = make_inputs(rule, steps)
    reset = make_reset("random", steps, inputs[0].shape[1])
    want = run(rule, inputs, reset, backend, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(rule, inputs, reset, backend, torch.float32)
    plain = backend == "reference" or (backend == "auto" and steps == 1)  # its backward is autograd's own
    for name in want:
        if not plain or name.startswith("output"):
            assert torch.equal(got[name], want[name]), name


@pytest.mark.parametrize("rule", RULES)
def test_bad_arguments(rule: str) -> None:
    inputs = make_inputs(rule, 2)
    reset = make_reset("none", 2, inputs[0].shape[1])
    with pytest.raises(
        ValueError, match=r"^.*unknown backend 'cuda'; choose from auto, reference, chunked, native, triton$"
    ):
        RULES[rule](*inputs, reset, backend="cuda")
