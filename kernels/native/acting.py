"""An agent's steps of an unroll, each in one call of `dense.c`: layers before the core, the core, the heads.

On small observations, calling these one by one costs as much time in Python as in C.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from . import compiling, dense

_SIZES = ("threads", "rows", "observed", "hidden", "features", "out", "actions")
_POINTERS = (
    *("w1", "b1", "w2", "b2", "w_p", "b_p", "w_v", "b_v", "observation", "reward", "done", "exp_noise"),
    *("projection", "logits", "action", "between", "x", "value"),
)


class _Agent(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        ("limit", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("step", "core", *_POINTERS)),
    ]


class CoreSteps(NamedTuple):
    """A core's steps of an unroll, for `dense.c` to run."""

    function: str
    """name of the function of type `core_step` in `dense.c`"""
    arguments: ctypes.Structure
    """its arguments"""
    owners: Any
    """owns the memory to which the arguments point"""
    state: tuple[Tensor, ...]
    """state after T of the T + 1 steps, the next unroll's initial state; valid once all steps have run"""
    sizes: tuple[int, int]
    """input and output sizes"""
    work: int
    """multiplications per row"""


class Observed(NamedTuple):
    """What an actor observes before step t of an unroll, at index t."""

    observation: Tensor
    """float32 `[T + 1, B, D]`"""
    reward: Tensor
    """float32 `[T + 1, B]`"""
    done: Tensor
    """bool `[T + 1, B]`"""


class Chosen(NamedTuple):
    """Outputs: what it chooses at step t, at index t."""

    action: Tensor
    """int64 `[T, B]`"""
    logits: Tensor
    """float32 `[T, B, A]`"""


def steps(
    weights: Sequence[Tensor | None],
    core: CoreSteps,
    observed: Observed,
    chosen: Chosen,
    exp_noise: Tensor,
    limit: float,
    projection: Tensor | None = None,
) -> tuple[Callable[[int], None], Callable[[int], None]] | None:
    """Return (act, observe), or None where C does not support the agent.

    `act(t)` runs step t and samples an action; `observe(t)` runs stem and core only, for the bootstrap.

    Args:
        weights: weight and bias of the two rectified layers before the core, of the policy's and the value's
            head.
        core: the core's steps.
        observed: inputs, filled before each step.
        chosen: outputs, filled by each step.
        exp_noise: draws from Exp(1), `[T, B, A]`, as in `dense.heads`.
        limit: bound of the reward, as in `dense.core_input`.
        projection: `[T + 1, B, N]`, filled with the second layer's outputs before its rectifier.
    """
    w1, _, w2, _, w_p, _, w_v, _ = weights
    assert w1 is not None and w2 is not None and w_p is not None and w_v is not None
    rows, sizes = observed.done.shape[1], (w1.shape[1], len(w1), len(w2), core.sizes[1], len(w_p))
    expected = sizes[:2], sizes[1:3], (sizes[2] + 1, sizes[3]), sizes[3:], (sizes[3], 1)
    actual = w1.mT.shape, w2.mT.shape, core.sizes, w_p.mT.shape, w_v.mT.shape
    tensors = (*observed, *chosen)
    if not (
        rows
        and dense.is_supported(observed.observation, weights)
        and expected == actual
        and observed.observation.shape[-1] == sizes[0]
        and all(x.is_contiguous() for x in tensors)
    ):
        return None
    width = dense.lanes(rows)
    library = compiling.library("dense.c", f"LANES={width}")
    work = rows * (w1.numel() + w2.numel() + core.work + w_p.numel())
    scratch = [exp_noise.new_empty(rows, size) for size in (sizes[1], core.sizes[0], 1)]
    owners = [*weights, *observed, exp_noise, projection, chosen.logits, chosen.action, *scratch]
    agent = _Agent(
        dense.threads(rows, width, work),
        rows,
        *sizes,
        limit,
        ctypes.cast(getattr(library, core.function), ctypes.c_void_p),
        ctypes.addressof(core.arguments),
        *compiling.addresses(*owners),
    )
    agent.owners = owners, core  # owns the memory to which it points
    kinds = ctypes.POINTER(_Agent), ctypes.c_int64
    act, observe = (compiling.typed(library, name, *kinds) for name in ("act", "observe"))
    return functools.partial(act, agent), functools.partial(observe, agent)
