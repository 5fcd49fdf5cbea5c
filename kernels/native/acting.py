"""An agent's steps of an unroll, each in one call of `dense.c`: layers before the core, the core, the heads.

Called piece by piece, a step on small observations takes Python as long as it takes C.
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
    """A core's steps of an unroll, as `dense.c` makes them."""

    function: str
    """the `core_step` of `dense.c`"""
    arguments: ctypes.Structure
    """what it is handed"""
    held: Any
    """to which the arguments point"""
    state: tuple[Tensor, ...]
    """the core's state after the last step but one, once both are made"""
    sizes: tuple[int, int]
    """inputs and outputs of a row"""
    work: int
    """multiplications of a row"""


class Observed(NamedTuple):
    """What an actor observes before step t of an unroll, in row t."""

    observation: Tensor
    """float32 `[T + 1, B, D]`"""
    reward: Tensor
    """float32 `[T + 1, B]`"""
    done: Tensor
    """bool `[T + 1, B]`"""


class Chosen(NamedTuple):
    """Room for what it chooses at step t, in row t."""

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
    """Return what makes step t of an unroll, and what makes it but chooses no action; None where C cannot.

    `weights`: weight and bias of the two rectified layers before the core, of the policy's and the value's
    head. `exp_noise` is as `dense.heads` takes it, for each step; `limit` that of `dense.core_input`, and
    `projection` `[T + 1, B, N]` receives the second layer's outputs.
    """
    w1, _, w2, _, w_p, _, w_v, _ = weights
    assert w1 is not None and w2 is not None and w_p is not None and w_v is not None
    rows, sizes = observed.done.shape[1], (w1.shape[1], len(w1), len(w2), core.sizes[1], len(w_p))
    joined = sizes[:2], sizes[1:3], (sizes[2] + 1, sizes[3]), sizes[3:], (sizes[3], 1)
    found = w1.mT.shape, w2.mT.shape, core.sizes, w_p.mT.shape, w_v.mT.shape
    tensors = (*observed, *chosen)
    if not (
        rows
        and dense.takes(observed.observation, weights)
        and joined == found
        and observed.observation.shape[-1] == sizes[0]
        and all(x.is_contiguous() for x in tensors)
    ):
        return None
    width = dense.lanes(rows)
    library = compiling.library("dense.c", f"LANES={width}")
    work = rows * (w1.numel() + w2.numel() + core.work + w_p.numel())
    room = [exp_noise.new_empty(rows, size) for size in (sizes[1], core.sizes[0], 1)]
    held = [*weights, *observed, exp_noise, projection, chosen.logits, chosen.action, *room]
    agent = _Agent(
        dense.threads(rows, width, work),
        rows,
        *sizes,
        limit,
        ctypes.cast(getattr(library, core.function), ctypes.c_void_p),
        ctypes.addressof(core.arguments),
        *compiling.addresses(*held),
    )
    agent.held = held, core  # the memory to which it points
    kinds = ctypes.POINTER(_Agent), ctypes.c_int64
    act, observe = (compiling.typed(library, name, *kinds) for name in ("act", "observe"))
    return functools.partial(act, agent), functools.partial(observe, agent)
