"""Seeds, and the state of torch's own generators; each actor has a generator of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, deterministic: bool) -> None:
    """Seed torch; if `deterministic`, restrict it to algorithms that repeat themselves."""
    torch.manual_seed(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to repeat itself
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def actor_seed(seed: int, index: int, incarnation: int = 0, start_step: int = 0) -> int:
    """Derive an actor's seed from the run's; later incarnations and resumed runs have others."""
    if incarnation == 0 and start_step == 0:
        return seed * 1000 + index
    return int(np.random.SeedSequence([seed, index, incarnation, start_step]).generate_state(1)[0])


def rng_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators, which a core may draw from."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"torch_rng": torch.get_rng_state(), "cuda_rng": cuda}


def set_rng_states(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch_rng"])
    if device.type == "cuda" and state.get("cuda_rng") is not None:
        torch.cuda.set_rng_state(state["cuda_rng"], device)
