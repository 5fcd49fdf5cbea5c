"""The generalised delta rule is each of the memories that it contains, written as their papers write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import assert_near, integer, make_reset
from torch import Tensor

from deltabeast.kernels import delta_rule, gated_delta, generalised_delta, sum_rule

BACKENDS = ("reference", "chunked", "native")
Step = Callable[[Tensor, int], Tensor]


class Problem:
    """Random numbers for a memory, float64. Papers' S is `Wᵀ`, `[B, H, K, V]`."""

    def __init__(self, steps: int, writes: int = 1) -> None:
        self.T, self.B, self.H = steps, integer(1, 3), integer(1, 2)
        self.K, self.V, self.writes = integer(2, 9), integer(2, 9), writes
        self.q, self.reset = self.keys(1)[:, :, :, 0], make_reset("random", steps, self.B)
        self.k, self.v = self.keys(writes), self.draw(writes, self.V)
        self.beta, self.channels = (self.draw(writes, size).sigmoid() for size in (1, self.K))
        self.W = torch.randn(self.B, self.H, self.V, self.K, dtype=torch.float64)

    def draw(self, writes: int, size: int) -> Tensor:
        return torch.randn(self.T, self.B, self.H, writes, size, dtype=torch.float64)

    def keys(self, writes: int) -> Tensor:
        return F.normalize(self.draw(writes, self.K), dim=-1)

    def loop(self, step: Step) -> tuple[Tensor, Tensor]:
        """Outputs and the last state of `S = step(S, t)`, `y = Sᵀ q`."""
        S, outputs = self.W.mT, []
        for t in range(self.T):
            S = torch.where(self.reset[t].view(-1, 1, 1, 1), torch.zeros_like(S), S)
            S = step(S, t)
            outputs.append((self.q[t].unsqueeze(-2) @ S).squeeze(-2))
        return torch.stack(outputs), S.mT

    def check(self, backend: str, want: tuple[Tensor, Tensor], *given: Tensor) -> None:
        """`given`: k, u, e and the decay."""
        native = backend == "native"
        sizes = (self.K, self.V, self.K, self.K)
        inputs = [x.expand(*x.shape[:-1], size) for x, size in zip(given, sizes, strict=True)]
        inputs = [x.float() if native else x for x in (self.q, *inputs, self.W)]
        got = generalised_delta(*inputs, self.reset, backend=backend)
        for name, a, b in zip(("y", "W"), got, want, strict=True):
            assert_near(name, a, b, 2e-5 if native else 1e-12)


def column(x: Tensor, t: int, i: int = 0) -> Tensor:
    """A write's vector as a column `[B, H, size, 1]`."""
    return x[t, :, :, i].unsqueeze(-1)


def eye(S: Tensor) -> Tensor:
    return torch.eye(S.shape[-2], dtype=S.dtype)


everywhere = pytest.mark.parametrize("backend", BACKENDS)
lengths = pytest.mark.parametrize("steps", [1, 2, 20])


@everywhere
@lengths
def test_the_rules_of_this_package(backend: str, steps: int, seed: int) -> None:
    p = Problem(steps)
    zero, one = torch.zeros_like(p.k), torch.ones_like(p.k)
    k, v, beta = p.k[:, :, :, 0], p.v[:, :, :, 0], p.beta[:, :, :, 0, 0]
    rate = p.channels[..., :1]
    p.check(backend, sum_rule(p.q, k, v, p.W, p.reset), p.k, p.v, zero, one)
    p.check(backend, delta_rule(p.q, k, v, beta, p.W, p.reset), p.k, p.beta * p.v, p.beta * p.k, one)
    want = gated_delta(p.q, k, v, beta, rate[:, :, :, 0, 0], p.W, p.reset)
    p.check(backend, want, p.k, p.beta * p.v, p.beta * p.k, rate)


