"""The base class of memories read as `y = W q`: feature maps, normalisation, and W's shape."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..kernels import sum_rule
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart, overrides_only
from .features import EPSILON, Features, Map, Normalisation
from .linear_form import DeltaForm


class LinearMemory(FastWeights):
    """A matrix W that maps features of keys to values. The slow net emits q, k, v and gates. State: W, ...

    Args:
        _gate_sizes: sizes of the further numbers that the slow net emits per head, in order.
        _num_values: number of values that a head writes; 0 for h.
        feature_map: feature map of keys and queries: elu (ELU + 1), relu, softmax, dpfp, favor, unit
            (L2-normalised), root2 (unit times the square root of 2: with write strengths near 1, a write of
            the delta rule is a reflection) or tanh.
        normalise: sum divides keys and queries by their sum; attention divides the output by q·Σk, as
            linear attention does; both; or none.
        dpfp_nu: ν; dpfp has 2 h ν features.
        favor_features: m; favor has 2 m features. 0 for m = h.
    """

    supports_attention_normalisation: ClassVar[bool] = True
    """Whether `normalise` may be attention or both."""
    erases: ClassVar[bool] = False
    """Whether writes correct what is stored: keys longer than √2 (β up to 1) make it grow without bound."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        _gate_sizes: tuple[int, ...] = (),
        _num_values: int = 0,
        feature_map: Map = "elu",
        normalise: Normalisation = "sum",
        dpfp_nu: int = 1,
        favor_features: int = 0,
        **options: Any,
    ) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, (h, h, _num_values or h, *_gate_sizes), **options)
        if normalise in ("attention", "both") and not self.supports_attention_normalisation:
            raise ValueError(f"normalise {normalise} is for memories that forget nothing; give sum or none")
        if self.erases and feature_map == "tanh":
            raise ValueError(
                "feature_map tanh: keys may be longer than √2, and writes grow without bound; give unit with "
                "normalise none"
            )
        if self.erases and normalise == "none" and feature_map not in ("softmax", "unit", "root2"):
            raise ValueError(
                f"feature_map {feature_map} with normalise none: writes grow without bound; give sum"
            )
        self.features = Features(h, feature_map, normalise, dpfp_nu, favor_features)

    def __init_subclass__(cls, **options: Any) -> None:
        """Likewise for a subclass that overrides `write_read` alone."""
        super().__init_subclass__(**options)
        if overrides_only(cls, "write_read", "rule_form"):
            cls.rule_form = LinearMemory.rule_form  # type: ignore[method-assign]

    @abstractmethod
    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        """Write and read: features q, k `[T, B, H, size]`, v `[T, B, H, h]` -> y like v, next matrices.

        With `normalise` attention, `state` ends in the sum of earlier keys, which `unroll` updates.
        """

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm | None:
        """Return what `write_read` does with the same arguments as a linear rule; None if it is none.

        None, too, for a subclass that overrides `write_read` without this.
        """
        return None

    def linear_form(self, trace: MemoryTrace) -> DeltaForm | None:
        """With `normalise` attention, queries are divided by the sum of the weights of all that is read."""
        q, k, v, *gates = trace.projections
        q, k = self.features(q), self.features(k)
        form = self.rule_form(q, k, v, tuple(gates), trace.before, trace.reset)
        if form is None or not self.features.attends:
            return form
        weights, _ = sum_rule(q, k, torch.ones_like(v[..., :1]), trace.before[-1], trace.reset)
        return form._replace(writes=form.writes._replace(q=q / (weights + EPSILON)))

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor:
        return self.features(keys) @ self.features(query)

    def state_parts(self) -> tuple[StatePart, ...]:
        matrix = StatePart("fast weights", (self.num_heads, self.head_size, self.features.size))
        sums = StatePart("normaliser", (self.num_heads, 1, self.features.size))
        return (matrix, sums) if self.features.attends else (matrix,)

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v, *gates = projections
        q, k = self.features(q), self.features(k)
        y, after = self.write_read(q, k, v, tuple(gates), state, reset)
        if not self.features.attends:
            return y, after
        weights, z = sum_rule(q, k, torch.ones_like(v[..., :1]), state[-1], reset)
        return y / (weights + EPSILON), (*after, z)


def read_before(k: Tensor, z: Tensor, reset: Tensor) -> Tensor:
    """Return z·k_t, with z the sum of all keys before step t, `[T, B, H, 1]`; exactly 0 if there are none."""
    before = torch.cat((torch.zeros_like(k[:1]), k[:-1])).masked_fill(reset[:, :, None, None], 0)
    return sum_rule(k, before, torch.ones_like(k[..., :1]), z, reset)[0]
