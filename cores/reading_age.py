"""How far back a memory reads: the ages of the writes in its readings, weighted by their shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .linear_form import LinearForm
from .provenance import fraction_matrix


@torch.no_grad()
def reading_ages(forms: Sequence[LinearForm], first: int = 0) -> Tensor:
    """Return which part of what is read was written how many steps before: `[T + 1]`, with sum 1.

    Entry n is that of age n, 0 for what a step writes before it reads; the last one that of the state before
    the unroll. In a reading a step counts by the size of its fraction (`provenance.Fractions`, over heads),
    without sign, relative to the sum of all sizes. All readings of all layers and rows count the same, but
    for those that are 0 or not finite, which do not; nan where none is left.

    Args:
        forms: what each layer did in an unroll of T steps.
        first: the first step whose readings count. Only some of these see ages above it.

    Raises:
        ValueError: as `provenance.fraction_matrix`.
    """
    T = len(forms[0].reset)
    by_age = torch.zeros(T + 1, dtype=torch.float64, device=forms[0].reset.device)
    count = torch.zeros((), device=by_age.device)
    for form in forms:
        steps, initial = fraction_matrix(form, over_heads=True, first=first)
        sizes = torch.cat([steps, initial.unsqueeze(1)], 1).double().abs()  # [R, T + 1, B]
        parts = sizes / sizes.sum(1, keepdim=True)
        some = parts.isfinite().all(1)
        parts = parts.masked_fill(~some.unsqueeze(1), 0).sum(2)
        count += some.sum()
        for t, part in enumerate(parts, first):
            by_age[: t + 1] += part[: t + 1].flip(0)
        by_age[T] += parts[:, T].sum()
    return by_age / count


def median_age(by_age: Tensor) -> float:
    """Return the median age of what is read, in steps; T for what was there before the unroll of T steps."""
    return float((by_age.cumsum(0) < 0.5).sum()) if by_age.isfinite().all() else math.nan


def share_beyond(by_age: Tensor, age: int) -> float:
    """Return which part of what is read is older than `age`, at most T - 1: later ones are not told apart."""
    return float(by_age[age + 1 :].sum())
