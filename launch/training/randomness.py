"""Seeds, and the state of torch's own generators; each actor has a generator of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, deterministic: bool) -> None:
    """Seed this process; if `deterministic`, restrict torch to algorithms that repeat themselves."""
    seed_generators(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to repeat itself
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python: environments may draw from the latter two."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def actor_seed(seed: int, index: int, incarnation: int = 0, start_step: int = 0) -> int:
    """Derive an actor's seed from the run's; later incarnations and resumed runs have others."""
    if incarnation == 0 and start_step == 0:
        return seed * 1000 + index
    return int(np.random.SeedSequence([seed, index, incarnation, start_step]).generate_state(1)[0])


def rng_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators, which a core or an environment may draw from."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    _, key, *numpy_rest = np.random.get_state()  # noqa: NPY002
    version, words, gauss = random.getstate()
    return {
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": cuda,
        "numpy_rng": (torch.from_numpy(np.asarray(key, np.int64)), *numpy_rest),
        "python_rng": (version, torch.tensor(words), gauss),
    }


def set_rng_states(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch_rng"])
    if device.type == "cuda" and state.get("cuda_rng") is not None:
        torch.cuda.set_rng_state(state["cuda_rng"], device)
    if "numpy_rng" in state:  # earlier versions did not save it
        key, *numpy_rest = state["numpy_rng"]
        np.random.set_state(("MT19937", key.numpy().astype(np.uint32), *numpy_rest))  # noqa: NPY002
        version, words, gauss = state["python_rng"]
        random.setstate((version, tuple(words.tolist()), gauss))
