"""Code of one's own that was written for version 0.2 runs on, and is told the new names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_batches import make_batch
from torch import Tensor, nn

from deltabeast.agents import Agent, AgentSpec
from deltabeast.cores import Core, FastWeightCore, State, make_core
from deltabeast.kernels import reference


def test_a_core_of_version_0_2_has_its_statistics(seed: int) -> None:
    with pytest.warns(DeprecationWarning, match="Leaky.measured_unroll is now unroll_with_stats"):

        class Leaky(Core):
            def __init__(self, input_size: int) -> None:
                super().__init__(input_size, 4)
                self.layer = nn.Linear(input_size, 4)

            def initial_state(self, batch_size: int, device: Any = None) -> State:
                return (torch.zeros(batch_size, 4),)

            def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
                y, state, _ = self.measured_unroll(x, state, reset)
                return y, state

            def measured_unroll(self, x: Tensor, state: State, reset: Tensor) -> Any:
                ys, (h,) = [], state
                for x_t, reset_t in zip(self.layer(x), reset, strict=True):
                    h = 0.9 * h.masked_fill(reset_t.unsqueeze(-1), 0) + x_t
                    ys.append(h)
                return torch.stack(ys), (h,), {"size": h.norm().detach()}

    core = Leaky(3)
    x, reset = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    y, (h,), stats = core.unroll_with_stats(x, core.initial_state(2), reset)
    assert torch.equal(y[-1], h) and float(stats["size"]) == float(h.norm().detach()) > 0
    with pytest.warns(DeprecationWarning, match="unroll_per_step is now unroll_truncated"):
        again, *_ = core.unroll_per_step(x, core.initial_state(2), reset)
    assert torch.equal(again, y)


def test_a_measured_unroll_may_go_on_to_what_it_overrides(seed: int) -> None:
    rdn = type(make_core("rdn", 3, hidden_size=8, num_heads=2))
    with pytest.warns(DeprecationWarning, match=r"Counting\.measured_unroll is now unroll_with_stats"):

        class Counting(rdn):  # type: ignore[misc, valid-type]
            def measured_unroll(self, x: Tensor, state: State, reset: Tensor) -> Any:
                y, state, stats = super().measured_unroll(x, state, reset)
                return y, state, {**stats, "steps": torch.tensor(len(x))}

    core = Counting(3, hidden_size=8, num_heads=2)
    assert isinstance(core, FastWeightCore)
    x, reset = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    with pytest.warns(DeprecationWarning, match="^measured_unroll is now"):
        _, _, stats = core.unroll_with_stats(x, core.initial_state(2), reset)
    assert stats["steps"] == 5 and 0 < stats["write_strength"] < 1


def test_who_calls_an_old_name_is_told_the_new_one(seed: int) -> None:
    core = make_core("delta_net", 3, hidden_size=8, num_heads=2)
    x, reset = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    state = core.initial_state(2)
    with pytest.warns(DeprecationWarning, match="measured_unroll is now unroll_with_stats"):
        y, _, stats = core.measured_unroll(x, state, reset)
    expected = core.unroll_with_stats(x, state, reset)
    assert torch.equal(y, expected[0]) and stats == expected[2]
    with pytest.warns(DeprecationWarning, match="begin is now mask_resets"):
        assert reference.begin is reference.mask_resets
    with pytest.raises(AttributeError, match="has no attribute 'end'"):
        _ = reference.end
    batch = make_batch(Agent(AgentSpec((5,), 4, "feedforward", "mlp")), columns=3)
    with pytest.warns(DeprecationWarning, match=r"columns\(\) is now num_envs"):
        assert batch.columns() == batch.num_envs == 3
