"""Noise of retrieval: how much of what is read belongs to other keys (Zhong et al. 2025, section 2.1).

N pairs of independent normal keys and values are stored, `S = Σ v_i φ(k_i)ᵀ`; one is read by its key. With
`κ(x, y) = φ(x)·φ(y)` the value found is `κ(k_i, k_i) v_i`, the rest r is noise, and their ratio is `E‖r‖² /
(κ(k_i, k_i)² E‖v‖²)`. The paper's closed forms hold for a key of length `sqrt(d)`, which is what is measured
here: over keys of any length the means of the exponential kernels are others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

VALUES = 64
"""numbers of a value"""

Products = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Kernel:
    """κ of the product of two keys and its temperature `sqrt(d)`; the noise it makes, per pair, by
    dimension."""

    of: Callable[[Any, float], Any]
    expected: Callable[[float], float]
    """the paper's closed form before keys' lengths are put in, with a squared length of d"""
    printed: Callable[[float], float]
    """as in the paper's box"""


KERNELS = {
    "linear": Kernel(lambda x, tau: x, lambda d: 1 / d, lambda d: 1 / d),
    "relu": Kernel(lambda x, tau: np.maximum(x, 0), lambda d: 1 / (2 * d), lambda d: 1 / (2 * d)),
    "exp": Kernel(
        lambda x, tau: np.exp(x / tau),
        lambda d: math.exp(2 - 2 * math.sqrt(d)),
        lambda d: math.exp(-2 * (math.sqrt(d) - 1)),
    ),
    # The box drops a factor of e² on its way from the step before it.
    "solu": Kernel(
        lambda x, tau: x * np.exp(x / tau),
        lambda d: 5 / d * math.exp(2 - 2 * math.sqrt(d)),
        lambda d: 5 / (d * math.exp(2 * math.sqrt(d))),
    ),
}


class Noise(NamedTuple):
    """Noise of a kernel at one size: by measurement, by the closed form, and as printed."""

    measured: float
    error: float
    """standard error of the measurement"""
    expected: float
    printed: float


Similarity = Callable[[Products, Products], Products]
"""κ of keys `[N, d]` and a query `[d]` -> `[N]`"""


def noise_ratios(
    similarity: Similarity, d: int, pairs: int, rounds: int, rng: np.random.Generator
) -> Products:
    """Store `pairs` pairs besides the one that is read, `rounds` times, and read that one; return the noise
    of each time."""
    ratios = np.empty(rounds)
    for index in range(rounds):
        query = rng.standard_normal(d)
        query *= math.sqrt(d) / np.linalg.norm(query)
        keys, values = rng.standard_normal((pairs, d)), rng.standard_normal((pairs, VALUES))
        noise = similarity(keys, query) @ values
        ratios[index] = noise @ noise / VALUES / similarity(query[np.newaxis], query)[0] ** 2
    return ratios


def measure_noise(kernel: str, d: int, pairs: int, rounds: int, rng: np.random.Generator) -> Noise:
    """Measure one of `KERNELS` as `noise_ratios` does."""
    chosen, tau = KERNELS[kernel], math.sqrt(d)
    ratios = noise_ratios(lambda keys, query: chosen.of(keys @ query, tau), d, pairs, rounds, rng)
    return Noise(
        float(ratios.mean()),
        float(ratios.std() / math.sqrt(rounds)),
        pairs * chosen.expected(d),
        pairs * chosen.printed(d),
    )
