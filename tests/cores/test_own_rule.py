"""A rule of your own: a reference, a `Rule` and a core are enough, and each faster form is one more line.

The rule here lets a tenth of its fast weights decay at every step: `W = 0.9 W + v kᵀ`, then `y = W q`.
"""

from __future__ import annotations

from dataclasses import replace

import fastweight_checks as checks
import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, make_reset
from fastweight_rules import make_inputs
from random_batches import make_batch, make_learner
from torch import Tensor

from deltabeast.agents import Learner
from deltabeast.cores import FastWeightCore, FastWeights, State, StatePart
from deltabeast.cores.features import normalized_elu
from deltabeast.kernels import BACKENDS, Rule, Shapes
from deltabeast.kernels.reference import mask_resets, read, write
from deltabeast.kernels.rules import RULES
from deltabeast.launch.bench.kernels import bench_kernels
from deltabeast.launch.config import BenchKernelsConfig

from . import test_cores

KEPT = 0.9


def reference(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(len(q)):
        W = write(KEPT * mask_resets(W, reset[t]), v[t], k[t])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


DECAY = Rule(
    "decay", Shapes(q="T B H K", k="T B H K", v="T B H V", W="B H V K"), reference, maps={"k": normalized_elu}
)


class DecayMemory(FastWeights):
    """The slow net emits q, k, v. State: W."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, (h, h, h))

    def state_parts(self) -> tuple[StatePart, ...]:
        return (StatePart("fast weights", (self.num_heads, self.head_size, self.head_size)),)

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v = projections
        y, W = DECAY(normalized_elu(q), normalized_elu(k), v, *state, reset)
        return y, (W,)


class DecayCore(FastWeightCore):
    memory = DecayMemory


CORE = f"{__name__}:DecayCore"  # as `train --core` and `make_core` take it


def at_once(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """The same without a loop: the write of step i, decayed by the steps since, unless one of them reset."""
    steps = torch.arange(len(q))
    episode = reset.cumsum(0)  # [T, B]
    age = (steps[:, None] - steps).clamp(min=0)  # [T, T]
    sees = (episode[:, None] == episode) & (steps[:, None] >= steps)[..., None]  # [T, T, B]
    decay = torch.where(sees, q.new_tensor(KEPT) ** age[..., None], 0)
    kept = torch.where(episode == 0, q.new_tensor(KEPT) ** (steps + 1)[:, None], 0)  # [T, B]: of the first W
    y = torch.einsum("tbhk,ibhk,tib,ibhv->tbhv", q, k, decay, v)
    y = y + torch.einsum("tbhk,tb,bhvk->tbhv", q, kept, W)
    W = kept[-1][:, None, None, None] * W + torch.einsum("ib,ibhv,ibhk->bhvk", decay[-1], v, k)
    return y, W


@pytest.mark.parametrize("pattern", RESET_PATTERNS)
def test_the_reference_is_the_rule(pattern: str, seed: int) -> None:
    """And a faster form takes one more line in the `Rule`."""
    faster = replace(DECAY, chunked=at_once)
    assert faster.backends == ("auto", "reference", "chunked") and faster.in_pytorch(7) is at_once
    for steps in (1, 7):
        for backend in ("chunked", "auto"):
            checks.check_equals_reference(faster, steps, pattern, backend)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_it_keeps_to_what_the_built_in_rules_do(backend: str, seed: int) -> None:
    for pattern in RESET_PATTERNS:
        checks.check_equals_reference(DECAY, 5, pattern, backend)
    for steps in (1, 4):
        checks.check_without_gradients(DECAY, steps, backend)
        checks.check_autocast_changes_nothing(DECAY, steps, backend)
    for value in (float("nan"), float("inf")):
        for grad in (False, True):
            checks.check_broken_state_ends_with_its_episode(DECAY, backend, value, grad, steps=6)
    checks.check_inputs_are_left_alone(DECAY, backend)
    checks.check_no_gradient_crosses_a_reset(DECAY, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_refuses_what_the_built_in_rules_do(backend: str) -> None:
    sizes = {"T": 3, "B": 2, "H": 5, "K": 4, "V": 6}
    checks.check_every_size_counts(DECAY, backend, sizes)
    checks.check_dimensions_are_counted(DECAY, backend, sizes)
    checks.check_nothing_is_empty(DECAY, backend, sizes)
    checks.check_kinds_and_devices_agree(DECAY, backend, sizes)


@pytest.mark.parametrize("backend", ["chunked", "native", "triton", "cuda"])
def test_backends_that_it_lacks_are_refused_in_one_line(backend: str, seed: int) -> None:
    inputs = [*make_inputs(DECAY, 2, most=1), make_reset("none", 2, 1)]
    has = f"unknown backend 'cuda'; choose from {', '.join(BACKENDS)}"
    if backend != "cuda":
        has = f"this rule has no {backend!r} backend; choose from auto, reference"
    assert checks.refusal(DECAY, backend, inputs) == f"decay: {has}"
    assert DECAY.backends_on(torch.device("cpu"), 32) == ("reference",)


def test_its_core_is_like_the_built_in_ones(seed: int) -> None:
    for pattern in RESET_PATTERNS:
        test_cores.test_unroll_equals_steps(CORE, pattern, seed)
    test_cores.test_gradients_reach_the_initial_state_unless_reset(CORE, seed)
    test_cores.test_a_broken_state_does_not_survive_a_reset(CORE, float("nan"), seed)
    test_cores.test_a_reset_is_a_fresh_start(CORE, seed)
    test_cores.test_per_step_cuts_the_gradient_of_fast_weights_and_unroll_does_not(CORE, seed)


def test_it_trains(seed: int) -> None:
    # Without discount the values' targets do not move with them, so that the loss falls for every seed.
    made = make_learner(CORE, learning_rate=1e-3, discount=0.0, entropy_cost=0.0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    learner = Learner(made.agent.to(device), made.config)
    batch = make_batch(learner.agent).map(lambda dim, x: x.to(device))
    before = [p.detach().clone() for p in learner.agent.parameters()]
    losses = [learner.update(batch)["baseline_loss"] for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    for name, p in learner.agent.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
    assert all(not torch.equal(p, old) for p, old in zip(learner.agent.parameters(), before, strict=True))


def test_it_is_benched_as_one_of_the_rules(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, DECAY.name, replace(DECAY, chunked=at_once))
    config = BenchKernelsConfig(
        rules=("decay",), steps=5, batch_size=2, heads=2, head_size=8, repeats=1, device="cpu"
    )
    rows = list(bench_kernels(config))
    assert [(row.rule, row.backend) for row in rows] == [("decay", "reference"), ("decay", "chunked")]
    assert all(row.right and row.ratio for row in rows)
