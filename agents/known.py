"""What is known of an unroll's steps where the learner has the very weights that acted."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..cores import Kept


class Known(NamedTuple):
    """What the learner need not compute again. Acting adds its steps to `projection` and `core`."""

    trunk: tuple[Tensor, ...] = ()
    """the stem's `trunk_features` of each observation, `[B, n]`, and the graph of their computation"""
    projection: Kept | None = None
    """the stem's projection of each observation"""
    core: Kept | None = None
    """what the core computed at each observation"""


UNKNOWN = Known()
"""nothing is known: everything is to be computed"""
