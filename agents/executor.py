"""Executors run the two functions of an update: eagerly here, enqueued in cuda/enqueued.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from .nonfinite import check_gradients, check_loss
from .unroll import Unroll


class UpdateFns(Protocol):
    """The two functions of an update; `Learner` has them, and says what they do."""

    def compute_gradients(self, batch: Unroll) -> tuple[dict[str, Tensor], list[Tensor | None]]: ...

    def apply_gradients(self, gradients: Sequence[Tensor], grad_norm: Tensor) -> None: ...


class LearnerParts(UpdateFns, Protocol):
    """The parts of a learner that an executor uses."""

    steps: int
    version: int
    finite: Tensor
    compiled_loss: Callable[[Unroll], Any] | None
    ops: Any
    """The learner's `UpdateOps`."""

    @property
    def agent(self) -> nn.Module: ...

    @property
    def config(self) -> Any:
        """The learner's `LearnerConfig`."""

    def loss(self, batch: Unroll) -> Any: ...


class EagerExecutor:
    """Runs each function eagerly and checks its numbers before anything changes; the base class of all."""

    def __init__(self, learner: LearnerParts, functions: UpdateFns | None = None) -> None:
        """`functions` are those to run instead of the learner's own."""
        self._learner = learner
        self._functions = functions or learner

    def backward(self, batch: Unroll) -> tuple[Mapping[str, float], list[Tensor | None]]:
        """Return a batch's metrics and the parameters' gradients, which the next call may overwrite."""
        metrics, gradients = self._functions.compute_gradients(batch)
        check_loss(metrics, batch, self._learner.agent, self._learner.version + 1)
        return {name: float(value) for name, value in metrics.items()}, gradients

    def step(self, gradients: Sequence[Tensor]) -> Mapping[str, float]:
        """Change the weights, and return `grad_norm`."""
        grad_norm = nn.utils.get_total_norm(gradients)
        check_gradients(grad_norm, self._learner.agent, self._learner.version + 1)
        self._functions.apply_gradients(gradients, grad_norm)
        return {"grad_norm": float(grad_norm)}

    def report(self, metrics: Callable[[], dict[str, float]]) -> Mapping[str, float]:
        """Return the update's metrics; called after `step`, before `version` is incremented."""
        return metrics()

    def synchronize(self) -> None:
        """Wait until all updates are done. Raises NonFiniteError if one was not finite."""

    def reset(self) -> None:
        """Discard CUDA graphs that reference the former optimizer state."""


@contextmanager
def dry_run(learner: LearnerParts) -> Iterator[None]:
    """Keep updates inside this context from changing a weight or the optimizer's state."""
    before = learner.finite.clone()
    learner.finite.fill_(False)
    try:
        yield
    finally:
        learner.finite.copy_(before)
