"""Fixtures of every test: seeded numbers, and uninitialised memory that cannot pass for zeros."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from session_seed import SEED
from side_by_side import group, take_a_core

# Triton reads this when it is imported: without a GPU its kernels run in its interpreter, on CPU tensors.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _let_the_interpreter_loop() -> None:
    """Before Triton 3.7 the interpreter makes loop bounds of arrays of one element; NumPy 2.4 forbids it."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch = interpreter._patch_lang_tensor

    def patch_and_fix(tensor: Any, *scope: object) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter._patch_lang_tensor = patch_and_fix


def _let_the_interpreter_patch_once() -> None:
    """At each call of a function in a kernel it patches Triton's language again: half of all its time."""
    try:
        from triton import language
        from triton.runtime import interpreter
    except ImportError:
        return
    patch = interpreter._patch_lang

    def patch_if_need_be(function: Any) -> Any:
        seen = [x for x in function.__globals__.values() if x is language or x is language.core]
        if not seen or any(language.core.is_builtin(x.load) for x in seen):
            return patch(function)
        return None  # whoever launches a kernel wants an answer, to undo it by, and is the first to ask

    interpreter._patch_lang = patch_if_need_be


def _let_the_interpreter_remember_types() -> None:
    """At each operation it makes a table of NumPy's types."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    find, found = interpreter._get_np_dtype, {}

    def find_once(kind: Any) -> Any:
        if kind.name not in found:
            found[kind.name] = find(kind)
        return found[kind.name]

    interpreter._get_np_dtype = find_once


if os.environ.get("TRITON_INTERPRET") == "1":
    _let_the_interpreter_loop()
    _let_the_interpreter_remember_types()
    _let_the_interpreter_patch_once()


take_a_core()

if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup, where runs would ignore it, too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _no_records_at_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def _no_width_of_a_terminal() -> None:
    """pytest-xdist sets one for its workers, whatever the terminal."""
    os.environ.pop("COLUMNS", None)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group(items)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported and collected: it outlives every test."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    return f"seed: {SEED} (DELTABEAST_TEST_SEED={SEED} repeats it, DELTABEAST_TEST_SEED=new draws one)"


@pytest.fixture(autouse=True)
def seed() -> int:
    """The run's seed, from which every test draws its numbers. Failures show it."""
    print(f"seed {SEED} (repeat with DELTABEAST_TEST_SEED={SEED})")  # pytest shows output of failures only
    random.seed(SEED)
    np.random.seed(SEED % 2**32)  # noqa: NPY002 - third-party environments may draw from it
    torch.default_generator.manual_seed(SEED)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(SEED)
    return SEED


@pytest.fixture
def updates_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute updates as a compiler or a graph sees them, to be compared bit for bit: C rounds otherwise."""
    for name in ("loss", "optimizers"):
        monkeypatch.setattr(f"deltabeast.kernels.native.{name}.is_supported", lambda *xs: False)


@pytest.fixture(autouse=True)
def _small_numbers() -> Iterator[None]:
    """Put numbers below the normal ones back: training takes them for zero, in the whole process."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill `torch.empty` with NaN (integers: their maximum), so that reading it shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]
