"""Updates that are enqueued on a GPU: the host goes on, and sees their metrics later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..executor import EagerExecutor, LearnerParts, UpdateFns, dry_run
from ..nonfinite import NonFiniteError, check_gradients, check_loss
from ..unroll import Unroll
from .async_metrics import AsyncMetrics, send
from .graphs import Captured


@dataclass(frozen=True)
class _Update:
    """An enqueued update not yet known to have completed, and the learner's counts before it."""

    metrics: AsyncMetrics
    batch: Unroll | None
    steps: int
    version: int


class Enqueued(EagerExecutor):
    """Enqueues both functions of an update and waits for neither; metrics arrive when somebody reads them.

    A non-finite update changes nothing, nor does any after it, until the host notices: when the next update
    is enqueued, when its metrics are read, or at `synchronize`. Then the learner's counts go back to those
    before it, the bad update is repeated to name its first non-finite tensor, and NonFiniteError is raised.
    """

    def __init__(
        self, learner: LearnerParts, functions: UpdateFns | None = None, capture: bool = True
    ) -> None:
        """`functions` are those to run instead of the learner's own; with `capture` each is a CUDA graph."""
        super().__init__(learner, functions)
        self._graphs = Graphs(learner, self._functions) if capture else None
        self._batch: Unroll | None = None
        self._last: _Update | None = None

    def backward(self, batch: Unroll) -> tuple[Mapping[str, float], list[Tensor | None]]:
        metrics, gradients = (self._graphs or self._functions).compute_gradients(batch)
        self._batch = batch
        return send(metrics), gradients

    def step(self, gradients: Sequence[Tensor]) -> Mapping[str, float]:
        apply = self._graphs.apply_gradients if self._graphs else _apply_gradients(self._functions)
        return send({"grad_norm": apply(*gradients)})

    def report(self, metrics: Callable[[], dict[str, float]]) -> Mapping[str, float]:
        version = self._learner.version

        def read() -> dict[str, float]:
            if self._last is not None and self._last.version == version:
                self.synchronize()
            return metrics()

        update = _Update(AsyncMetrics(read), self._batch, self._learner.steps, version)
        previous, self._last = self._last, update
        self._check(previous)
        return update.metrics

    def synchronize(self) -> None:
        last, self._last = self._last, None
        self._check(last)

    def reset(self) -> None:
        self._last = None
        if self._graphs:
            self._graphs = Graphs(self._learner, self._functions)

    def _check(self, update: _Update | None) -> None:
        """Wait for an update; if it was not finite, undo it and all after it, and raise NonFiniteError."""
        if update is None or math.isfinite(update.metrics["grad_norm"]):
            return
        learner = self._learner
        learner.steps, learner.version, self._last = update.steps, update.version, None
        learner.finite.fill_(True)
        if update.batch is not None:
            self._repeat(update.batch)
        raise NonFiniteError(f"update {learner.version + 1} was not finite, but its repetition is")

    def _repeat(self, batch: Unroll) -> None:
        """Repeat an update as far as its gradient norm, and raise NonFiniteError for the first bad tensor."""
        agent, number = self._learner.agent, self._learner.version + 1
        metrics, gradients = self._learner.compute_gradients(batch)
        check_loss(metrics, batch, agent, number)
        check_gradients(nn.utils.get_total_norm([g for g in gradients if g is not None]), agent, number)


class Graphs:
    """The functions of an update as CUDA graphs, each captured at its first call."""

    def __init__(self, learner: LearnerParts, functions: UpdateFns) -> None:
        self._learner = learner
        self._functions = functions
        self._captured: dict[str, Captured] = {}

    def compute_gradients(self, batch: Unroll) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        def run(*tensors: Tensor) -> Any:
            return self._functions.compute_gradients(Unroll.of(tensors))

        return self._replay("compute_gradients", run, batch.tensors())

    def apply_gradients(self, *gradients: Tensor) -> Tensor:
        """Change the weights, and return the norm of the gradients."""
        return self._replay("apply_gradients", _apply_gradients(self._functions), gradients)

    def _replay(self, name: str, run: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        if name not in self._captured:
            with dry_run(self._learner):
                run(*(x.clone() for x in inputs))  # compiles now: a capture must not contain that
                self._captured[name] = Captured(run, inputs)
        return self._captured[name](*inputs)


def _apply_gradients(functions: UpdateFns) -> Callable[..., Tensor]:
    def apply(*gradients: Tensor) -> Tensor:
        grad_norm = nn.utils.get_total_norm(gradients)
        functions.apply_gradients(gradients, grad_norm)
        return grad_norm

    return apply
