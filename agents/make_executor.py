"""Which executor runs a learner's updates."""

from __future__ import annotations

from .compiled import Compiled
from .cuda.enqueued import Enqueued
from .executor import EagerExecutor, LearnerParts


def make_executor(learner: LearnerParts, capture: bool = True, compile: bool = False) -> EagerExecutor:
    """Choose by the learner's device: a GPU's updates are enqueued, others run eagerly.

    `capture` makes each function of an update one CUDA graph there. `compile`, on any device, has
    `torch.compile` make loss, gradients and the optimizer's step; where it cannot, a warning says so.
    """
    functions = Compiled(learner) if compile else None
    if learner.finite.device.type == "cuda":
        return Enqueued(learner, functions, capture)
    return EagerExecutor(learner, functions)
