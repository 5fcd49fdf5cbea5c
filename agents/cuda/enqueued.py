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
        self._captures = capture
        self._captured: dict[tuple[Any, ...], Captured] = {}
        self._batch: Unroll | None = None
        self._last: _Update | None = None

    def backward(self, batch: Unroll) -> tuple[Mapping[str, float], list[Tensor | None]]:
        metrics, gradients = self._call("compute_gradients", self._compute_gradients, batch.tensors())
        self._batch = batch
        return send(metrics), gradients

    def step(self, gradients: Sequence[Tensor]) -> Mapping[str, float]:
        return send({"grad_norm": self._call("apply_gradients", self._apply_gradients, gradients)})

    def _compute_gradients(self, *batch: Tensor) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        return self._functions.compute_gradients(Unroll.of(batch))

    def _apply_gradients(self, *gradients: Tensor) -> Tensor:
        """Change the weights, and return the norm of the gradients."""
        grad_norm = nn.utils.get_total_norm(gradients)
        self._functions.apply_gradients(gradients, grad_norm)
        return grad_norm

    def _call(self, name: str, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        """Call a function, with `capture` as a CUDA graph that the first call with these shapes captures.

        A batch with replayed unrolls has others than the first, which has none.
        """
        if not self._captures:
            return function(*inputs)
        key = name, *(x.shape for x in inputs)
        if key not in self._captured:
            with dry_run(self._learner):
                function(*(x.clone() for x in inputs))  # compiles now: a capture must not contain that
                self._captured[key] = Captured(function, inputs)
        return self._captured[key](*inputs)

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
        self._captured.clear()

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
