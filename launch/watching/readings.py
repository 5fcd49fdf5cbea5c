"""What a memory reads in each step of play, by the past steps that wrote it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...cores.linear_form import LinearForm, join
from ...cores.provenance import shares
from ...cores.reading_age import median_age
from ..evaluation.why import layer_fractions, strongest

WINDOW = 256
"""Latest steps of an episode that get a share each; all before them share one."""


@dataclass(frozen=True)
class Reading:
    """Signed fractions of what all layers read in a step, as in `eval --why`; with `older` their sum is 1."""

    first: int
    """The step of the first fraction."""
    fractions: list[float]
    """Of each step from then to now."""
    older: float
    """Of all that was in the memory before."""
    sources: list[int]
    """The past steps with the largest fractions in size, largest first."""
    median_age: int | None
    """Half of the fractions' sizes belong to steps at most so long ago; None if they are older still."""


class Readings:
    """The linear forms of an episode's latest steps."""

    def __init__(self, window: int = WINDOW) -> None:
        self._steps: deque[tuple[int, Sequence[LinearForm]]] = deque(maxlen=window)

    def add(self, step: int, forms: Sequence[LinearForm | None], begins: bool) -> None:
        """Add what each layer did in a step; a layer without a linear form explains nothing."""
        linear = [form for form in forms if form is not None]
        if begins or len(linear) < len(forms):
            self._steps.clear()
        if linear and len(linear) == len(forms):
            self._steps.append((step, linear))

    def drop_latest(self) -> None:
        """Leave out the latest step, whose whole change of the memory was taken back."""
        if self._steps:
            self._steps.pop()

    def clear(self) -> None:
        """Forget all steps: the memory is another one."""
        self._steps.clear()

    def explain(self) -> Reading | None:
        """Explain what the latest step read; None if there is nothing to explain, or it read 0 or nan."""
        if not self._steps:
            return None
        layers = [join(forms) for forms in zip(*(forms for _, forms in self._steps), strict=True)]
        _, total = layer_fractions([shares(layer, len(self._steps) - 1) for layer in layers])
        if not total.isfinite().all() or not total.any():
            return None
        numbers = [step for step, _ in self._steps]
        by_step = dict(zip(numbers, total.tolist(), strict=True))
        older = 1.0 - sum(by_step.values())
        by_age = torch.cat([total.flip(0), total.new_tensor([older])]).abs()
        newer = int(median_age(by_age / by_age.sum()))
        return Reading(
            numbers[0],
            [by_step.get(step, 0.0) for step in range(numbers[0], numbers[-1] + 1)],
            older,
            [numbers[j] for j in strongest(total[:-1])],
            numbers[-1] - numbers[-1 - newer] if newer < len(numbers) else None,
        )
