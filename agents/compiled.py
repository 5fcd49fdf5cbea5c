"""An update compiled by `torch.compile`."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels.private_cache import CannotBuildError, use_private_inductor_cache
from .cuda.graphs import CAPTURE_LOCK
from .executor import LearnerParts, dry_run
from .unroll import Unroll


class Compiled:
    """The functions of a learner's update with the loss, its gradients and the optimizer's step compiled.

    The first call of one compiles it, in a trial run that changes nothing. If that fails, a warning says
    why, and both run as they are.
    """

    def __init__(self, learner: LearnerParts) -> None:
        self._learner, self._ops = learner, learner.ops
        self._attempted: set[tuple[Any, ...]] = set()
        """Functions and the shapes of their inputs, for each of which torch.compile compiles."""
        self._fails = False
        try:
            use_private_inductor_cache()
        except CannotBuildError as error:
            self._give_up(str(error))
            return
        learner.compiled_loss = torch.compile(learner.loss, dynamic=False)
        optimizer = learner.config.optimizer
        step = torch.compile(getattr(self._ops, optimizer), dynamic=False)
        learner.ops = learner.ops._replace(**{optimizer: step})

    def compute_gradients(self, batch: Unroll) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        self._try(self._learner.compute_gradients, batch)
        return self._learner.compute_gradients(batch)

    def apply_gradients(self, gradients: Sequence[Tensor], grad_norm: Tensor) -> None:
        # The trial step, which must change no weight, zeroes its gradients in place: give it copies.
        self._try(self._learner.apply_gradients, [gradient.clone() for gradient in gradients], grad_norm)
        self._learner.apply_gradients(gradients, grad_norm)

    def _try(self, function: Callable[..., Any], *inputs: Any) -> None:
        key = function, *(x.shape for x in _tensors(inputs))
        if self._fails or key in self._attempted:
            return
        self._attempted.add(key)
        try:
            with dry_run(self._learner), CAPTURE_LOCK, warnings.catch_warnings():
                # Inductor's advice is not for users: with TF32, say, the learner would differ from actors.
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
                function(*inputs)
            # The compiler leaves reference cycles that hold nodes of the autograd graph, each bound to the
            # stream it was made on: a capture on another stream would fail.
            gc.collect()
        except RuntimeError as error:
            self._give_up(str(error).strip().split("\n")[0])

    def _give_up(self, reason: str) -> None:
        warnings.warn(f"torch.compile fails here; the learner runs without: {reason}", stacklevel=3)
        self._learner.compiled_loss = None
        self._learner.ops = self._ops
        self._fails = True


def _tensors(inputs: Sequence[Any]) -> list[Tensor]:
    """List the tensors of unrolls, sequences of tensors and tensors."""
    several = (x.tensors() if isinstance(x, Unroll) else x if isinstance(x, list) else [x] for x in inputs)
    return [tensor for each in several for tensor in each]
