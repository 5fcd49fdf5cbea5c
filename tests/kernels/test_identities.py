"""What is known of the rules from elsewhere: where one is another, and what each does to what it holds."""

from __future__ import annotations

import pytest
import torch
from fastweight_helpers import assert_near, integer, make_reset
from fastweight_rules import make_inputs, run
from torch import Tensor

from deltabeast.kernels import (
    Rule,
    delta_rule,
    gated_sum,
    momentum_delta,
    reference,
    rules,
)

BACKENDS = ("reference", "chunked", "native")
STATE = ("keys", "values", "live")
"""of attention"""


def run_with(rule: Rule, inputs: dict[str, Tensor], reset: Tensor, backend: str) -> dict[str, Tensor]:
    """Outputs and gradients of a rule, by names that two rules share, of inputs by name."""
    names = rule.shapes.names[:-1]
    results = run(rule, tuple(inputs[name] for name in names), reset, backend, torch.float32)
    return {name.replace("gradient ", ""): x for name, x in results.items() if name.startswith("out")} | {
        names[i]: results[f"gradient {i}"] for i in range(len(names))
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("general", "special"),
    [
        (rules.GATED_SUM, rules.SUM_RULE),
        (rules.GATED_DELTA, rules.DELTA_RULE),
        (rules.MOMENTUM_DELTA, rules.GATED_DELTA),
    ],
    ids=lambda rule: rule.name,
)
def test_one_rule_is_another(general: Rule, special: Rule, backend: str, seed: int) -> None:
    """Without decay the gated rules are those that they gate; without momentum that one is the gated rule."""
    for steps in (1, 2, 16, 40):
        inputs = dict(zip(general.shapes.names, make_inputs(general, steps), strict=False))
        if special is rules.GATED_DELTA:
            inputs["momentum"] = torch.zeros_like(inputs["momentum"])
            inputs["C"] = torch.zeros_like(inputs["C"])
        else:
            inputs["decay"] = torch.ones_like(inputs["decay"])
        reset = make_reset("random", steps, inputs["q"].shape[1])
        got, want = (run_with(rule, inputs, reset, backend) for rule in (general, special))
        shared = ["output 0", "output 1", *special.shapes.names[:-1]]
        if special is rules.GATED_DELTA:  # the loss there is of C, too, which is the last write
            shared = shared[:2]
        for name in shared:
            assert_near(name, got[name], want[name], 2e-5)


def one_hot(i: int, size: int) -> Tensor:
    return torch.eye(size)[i]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_delta_rule_keeps_what_the_gated_rule_lets_fade(backend: str, seed: int) -> None:
    """Schlag et al. 2021, appendix B: written under keys that are orthogonal, read back under the first."""
    size, beta = 5, 0.3
    k = torch.eye(size).view(size, 1, 1, size)
    v = torch.randn(size, 1, 1, size)
    q = one_hot(0, size).expand_as(k)
    strength, W = torch.full((size, 1, 1), beta), torch.zeros(1, 1, size, size)
    reset = make_reset("first", size, 1)
    y, _ = delta_rule(q, k, v, strength, W, reset, backend=backend)
    torch.testing.assert_close(y, beta * v[:1].expand_as(y))
    faded = torch.full((size, 1, 1, size), 1 - beta)
    y, _ = gated_sum(q, k, beta * v, faded, W, reset, backend=backend)
    shares = (1 - beta) ** torch.arange(size).view(-1, 1, 1, 1)
    torch.testing.assert_close(y, beta * v[:1] * shares)