@everywhere
@lengths
def test_gated_linear_attention_and_pengs_rule(backend: str, steps: int, seed: int) -> None:
    """Yang et al. 2024: S = Diag(α) S + k vᵀ. Peng et al. 2021: S = (1 - β) S + β k vᵀ."""
    p = Problem(steps)
    zero = torch.zeros_like(p.k)
    want = p.loop(lambda S, t: column(p.channels, t) * S + column(p.k, t) @ column(p.v, t).mT)
    p.check(backend, want, p.k, p.v, zero, p.channels)

    def peng(S: Tensor, t: int) -> Tensor:
        beta = column(p.beta, t)
        return (1 - beta) * S + beta * (column(p.k, t) @ column(p.v, t).mT)

    p.check(backend, p.loop(peng), p.k, p.beta * p.v, zero, 1 - p.beta)


@everywhere
@lengths
def test_kimi_delta_attention_and_gated_delta_net_2(backend: str, steps: int, seed: int) -> None:
    """S = (I - β k kᵀ) Diag(α) S + β k vᵀ; S = (I - k (b ⊙ k)ᵀ) Diag(α) S + k (w ⊙ v)ᵀ."""
    p = Problem(steps)

    def kimi(S: Tensor, t: int) -> Tensor:
        k, beta = column(p.k, t), column(p.beta, t)
        return (eye(S) - beta * k @ k.mT) @ (column(p.channels, t) * S) + beta * k @ column(p.v, t).mT

    p.check(backend, p.loop(kimi), p.k, p.beta * p.v, p.beta * p.k, p.channels)
    erase, write = (p.draw(1, size).sigmoid() for size in (p.K, p.V))

    def gated(S: Tensor, t: int) -> Tensor:
        k, erased, v = column(p.k, t), column(erase * p.k, t), column(write * p.v, t)
        return (eye(S) - k @ erased.mT) @ (column(p.channels, t) * S) + k @ v.mT

    p.check(backend, p.loop(gated), p.k, write * p.v, erase * p.k, p.channels)


@everywhere
@lengths
@pytest.mark.parametrize("writes", [1, 2, 3, 4])
def test_delta_product(backend: str, steps: int, writes: int, seed: int) -> None:
    """Siems et al. 2025: `writes` Householder products a step, with write strengths up to 2, one decay."""
    p = Problem(steps, writes)
    beta, decay = 2 * p.beta, torch.ones_like(p.beta)
    decay[:, :, :, 0] = p.channels[:, :, :, 0, :1]

    def step(S: Tensor, t: int) -> Tensor:
        S = column(decay, t) * S
        for i in range(writes):
            k, strength = column(p.k, t, i), column(beta, t, i)
            S = (eye(S) - strength * k @ k.mT) @ S + strength * k @ column(p.v, t, i).mT
        return S

    p.check(backend, p.loop(step), p.k, beta * p.v, beta * p.k, decay)


@everywhere
@lengths
def test_rwkv_7(backend: str, steps: int, seed: int) -> None:
    """Peng et al. 2025: S = S (diag(w) - κᵀ (a ⊙ κ)) + vᵀ k, of row vectors, values by keys."""
    p = Problem(steps)
    a, removal, k = p.draw(1, p.K).sigmoid(), p.k, p.draw(1, p.K)
    w = (-(0.5**0.5) * p.channels).exp()

    def step(S: Tensor, t: int) -> Tensor:
        kappa, replaced = column(removal, t).mT, column(a * removal, t).mT
        transition = torch.diag_embed(w[t, :, :, 0]) - kappa.mT @ replaced
        return (S.mT @ transition + column(p.v, t) @ column(k, t).mT).mT

    def then(first: Tensor, second: Tensor) -> Tensor:
        return torch.cat((first, second), 3)

    zero, one = torch.zeros_like(k), torch.ones_like(k)
    keys, values = then(a * removal, k), then(torch.zeros_like(p.v), p.v)
    p.check(backend, p.loop(step), keys, values, then(removal / w, zero), then(w, one))
