"""Loss and scores of what a model says."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ...envs.sequences.code import NOTHING
from ...envs.sequences.sequences import NO_TARGET


def loss_of(kind: Literal["cross_entropy", "square"], output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over all targets; square: half the squared distance from the one-hot target."""
    if kind == "cross_entropy":
        return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=NO_TARGET)
    asked = target != NO_TARGET
    wanted = F.one_hot(target[asked], output.shape[-1])
    return 0.5 * (wanted - output[asked]).square().sum(-1).mean()


class Scores:
    """Sums over batches, and the means they make."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, loss: Tensor, output: Tensor, target: Tensor) -> None:
        """Count a batch: output `[T, B, classes]`, target `[T, B]`."""
        asked = target != NO_TARGET
        right = (output.argmax(-1) == target) & asked
        some = asked & (target != NOTHING)
        last = asked & (asked.flip(0).cumsum(0).flip(0) == 1)
        self._add("loss", float(loss) * int(asked.sum()), int(asked.sum()))
        self._add("accuracy", int(right.sum()), int(asked.sum()))
        self._add("print_accuracy", int((right & some).sum()), int(some.sum()))
        self._add("final_accuracy", int((right & last).sum()), int(last.sum()))
        self._add("sequence_accuracy", int((right | ~asked).all(0).sum()), target.shape[1])

    def _add(self, name: str, value: float, count: int) -> None:
        self._sums[name] += value
        self._counts[name] += count

    def means(self) -> dict[str, float]:
        means = {name: value / count for name, value in self._sums.items() if (count := self._counts[name])}
        return {**means, "perplexity": math.exp(min(means["loss"], 100.0))}
