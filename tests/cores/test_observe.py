"""What is seen of the memory equals what the rule's own definition says of each step."""

from __future__ import annotations

import pytest
import torch

from deltabeast.cores import make_core
from deltabeast.cores.observe import watch_memory

SIZES = {"hidden_size": 12, "num_layers": 2, "num_heads": 3, "ff_size": 8}


CORES = ("linear_transformer", "delta_net", "delta_rnn", "rdn", "momentum_delta_net", "delta_lstm")
WITHOUT_MATRICES = ("softmax_attention", "deltaformer", "gtrxl", "transformer", "hybrid")


@pytest.mark.parametrize("core", CORES)
def test_norms_changes_and_strengths(core: str, seed: int) -> None:
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
            if core == "linear_transformer":
                assert layers[0].write_strength is None
    if core != "linear_transformer":
        x = torch.randn(4, 5)
        *_, stats = memory.unroll_with_stats(x[None], state, torch.zeros(1, 4, dtype=torch.bool))
        with watch_memory(memory) as layers, torch.no_grad():
            memory.step(x, state, torch.zeros(4, dtype=torch.bool))
        strengths = torch.stack([layer.write_strength for layer in layers])  # type: ignore[arg-type]
        assert float(strengths.mean()) == pytest.approx(float(stats["write_strength"]), rel=1e-5)
        assert strengths.shape == (2, 4, 3) and strengths.min() > 0 and strengths.max() < 1


@pytest.mark.parametrize("core", WITHOUT_MATRICES)
def test_layers_without_matrices_are_watched_all_the_same(core: str, seed: int) -> None:
    memory = make_core(
        core, 5, **{name: size for name, size in SIZES.items() if core != "hybrid" or name != "num_layers"}
    )
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
