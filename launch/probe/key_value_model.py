"""Memories alone, as associative retrieval tries them (Schlag et al. 2021, section 6.1 and its code)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cores import State
from ...cores.features import Features, orthogonal_normal
from .sequence_model import SequenceSpec

KEY_SIZE = 64
EPSILON = 1e-6
"""added to sums that are divided by, as in the published code"""
RULES = ("linear_transformer", "delta_net", "softmax_attention")
"""cores whose rule can be tried alone"""


class KeyValueModel(nn.Module):
    """Stores pairs by the rule of a core, reads by a key. Tokens `[T, B]` of `Retrieval`, all pairs before
    all queries -> what is read `[T, B, S]`, zeros at pairs.

    Values are one-hot, and written as they are; each rule is computed as the weights by which a query reads
    them, which costs less than a matrix for every sequence where few queries follow many pairs. x is a pair's
    key, embedded, beside its value: `k = W_k x`, `q = W_q e(key)`, `β = σ(w_b x)`. Sum rule and softmax
    divide what is read by the sum of the weights; the delta rule's keys and queries are divided by their own
    sums.

    Options: `OPTIONS`, of `Features`; `redraw` draws FAVOR's matrix anew for
    every batch, evaluations included, as the published code does.
    """

    OPTIONS: ClassVar = ("feature_map", "dpfp_nu", "favor_features")

    def __init__(self, spec: SequenceSpec) -> None:
        super().__init__()
        if spec.core not in RULES:
            raise ValueError(f"{spec.core} is not tried alone in retrieval; {', '.join(RULES)} are")
        self.spec = spec
        self.rule, self.size = spec.core, spec.classes
        options: Any = dict(spec.core_options)
        self.redraw = bool(options.pop("redraw", False))
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
        self.features = Features(KEY_SIZE, normalise="none", **options)
        bound = KEY_SIZE**-0.5
        nn.init.uniform_(self.to_k.weight, -bound, bound)
        nn.init.uniform_(self.to_q.weight, -bound, bound)

    def forward(self, tokens: Tensor, reset: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return what is read and an empty state: a sequence is taken as a whole."""
        keys, values = tokens // (self.size + 1), tokens % (self.size + 1)
        pairs = int((values < self.size).all(1).sum())
        k = self._of_pairs(self.to_k, keys[:pairs], values[:pairs])
        q = F.embedding(keys[pairs:], self.to_q(self.keys.weight))
        if self.rule == "softmax_attention":
            weights = (_products(q, k) * KEY_SIZE**-0.5).softmax(-1)
        else:
            self._redraw()
            k, q = self.features(k), self.features(q)
            if self.rule == "delta_net":
                weights = _by_delta_rule(q, k, self._of_pairs(self.to_beta, keys[:pairs], values[:pairs]))
            else:
                weights = _products(q, k)
                weights = weights / (weights.sum(-1, keepdim=True) + EPSILON)
        v = F.one_hot(values[:pairs], self.size).to(weights.dtype)
        read = torch.einsum("bql,lbv->qbv", weights, v)
        return torch.cat((read.new_zeros(pairs, *read.shape[1:]), read)), ()

    def _of_pairs(self, layer: nn.Linear, keys: Tensor, values: Tensor) -> Tensor:
        """Return `layer` of a pair's embedded key beside its one-hot value: a row for each of them, added."""
        of_key, of_value = layer.weight.split((self.keys.embedding_dim, self.size), 1)
        rows = F.linear(self.keys.weight, of_key, layer.bias)
        return F.embedding(keys, rows) + F.embedding(values, of_value.T)

    def _redraw(self) -> None:
        if self.redraw and self.features.random is not None:
            drawn = orthogonal_normal(*self.features.random.shape)
            self.features.random.data.copy_(drawn)


def _products(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("qbd,lbd->bql", q, k)


def _by_delta_rule(q: Tensor, k: Tensor, logits: Tensor) -> Tensor:
    """Return how much of each value a query reads after all writes.

    They leave `W = Uᵀ K` with `(I + B tril(K Kᵀ, -1)) U = B V`, B the write strengths on a diagonal. What
    `W q` reads of V is `B (I + B tril(K Kᵀ, -1))⁻ᵀ K q`.
    """
    k, q = k / k.sum(-1, keepdim=True), q / (q.sum(-1, keepdim=True) + EPSILON)
    beta = logits.sigmoid().permute(1, 2, 0)  # [B, 1, L]
    lower = (beta.mT * _products(k, k)).tril(-1)
    written = torch.linalg.solve_triangular(lower.mT, _products(q, k).mT, upper=True, unitriangular=True)
    return written.mT * beta