@pytest.mark.parametrize("backend", BACKENDS)
def test_momentum_adds_up_what_is_written_again(backend: str, seed: int) -> None:
    """A pair that is written at every step reads back as v / (1 - η)."""
    steps, eta = 200, 0.9
    k = one_hot(1, 4).expand(steps, 1, 1, 4)
    v = torch.randn(3).expand(steps, 1, 1, 3)
    one, zeros = torch.ones(steps, 1, 1), torch.zeros(1, 1, 3, 4)
    y, *_ = momentum_delta(
        k, k, v, one, one, eta * one, zeros, zeros, make_reset("none", steps, 1), backend=backend
    )
    torch.testing.assert_close(y[-1], v[-1] / (1 - eta))


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_length_root_two_swap_exactly(backend: str, seed: int) -> None:
    """`k = e_i - e_j`, `v = 0`, `β = 1`: the delta rule exchanges what is held under i and j. So do unit keys
    with β = 2."""
    steps, size = 400, 5
    order = list(range(size))
    k = torch.zeros(steps, 1, 1, size)
    reads = torch.zeros(steps, 1, 1, size)
    expected = []
    for t in range(steps):
        i = integer(0, size - 1)
        j = (i + integer(1, size - 1)) % size
        k[t, 0, 0, i], k[t, 0, 0, j] = 1, -1
        order[i], order[j] = order[j], order[i]
        place = integer(0, size - 1)
        reads[t, 0, 0, place] = 1
        expected.append(order[place])
    held = torch.randint(-9, 10, (size, size)).float()  # a value for each thing, as columns
    zeros, ones = torch.zeros(steps, 1, 1, size), torch.ones(steps, 1, 1)
    never = make_reset("none", steps, 1)
    y, _ = delta_rule(reads, k, zeros, ones, held.view(1, 1, size, size), never, backend=backend)
    assert torch.equal(y.view(steps, size), held.T[expected])
    y, _ = delta_rule(reads, k / 2**0.5, zeros, 2 * ones, held.view(1, 1, size, size), never, backend=backend)
    torch.testing.assert_close(y.view(steps, size), held.T[expected], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_sum_to_one_cannot_swap(backend: str, seed: int) -> None:
    """With entries from 0 to 1 that sum to one and β below 1, no write turns anything round: the part of what
    is held along k shrinks, but keeps its sign."""
    size = 6
    for _ in range(20):
        k = torch.rand(1, 1, 1, size).softmax(-1)
        held = torch.randn(1, 1, 1, size)
        beta = torch.rand(1, 1, 1)
        zeros = torch.zeros(1, 1, 1, 1)
        _, after = delta_rule(k, k, zeros, beta, held, make_reset("none", 1, 1), backend=backend)
        before, now = (held * k).sum(), (after * k).sum()
        assert (before * now >= 0).all() and now.abs() <= before.abs()


@pytest.mark.parametrize("backend", ["chunked", "native"])
@pytest.mark.parametrize("learns_state", [False, True])
@pytest.mark.parametrize("rule", [*rules.ATTENTION.values(), *rules.DELTAFORMERS], ids=lambda rule: rule.name)
def test_a_window_that_is_partly_empty(rule: Rule, learns_state: bool, backend: str, seed: int) -> None:
    """What holds nothing has no weight, at the beginning of a window and within: none, some, all of it."""
    for steps in (1, 5, 40):
        inputs = dict(zip(rule.shapes.names, make_inputs(rule, steps), strict=False))
        B, H, M = inputs["live"].shape
        never = torch.arange(M) < torch.randint(0, M + 1, (B, H, 1))
        never[-1] = True
        dead = never | (torch.rand(B, H, M) < 0.2)
        inputs["live"] = inputs["live"].masked_fill(dead, 0)
        for name in ("keys", "values"):
            # Attention's values have live in them.
            whole = name == "values" and rule in rules.ATTENTION.values()
            inputs[name] = inputs[name].masked_fill((dead if whole else never).unsqueeze(-1), 0)
        reset = make_reset("random", steps, B)
        learned = [name for name in inputs if learns_state or name not in STATE]
        results = []
        for taker, dtype in (("reference", torch.float64), (backend, torch.float32)):
            leaves = {
                name: x.to(dtype, copy=True).requires_grad_(name in learned) for name, x in inputs.items()
            }
            outputs = rule(*leaves.values(), reset, backend=taker)
            loss = sum(output.square().sum() for output in outputs)
            grads = torch.autograd.grad(loss, [leaves[name] for name in learned])
            results.append((*outputs, *grads))
        for i, (want, got) in enumerate(zip(*results, strict=True)):
            assert_near(str(i), got, want, 2e-5)


def test_round_has_the_gradient_of_linear(seed: int) -> None:
    scores, live = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.ones(5).double()
    rounded = reference.kernel("round", 3 * scores, live)
    assert torch.equal(rounded, (3 * scores).round())
    (grad,) = torch.autograd.grad(rounded.sum(), scores)
    assert torch.equal(grad, torch.full_like(grad, 3))
