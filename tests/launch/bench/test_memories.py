"""The memories of `bench kernels` are what their papers write."""

from __future__ import annotations

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, choice, make_reset
from fastweight_rules import each, make_inputs
from torch import Tensor

from deltabeast.kernels import Rule
from deltabeast.launch.bench.kernels import _error, _gradients, _ours
from deltabeast.launch.bench.memories import DELTA_PRODUCT, GATED_DELTA_NET_2, KDA, MEMORIES, RWKV7


def step(rule: Rule, W: Tensor, x: dict[str, Tensor]) -> Tensor:
    """The paper's equation for W `[V, K]` of one head."""
    eye = torch.eye(W.shape[1], dtype=W.dtype)
    if rule is RWKV7:
        kappa = x["removal"]
        transition = x["g"].exp().diag() - torch.outer(kappa, x["a"] * kappa)
        return W @ transition + torch.outer(x["v"], x["k"])
    if rule is DELTA_PRODUCT:
        for k, v, beta in zip(x["k"], x["v"], x["beta"], strict=True):
            W = W @ (eye - beta * torch.outer(k, k)) + beta * torch.outer(v, k)
        return W
    k, W = x["k"], W @ x["g"].exp().diag()
    if rule is KDA:
        return W @ (eye - x["beta"] * torch.outer(k, k)) + x["beta"] * torch.outer(x["v"], k)
    assert rule is GATED_DELTA_NET_2
    return W @ (eye - torch.outer(x["b"] * k, k)) + torch.outer(x["w"] * x["v"], k)


@each(*MEMORIES)
@pytest.mark.parametrize("resets", RESET_PATTERNS)
def test_it_is_its_papers_recurrence(rule: Rule, resets: str) -> None:
    inputs = make_inputs(rule, choice((1, 4)), most=2, sizes=(3, 8))
    reset = make_reset(resets, *inputs[0].shape[:2])

    def equations(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        *sequences, W0 = leaves
        steps, batch, heads, _ = sequences[0].shape
        ys, last = {}, []
        for b, h in ((b, h) for b in range(batch) for h in range(heads)):
            W = W0[b, h]
            for t in range(steps):
                W = torch.where(reset[t, b], torch.zeros_like(W), W)
                x = {n: part[t, b, h] for n, part in zip(rule.shapes.names, sequences, strict=False)}
                W = step(rule, W, x)
                ys[t, b, h] = W @ sequences[0][t, b, h]
            last.append(W)
        y = torch.stack([ys[index] for index in sorted(ys)]).view(steps, batch, heads, -1)
        return y, torch.stack(last).view_as(W0)

    want = _gradients(equations, inputs)
    assert _error(_gradients(_ours(rule, reset, "reference"), inputs), want) < 1e-9
    single = [x.float() for x in inputs]
    for backend in rule.backends_on(torch.device("cpu"), 8):
        assert _error(_gradients(_ours(rule, reset, backend), single), want) < 1e-4
