"""Fixtures of every test: seeds that vary, and uninitialised memory that cannot pass for zeros."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Before triton is imported: its kernels then run on the CPU, slowly.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def seed(record_property: object) -> int:
    """A seed that differs from run to run; DELTABEAST_TEST_SEED repeats one. Failures show it."""
    given = os.environ.get("DELTABEAST_TEST_SEED")
    value = int(given) if given else random.SystemRandom().randrange(2**31)
    print(f"seed {value} (repeat with DELTABEAST_TEST_SEED={value})")  # pytest shows output of failures only
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002 - third-party environments may draw from it
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill `torch.empty` with NaN (integers: their maximum), so that reading it shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]
