"""A stand-in for CUDA graphs on a CPU: a tape of torch's operations, replayed on the same memory.

As with a graph, a replay runs no Python, whatever the host knew at the recording is frozen, the host may read
nothing during the recording, and former contents of the results' memory are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Results = TypeVar("Results")
ops = torch.ops.aten
_READ_BY_THE_HOST = (ops._local_scalar_dense.default, ops.nonzero.default, ops.equal.default)


class Tape(TorchDispatchMode):
    """Records the operations inside its context."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if operation in _READ_BY_THE_HOST:
            raise RuntimeError(f"{operation} cannot be recorded: it waits for the device")
        results = operation(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in _tensors((args, kwargs))}
        fresh = [x for x in _tensors(results) if x.untyped_storage().data_ptr() not in given]
        self._operations.append((operation, args, kwargs or {}, fresh))
        return results

    def play(self) -> None:
        with torch.no_grad():
            self.poison()
            for operation, args, kwargs, fresh in self._operations:
                given = {x.untyped_storage().data_ptr() for x in _tensors((args, kwargs))}
                again = [
                    x
                    for x in _tensors(operation(*args, **kwargs))
                    if x.untyped_storage().data_ptr() not in given
                ]
                for old, new in zip(fresh, again, strict=True):
                    old.copy_(new)

    def poison(self) -> None:
        for *_, fresh in self._operations:
            for x in fresh:
                x.detach().fill_(torch.nan if x.is_floating_point() else 1)


def record(
    run: Callable[[], Results], generator: torch.Generator | None = None, priority: int = 0
) -> tuple[Results, Callable[[], None]]:
    """Replace `graphs.record`."""
    run()
    run()
    with Tape() as tape:
        results = run()
    tape.poison()
    return results, tape.play


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(tree) if isinstance(x, Tensor))
