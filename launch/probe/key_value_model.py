"""Memories alone, as associative retrieval tries them (Schlag et al. 2021, section 6.1 and its code)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cores import State
from ...cores.features import ANY_SIGN, Features, favor, orthogonal_normal
from .sequence_model import SequenceSpec

KEY_SIZE = 64
EPSILON = 1e-6
"""added to sums that are divided by, as in the published code"""
FAST_WEIGHT_MEMORY = "fast_weight_memory"
"""the rule of Schlag, Munkhdalai & Schmidhuber 2021, which no core has"""
RULES = ("linear_transformer", "delta_net", "softmax_attention", FAST_WEIGHT_MEMORY)
"""what can be tried alone: that, and the rules of these cores"""


class KeyValueModel(nn.Module):
    """Stores pairs by the rule of a core, reads by a key. Tokens `[T, B]` of `Retrieval`, all pairs before
    all queries -> what is read `[T, B, S]`, zeros at pairs.

    Values are one-hot, and written as they are; each core's rule is computed as the weights by which a query
    reads them, which costs less than a matrix for every sequence where few queries follow many pairs. x is a
    pair's key, embedded, beside its value: `k = W_k x`, `q = W_q e(key)`, `β = σ(w_b x)`. Sum rule and
    softmax divide what is read by the sum of the weights; the delta rule's keys and queries are divided by
    their own sums, those of the fast weight memory are not.

    Options: `OPTIONS`, of `Features`. `variant` is whether FAVOR's matrix is as the published code has it,
    orthogonal and drawn anew at every forward pass, evaluations included, or as the text says: independent
    Gaussian numbers, drawn anew for every batch in training and the same in all evaluations.

    Raises:
        ValueError: for a rule that cannot be tried alone, or an option that does not go with it.
    """

    OPTIONS: ClassVar = ("feature_map", "dpfp_nu", "favor_features")

    def __init__(self, spec: SequenceSpec) -> None:
        super().__init__()
        if spec.core not in RULES:
            raise ValueError(f"{spec.core} is not tried alone in retrieval; {', '.join(RULES)} are")
        self.spec = spec
        self.rule, self.size = spec.core, spec.classes
        options: Any = dict(spec.core_options)
        self.variant: str | None = options.pop("variant", None)
        embedded = int(2.2 * self.size)
        self.keys = nn.Embedding(self.size, embedded)
        self.to_k = nn.Linear(embedded + self.size, KEY_SIZE)
        self.to_q = nn.Linear(embedded, KEY_SIZE)
        self.to_beta = nn.Linear(embedded + self.size, 1)
        if self.rule == "softmax_attention":
            if options:
                raise ValueError(f"softmax_attention has no {next(iter(options))} in retrieval")
            nn.init.xavier_uniform_(self.to_k.weight)
            nn.init.xavier_uniform_(self.to_q.weight)
            return
        if self.rule != FAST_WEIGHT_MEMORY and (name := options.get("feature_map")) in ANY_SIGN:
            raise ValueError(
                f"feature_map {name} has entries of any sign, whose sum may be 0, and {self.rule} alone "
                f"divides by it; give another map, or --core {FAST_WEIGHT_MEMORY}"
            )
        self.features = Features(KEY_SIZE, normalise="none", **options)
        if self.features.random is not None and self.variant == "text":
            nn.init.normal_(self.features.random)
        bound = KEY_SIZE**-0.5
        nn.init.uniform_(self.to_k.weight, -bound, bound)
        nn.init.uniform_(self.to_q.weight, -bound, bound)

    def forward(self, tokens: Tensor, reset: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return what is read and an empty state: a sequence is taken as a whole."""
        keys, values = tokens // (self.size + 1), tokens % (self.size + 1)
        pairs = int((values < self.size).all(1).sum())
        k = self._of_pairs(self.to_k, keys[:pairs], values[:pairs])
        q = F.embedding(keys[pairs:], self.to_q(self.keys.weight))
        v = F.one_hot(values[:pairs], self.size).to(k.dtype)
        beta = self._of_pairs(self.to_beta, keys[:pairs], values[:pairs]).sigmoid()
        if self.rule != "softmax_attention":
            features = self._features()
            k, q = features(k), features(q)
        if self.rule == FAST_WEIGHT_MEMORY:
            read = _by_fast_weight_memory(q, k, v, beta)
        else:
            read = torch.einsum("bql,lbv->qbv", self._weights(q, k, beta), v)
        return torch.cat((read.new_zeros(pairs, *read.shape[1:]), read)), ()

    def _weights(self, q: Tensor, k: Tensor, beta: Tensor) -> Tensor:
        """Return how much of each value a query reads, `[B, Q, L]`."""
        if self.rule == "delta_net":
            return _by_delta_rule(q, k, beta)
        weights = _products(q, k)
        if self.rule == "softmax_attention":
            return (weights * KEY_SIZE**-0.5).softmax(-1)
        return weights / (weights.sum(-1, keepdim=True) + EPSILON)

    def _of_pairs(self, layer: nn.Linear, keys: Tensor, values: Tensor) -> Tensor:
        """Return `layer` of a pair's embedded key beside its one-hot value: a row for each of them, added."""
        of_key, of_value = layer.weight.split((self.keys.embedding_dim, self.size), 1)
        rows = F.linear(self.keys.weight, of_key, layer.bias)
        return F.embedding(keys, rows) + F.embedding(values, of_value.T)

    def _features(self) -> Callable[[Tensor], Tensor]:
        """Return the feature map of this batch."""
        random = self.features.random
        if random is None or self.variant is None or (self.variant == "text" and not self.training):
            return self.features
        shape = len(random), KEY_SIZE
        drawn = orthogonal_normal(*shape) if self.variant == "code" else torch.randn(shape)
        return partial(favor, random=drawn.to(random))


def _products(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("qbd,lbd->bql", q, k)


def _by_delta_rule(q: Tensor, k: Tensor, beta: Tensor) -> Tensor:
    """Return how much of each value a query reads after all writes.

    They leave `W = Uᵀ K` with `(I + B tril(K Kᵀ, -1)) U = B V`, B the write strengths on a diagonal. What
    `W q` reads of V is `B (I + B tril(K Kᵀ, -1))⁻ᵀ K q`.
    """
    k, q = k / k.sum(-1, keepdim=True), q / (q.sum(-1, keepdim=True) + EPSILON)
    beta = beta.permute(1, 2, 0)  # [B, 1, L]
    lower = (beta.mT * _products(k, k)).tril(-1)
    written = torch.linalg.solve_triangular(lower.mT, _products(q, k).mT, upper=True, unitriangular=True)
    return written.mT * beta


def _by_fast_weight_memory(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Return what a query reads after all writes, `[Q, B, S]`, through a layer norm without weights.

    Each pair is written by the delta rule under its key as it is, then W is scaled down to a norm of 1 if it
    exceeds that; not after the first pair, as in the published code.
    """
    W = torch.einsum("bv,bk->bvk", v[0], beta[0] * k[0])
    for k_t, v_t, beta_t in zip(k[1:], v[1:], beta[1:], strict=True):
        change = beta_t * (v_t - torch.einsum("bvk,bk->bv", W, k_t))
        W = torch.baddbmm(W, change.unsqueeze(-1), k_t.unsqueeze(1))
        W = W / torch.linalg.vector_norm(W, dim=(1, 2), keepdim=True).clamp(min=1)
    return F.layer_norm(torch.einsum("bvk,qbk->qbv", W, q), v.shape[-1:])
