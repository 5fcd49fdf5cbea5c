"""An update compiled by `torch.compile`."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels.private_cache import CannotBuildError, check_for_torch
from .cuda.graphs import ALONE
from .executor import LearnerParts, changing_nothing
from .rmsprop import rmsprop_if
from .unroll import Unroll


class Compiled:
    """The halves of a learner's update with the loss, its gradients and RMSProp's step compiled.

    The first call of a half compiles it, in a trial run that changes nothing. If that fails, a warning says
    why, and both halves run as they are.
    """

    def __init__(self, learner: LearnerParts) -> None:
        self._learner = learner
        self._untried: set[Callable[..., Any]] = {learner.differentiate, learner.change}
        try:
            check_for_torch()
        except CannotBuildError as error:
            self._give_up(str(error))
            return
        learner.loss_function = torch.compile(learner.loss, dynamic=False)
        learner.rmsprop = torch.compile(rmsprop_if, dynamic=False)

    def differentiate(self, batch: Unroll) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        self._try(self._learner.differentiate, batch)
        return self._learner.differentiate(batch)

    def change(self, gradients: Sequence[Tensor], grad_norm: Tensor) -> None:
        # The trial step, which must change no weight, zeroes its gradients in place: give it copies.
        self._try(self._learner.change, [gradient.clone() for gradient in gradients], grad_norm)
        self._learner.change(gradients, grad_norm)

    def _try(self, half: Callable[..., Any], *inputs: Any) -> None:
        if half not in self._untried:
            return
        self._untried.remove(half)
        try:
            with changing_nothing(self._learner), ALONE, warnings.catch_warnings():
                # Inductor's advice is not for users: with TF32, say, the learner would differ from actors.
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
                half(*inputs)
            # The compiler leaves reference cycles that hold nodes of the autograd graph, each bound to the
            # stream it was made on: a capture on another stream would fail.
            gc.collect()
        except RuntimeError as error:
            self._give_up(str(error).strip().split("\n")[0])

    def _give_up(self, reason: str) -> None:
        warnings.warn(f"torch.compile fails here; the learner runs without: {reason}", stacklevel=3)
        self._learner.loss_function, self._learner.rmsprop = self._learner.loss, rmsprop_if
        self._untried.clear()
