"""Chunk forms and C kernels beside the loops that one writes first: einsums, W times 0 at resets, autograd.

Usage: einsum_loop.py [REPEATS]. Prints milliseconds of forward and backward, medians in turns, and ratios.
"""

import functools
import statistics
import sys
import time

import torch

from deltabeast import kernels
from deltabeast.launch.processes.machine import prepare_process

T, B, H, D = 50, 32, 4, 32


def sum_loop(q, k, v, W, reset):
    keep, outputs = (~reset).to(q.dtype), []
    for t in range(T):
        W = W * keep[t][:, None, None, None] + torch.einsum("bhv,bhk->bhvk", v[t], k[t])
        outputs.append(torch.einsum("bhvk,bhk->bhv", W, q[t]))
    return torch.stack(outputs), W


def delta_loop(q, k, v, beta, W, reset):
    keep, outputs = (~reset).to(q.dtype), []
    for t in range(T):
        W = W * keep[t][:, None, None, None]
        error = v[t] - torch.einsum("bhvk,bhk->bhv", W, k[t])
        W = W + torch.einsum("bhv,bhk->bhvk", beta[t][..., None] * error, k[t])
        outputs.append(torch.einsum("bhvk,bhk->bhv", W, q[t]))
    return torch.stack(outputs), W


def job(function, inputs, reset):
    leaves = [x.detach().requires_grad_() for x in inputs]

    def once():
        start = time.perf_counter()
        outputs = function(*leaves, reset)
        gradients = torch.autograd.grad(outputs, leaves, [torch.ones_like(out) for out in outputs])
        return time.perf_counter() - start, (*outputs, *gradients)

    return once


def main(repeats=20):
    prepare_process()
    torch.manual_seed(1)
    q, k, v = (
        torch.randn(T, B, H, D).softmax(-1),
        torch.randn(T, B, H, D).softmax(-1),
        torch.randn(T, B, H, D),
    )
    beta, W, reset = torch.randn(T, B, H).sigmoid(), 0.1 * torch.randn(B, H, D, D), torch.rand(T, B) < 0.02
    for name, loop, rule, inputs in (
        ("sum_rule", sum_loop, kernels.sum_rule, (q, k, v, W)),
        ("delta_rule", delta_loop, kernels.delta_rule, (q, k, v, beta, W)),
    ):
        slow = job(loop, inputs, reset)
        for backend in ("chunked", "native"):
            fast = job(functools.partial(rule, backend=backend), inputs, reset)
            for x, y in zip(slow()[1], fast()[1], strict=True):
                torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
            times = [(slow()[0], fast()[0]) for _ in range(repeats)]
            ratio = statistics.median(a / b for a, b in times)
            a, b = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
            print(f"{name}: loop {a:.1f} ms, {backend} {b:.1f} ms, {ratio:.1f} times")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
