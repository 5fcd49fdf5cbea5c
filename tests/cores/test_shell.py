"""Options of the shell around a memory: a clock, gates in place of sums; and where write strengths begin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deltabeast.cores import Core, State, make_core
from deltabeast.cores.layer import Gate

SMALL = {"hidden_size": 16, "num_heads": 2, "ff_size": 24}


def read_by(core: Core, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
    """Return what the input projection reads, and the state after."""
    read: list[Tensor] = []
    projection: torch.nn.Linear = core.input_proj  # type: ignore[assignment]
    hook = projection.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    _, state = core.unroll(x, state, reset)
    hook.remove()
    return read[0], state


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_a_clock_counts_from_the_beginning_of_an_episode(steps: int, seed: int) -> None:
    core, waves = make_core("delta_net", 7, **SMALL, clock=3), 3
    state, time = core.initial_state(4), [0] * 4
    assert state[-1].shape == (4, 1)
    for _ in range(3):  # time goes on in the next unroll
        x, reset = torch.randn(steps, 4, 7), torch.rand(steps, 4) < 0.2
        read, state = read_by(core, x, state, reset)
        assert torch.equal(read[..., :7], x)
        for t in range(steps):
            for b in range(4):
                time[b] = 0 if reset[t, b] else time[b]
                phases = [2 * math.pi * time[b] / 2**j for j in range(2, waves + 2)]
                want = [*map(math.cos, phases), *map(math.sin, phases)]
                torch.testing.assert_close(read[t, b, 7:], torch.tensor(want), rtol=0, atol=1e-6)
                time[b] += 1
        assert state[-1].flatten().tolist() == time


def test_a_clock_tells_apart_what_else_looks_the_same(seed: int) -> None:
    """The same input at every step: outputs differ with a clock, and only so without a memory's help."""
    x, never = torch.randn(1, 1, 7).expand(4, 1, 7), torch.zeros(4, 1, dtype=torch.bool)
    for clock, differ in ((0, False), (2, True)):
        core = make_core("linear_transformer", 7, **SMALL, clock=clock)
        for layer in core.layers:  # type: ignore[union-attr]
            torch.nn.init.zeros_(layer.out.weight)
        y, _ = core.unroll(x, core.initial_state(1), never)
        assert torch.allclose(y[0], y[1:]) is not differ


@pytest.mark.parametrize("most", [1, 2])
def test_where_write_strengths_begin(most: int, seed: int) -> None:
    for start in (0.1, 0.5, 0.9):
        options = {"feature_map": "unit", "normalise": "none", "beta_max": most, "beta_start": start}
        core = make_core("delta_net", 7, **SMALL, **options)
        for layer in core.layers:  # type: ignore[union-attr]
            torch.nn.init.zeros_(layer.memory.slow_net.weight)
        x, reset = torch.randn(3, 2, 7), torch.zeros(3, 2, dtype=torch.bool)
        _, _, stats = core.unroll_with_stats(x, core.initial_state(2), reset)
        torch.testing.assert_close(stats["write_strength"], torch.tensor(most * start))


def test_gates_replace_sums(seed: int) -> None:
    """Two a layer; they begin nearly shut, so that what goes in comes out."""
    sums, gates = (make_core("rdn", 7, **SMALL, residual=kind) for kind in ("sum", "gate"))
    assert not any(isinstance(module, Gate) for module in sums.modules())
    assert sum(isinstance(module, Gate) for module in gates.modules()) == 2 * len(gates.layers)  # type: ignore[arg-type]
    x, never = torch.randn(5, 2, 7), torch.zeros(5, 2, dtype=torch.bool)
    with torch.no_grad():
        for module in gates.modules():
            if isinstance(module, Gate):
                module.bias += 20
        y, _ = gates.unroll(x, gates.initial_state(2), never)
        torch.testing.assert_close(y, gates.input_proj(x), rtol=1e-5, atol=1e-5)  # type: ignore[operator]


def test_a_clock_refuses_what_every_core_refuses(seed: int) -> None:
    core = make_core("delta_net", 7, **SMALL, clock=2)
    state, never = core.initial_state(2), torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"give at least one step and one row"):
        core.unroll(torch.randn(0, 2, 7), state, never[:0])
    with pytest.raises(ValueError, match=r"^clock: reset is torch.int64 \[3, 2\]; give torch.bool \[3, 2\]$"):
        core.unroll(torch.randn(3, 2, 7), state, never.long())


@pytest.mark.parametrize("name", ["layers.0.ff", "layers.1.memory.features", "layers.0.norm", "layers.1"])
def test_what_is_hooked_is_called(name: str, seed: int) -> None:
    """By steps and by unrolls, with gradients and without: C computes what nobody watches."""
    core, called = make_core("delta_net", 7, **SMALL), []
    core.get_submodule(name).register_forward_hook(lambda *_: called.append(name))
    x, state, never = torch.randn(3, 2, 7), core.initial_state(2), torch.zeros(3, 2, dtype=torch.bool)
    core.unroll(x, state, never)
    with torch.no_grad():
        core.unroll(x, state, never)
        before = len(called)
        core.step(x[0], state, never[0])
    assert before >= 2 and len(called) > before
