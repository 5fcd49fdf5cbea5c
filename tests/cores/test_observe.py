"""What is seen of the memory equals what the rule's own definition says of each step."""

from __future__ import annotations

import pytest
import torch

from deltabeast.cores import FastWeightCore, core_names, make_core
from deltabeast.cores.attention import SoftmaxMemory
from deltabeast.cores.fast_weights import MemoryTrace
from deltabeast.cores.observe import replaced_readings, watch_memory, watch_traces
from deltabeast.cores.registry import find_core

SIZES = {"hidden_size": 12, "num_layers": 2, "num_heads": 3, "ff_size": 8}
HYBRID = {"hidden_size": 12, "num_heads": 3, "ff_size": 8}
WITHOUT_MATRICES = ("softmax_attention", "deltaformer", "gtrxl", "transformer", "hybrid")
BACKBONE = tuple(
    name
    for name in core_names()
    if isinstance(find_core(name), type) and issubclass(find_core(name), FastWeightCore)  # type: ignore[arg-type]
)
CORES = tuple(name for name in BACKBONE if name not in WITHOUT_MATRICES)
WITHOUT_STRENGTHS = (
    "linear_transformer",
    "gated_linear_attention",
    "softmax_attention",
    "gtrxl",
    "transformer",
)


@pytest.mark.parametrize("core", CORES)
def test_norms_and_changes(core: str, seed: int) -> None:
    memory = make_core(core, 5, **SIZES)
    state = tuple(torch.randn_like(part) for part in memory.initial_state(4))
    with watch_memory(memory) as layers, torch.no_grad():
        for reset in (torch.tensor([False, True, False, False]), torch.zeros(4, dtype=torch.bool)):
            before = tuple(part.clone() for part in state)
            _, state = memory.step(torch.randn(4, 5), state, reset)
            for index, layer in enumerate(layers):
                parts = memory.memories()[index].state_parts()  # type: ignore[operator]
                matrices = [n for n, part in enumerate(parts) if part.kind == "fast weights"]
                for row in range(4):
                    for head in range(3):
                        new, old = (
                            torch.cat([all_[n][row, index].view(3, -1)[head] for n in matrices])
                            for all_ in (state, before)
                        )
                        old = torch.zeros_like(old) if reset[row] else old
                        assert float(layer.norm[row, head]) == pytest.approx(float(new.norm()), rel=1e-4)
                        change = float((new - old).norm() / new.norm())
                        assert float(layer.change[row, head]) == pytest.approx(change, rel=1e-3, abs=1e-6)
                        assert not reset[row] or change == 1.0


@pytest.mark.parametrize("core", BACKBONE)
def test_write_strength_of_a_head_is_the_mean_of_its_own(core: str, seed: int) -> None:
    memory = make_core(core, 5, **(HYBRID if core == "hybrid" else SIZES))
    assert isinstance(memory, FastWeightCore)
    traces: list[MemoryTrace] = []
    for each in memory.memories():
        each.register_forward_hook(lambda *call: traces.append(call[2][1]))
    state = tuple(torch.rand_like(part) for part in memory.initial_state(4))
    with watch_memory(memory) as layers, torch.no_grad():
        memory.step(torch.randn(4, 5), state, torch.zeros(4, dtype=torch.bool))
    assert len(layers) == len(traces) == len(memory.memories())
    for layer, own, trace in zip(layers, memory.memories(), traces, strict=True):
        if core in WITHOUT_STRENGTHS or isinstance(own, SoftmaxMemory):
            assert layer.write_strength is None
            continue
        (want,) = own.strengths(trace)["write_strength"]
        assert layer.write_strength is not None and layer.write_strength.shape == (4, 3)
        for row in range(4):
            for head in range(3):
                mean = float(want[row, head].detach().mean())
                assert float(layer.write_strength[row, head]) == pytest.approx(mean, rel=1e-5)
        assert len(layer.write_strength.unique()) > 1
        assert layer.write_strength.min() > 0 and layer.write_strength.max() < 2


@pytest.mark.parametrize("core", WITHOUT_MATRICES)
def test_layers_without_matrices_are_watched_all_the_same(core: str, seed: int) -> None:
    memory = make_core(core, 5, **(HYBRID if core == "hybrid" else SIZES))
    with watch_memory(memory) as layers, torch.no_grad():
        memory.step(torch.randn(4, 5), memory.initial_state(4), torch.ones(4, dtype=torch.bool))
    assert len(layers) == 2 and all(layer.norm.shape == layer.change.shape == (4, 3) for layer in layers)
    assert not layers[-1].norm.any() and (core == "hybrid") == bool(layers[0].norm.any())


def test_nothing_is_left_behind_and_cores_without_fast_weights_show_nothing() -> None:
    memory = make_core("rdn", 5, **SIZES)
    with watch_memory(memory) as layers:
        pass
    memory.step(torch.randn(1, 5), memory.initial_state(1), torch.ones(1, dtype=torch.bool))
    assert layers == [] and not any(module._forward_hooks for module in memory.modules())
    lstm = make_core("lstm", 5, hidden_size=4)
    with watch_memory(lstm) as layers:
        lstm.step(torch.randn(1, 5), lstm.initial_state(1), torch.ones(1, dtype=torch.bool))
    assert layers == []


@pytest.mark.parametrize("core", CORES)
def test_memory_is_watched_where_it_is(core: str) -> None:
    """Not on the device that is usual, as a GPU's is not."""
    memory = make_core(core, 5, **SIZES)
    x, state, reset = torch.randn(4, 5), memory.initial_state(4), torch.zeros(4, dtype=torch.bool)
    with watch_memory(memory) as layers, torch.no_grad(), torch.device("meta"):
        memory.step(x, state, reset)
    assert len(layers) == 2 and all(layer.norm.is_cpu and layer.change.is_cpu for layer in layers)


@pytest.mark.parametrize("core", ["rdn", "softmax_attention"])
def test_readings_are_replaced(core: str, seed: int) -> None:
    """Layer by layer, with nothing written; afterwards all is as it was."""
    agent = make_core(core, 3, hidden_size=8, num_heads=2, ff_size=8)
    x, state, reset = torch.randn(4, 3), agent.initial_state(4), torch.zeros(4, dtype=torch.bool)
    _, state = agent.step(x, state, reset)
    before = agent.step(x, state, reset)
    readings, found = [torch.randn(4, 2, 4) for _ in range(2)], []
    with (
        replaced_readings(agent, readings),
        watch_traces(agent, lambda n, _, trace: found.append(trace.y[0])),
    ):
        y, after = agent.step(x, state, reset)
    assert all(torch.equal(*pair) for pair in zip(found, readings, strict=True))
    assert all(torch.equal(*pair) for pair in zip(after, state, strict=True))
    assert not torch.equal(y, before[0])
    again = agent.step(x, state, reset)
    assert torch.equal(again[0], before[0]) and not torch.equal(again[1][0], state[0])
    with (
        pytest.raises(ValueError, match="readings of 1 layers; give one for each of 2"),
        replaced_readings(agent, readings[:1]),
    ):
        pass
