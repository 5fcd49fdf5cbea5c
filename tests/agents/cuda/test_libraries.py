"""What loads a GPU's libraries runs, and leaves random numbers as they are."""

from __future__ import annotations

import torch

from deltabeast.agents.cuda import libraries

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_it_computes_and_draws_nothing(seed: int) -> None:
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    libraries._compute(DEVICE)
    libraries.load_libraries(DEVICE)
    assert torch.equal(torch.get_rng_state(), before)
